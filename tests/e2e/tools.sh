#!/usr/bin/env bash
# Calls of the tiny model through all three protocols, whole and streamed: the call, its result, the answer.
. "$(dirname "$0")/lib.sh"
start_server

tools=$(jq -c . <<'JSON'
[{"type":"function","function":{"name":"get_weather","description":"Get the current weather for a city",
  "parameters":{"type":"object","properties":{"city":{"type":"string","description":"City name"},
  "unit":{"type":"string","enum":["celsius","fahrenheit"]}},"required":["city"]}}},
 {"type":"function","function":{"name":"add_numbers","description":"Add two integers",
  "parameters":{"type":"object","properties":{"a":{"type":"integer","description":"First number"},
  "b":{"type":"integer","description":"Second number"}},"required":["a","b"]}}}]
JSON
)
question='What is the weather in London?'
weather='{"temperature": 7, "sky": "rainy"}'
answer='It is rainy in London, with 7 degrees.'

# chat QUESTION [JSON]: the body of a greedy chat request with tools, and with more fields.
chat() {
  jq -nc --arg text "$1" --argjson tools "$tools" \
    '{messages: [{role: "user", content: $text}], $tools, temperature: 0, max_tokens: 120} + '"${2:-{\}}"
}
# What a choice says, from a whole reply and from the chunks of a streamed one.
whole() {
  jq -c '.choices[0] | {reasoning: (.message.reasoning // ""), content: .message.content, finish: .finish_reason,
    calls: [.message.tool_calls[]? | [.type, .function.name, .function.arguments]]}' "$@"
}
streamed() {
  events | jq -cs '[.[].choices[]?] | ([.[].delta.tool_calls[]?] | group_by(.index)) as $calls |
    ([.[].delta.content // empty] | join("")) as $content | {reasoning: ([.[].delta.reasoning // empty] | join("")),
    content: (if $content == "" then null else $content end), finish: ([.[].finish_reason // empty] | join("")),
    calls: [$calls[] | select(.[0].id | startswith("call_")) |
      [.[0].type, .[0].function.name, ([.[].function.arguments] | join(""))]]}'
}
# both NAME REQUEST EXPECTED: whole and streamed.
both() {
  post /v1/chat/completions "$2" >"$scratch/whole"
  equal "$1" "$(whole "$scratch/whole")" "$3"
  post /v1/chat/completions "$(jq -c '. + {stream: true}' <<<"$2")" >"$scratch/stream"
  equal "$1, streamed" "$(streamed <"$scratch/stream")" "$3"
}

one='["function","get_weather","{\"city\": \"London\"}"]'
called() { jq -nc --argjson calls "[$1]" '{reasoning: "I should call get_weather.", content: null, finish: "tool_calls", $calls}'; }
chat_suite() {
  both "$1: a call" "$(chat "$question")" "$(called "$one")"
  both "$1: integers are typed" "$(chat 'Add 12 and 30.')" \
    '{"reasoning":"","content":null,"finish":"tool_calls","calls":[["function","add_numbers","{\"a\": 1212, \"b\": 30}"]]}'
  # No end before the 31st token: the model writes on, and calls again.
  both "$1: two calls with text between or behind" "$(chat "$question" '{min_tokens: 30}')" \
    "$(called "$one,$one" | jq -c '.content = "</arg_value> by spaces."')"
  both "$1: parallel_tool_calls false ends with the first" \
    "$(chat "$question" '{min_tokens: 30, parallel_tool_calls: false}')" "$(called "$one")"
  both "$1: a call without arguments" "$(chat "$question" '{bad_words: ["<arg_key>"]}')" \
    "$(called '["function","get_weather","{}"]')"
}
chat_suite whole
both "a call that max_tokens cuts is none" "$(chat "$question" '{max_tokens: 12}')" \
  '{"reasoning":"I should call get_weather.","content":null,"finish":"length","calls":[]}'
both "tool_choice none leaves the text" "$(chat "$question" '{tool_choice: "none"}')" \
  "$(jq -nc '{reasoning: "I should call get_weather.", content: ("<tool_call>get_weather<arg_key>city</arg_key>" +
    "<arg_value>London</arg_value></tool_call>"), finish: "stop", calls: []}')"

post /v1/chat/completions "$(chat "$question")" >"$scratch/whole"
equal "the result of a chat's call is answered" \
  "$(post /v1/chat/completions "$(chat "$question" | jq -c --slurpfile first "$scratch/whole" --arg weather "$weather" \
    '.messages += [$first[0].choices[0].message,
      {role: "tool", tool_call_id: $first[0].choices[0].message.tool_calls[0].id, content: $weather}]')" |
    jq -c '.choices[0] | [.message.content, .finish_reason]')" "[\"$answer\",\"stop\"]"

# ---- Messages
message=$(jq -nc --arg text "$question" --argjson tools "$tools" '{max_tokens: 120, temperature: 0,
  thinking: {type: "enabled", budget_tokens: 1024}, messages: [{role: "user", content: $text}],
  tools: [$tools[].function | {name, description, input_schema: .parameters}]}')
post /v1/messages "$message" >"$scratch/message"
blocks='[["thinking","I should call get_weather."],["tool_use","get_weather",{"city":"London"}]]'
equal "Messages: a tool_use block" "$(jq -c '[[.content[] | if .type == "tool_use" then [.type, .name, .input] else
  [.type, .thinking] end], .stop_reason]' "$scratch/message")" "[$blocks,\"tool_use\"]"
equal "Messages: the same streamed" "$(post /v1/messages "$(jq -c '. + {stream: true}' <<<"$message")" | events | jq -cs '
  [[range(2) as $i | map(select(.index == $i)) | .[0].content_block as $block | [.[].delta | .thinking // .partial_json // empty] |
    join("") as $text | if $block.type == "tool_use" then [$block.type, $block.name, ($text | fromjson)] else
    [$block.type, $text] end], (.[] | select(.type == "message_delta").delta.stop_reason)]')" "[$blocks,\"tool_use\"]"
equal "Messages: the result is answered" "$(post /v1/messages "$(jq -c --slurpfile first "$scratch/message" \
  --arg weather "$weather" '.messages += [{role: "assistant", content: $first[0].content}, {role: "user", content:
    [{type: "tool_result", tool_use_id: $first[0].content[-1].id, content: $weather}]}]' <<<"$message")" |
  jq -c '[.content[-1].text, .stop_reason]')" "[\"$answer\",\"end_turn\"]"

# ---- Responses
response=$(jq -nc --arg text "$question" --argjson tools "$tools" '{max_output_tokens: 120, temperature: 0, input: $text,
  tools: [$tools[].function + {type: "function"}]}')
post /v1/responses "$response" >"$scratch/response"
items='[["reasoning","I should call get_weather."],["function_call","get_weather","{\"city\": \"London\"}"]]'
shape='[.output[] | if .type == "function_call" then [.type, .name, .arguments] else [.type, .content[0].text] end]'
equal "Responses: a function_call item" "$(jq -c "[.status, $shape]" "$scratch/response")" "[\"completed\",$items]"
post /v1/responses "$(jq -c '. + {stream: true}' <<<"$response")" | events >"$scratch/events"
equal "Responses: the same streamed" "$(jq -cs "last | [.type, (.response | $shape)]" "$scratch/events")" \
  "[\"response.completed\",$items]"
equal "Responses: events are numbered without gaps" "$(jq -cs 'map(.sequence_number) == [range(length)]' "$scratch/events")" true
equal "Responses: the arguments' deltas are the arguments" \
  "$(jq -rj 'select(.type == "response.function_call_arguments.delta").delta' "$scratch/events")" '{"city": "London"}'
equal "Responses: the result is answered" "$(post /v1/responses "$(jq -c --slurpfile first "$scratch/response" \
  --arg weather "$weather" '.input = [{role: "user", content: .input}] + $first[0].output +
    [{type: "function_call_output", call_id: $first[0].output[-1].call_id, output: $weather}]' <<<"$response")" |
  jq -c '[.output[-1].content[0].text, .status]')" "[\"$answer\",\"completed\"]"
stop_server

# ---- arguments as they come
start_server --set api.tool_stream=incremental
chat_suite incremental
equal "incremental: a call's first chunk has no arguments yet" "$(post /v1/chat/completions "$(chat "$question" '{stream: true}')" |
  events | jq -cs '[.[].choices[].delta.tool_calls[]?.function | has("name")] | [.[0], (.[1:] | any)]')" '[true,false]'
stop_server
finish
