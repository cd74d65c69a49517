#!/usr/bin/env bash
# Metrics and the protocols beside OpenAI's chat, against the tiny checkpoint: answers, streams and refusals.
. "$(dirname "$0")/lib.sh"
start_server
model=$(curl -s "$url/v1/models" | jq -r '.data[0].id')

# ---- metrics
# metric NAME [LABELS]: the sample's value.
metric() { curl -s "$url/metrics" | sed -n "s/^$1{model_name=\"$model\",engine=\"0\"${2:+,$2}} //p"; }
equal "no token was delivered before the first request" "$(metric vllm:generation_tokens_total)" 0
usage=$(post /v1/completions '{"prompt":"Once upon a time,","max_tokens":6,"ignore_eos":true}' |
  jq -r '.usage | "\(.prompt_tokens) \(.completion_tokens)"')
equal "prompt and reply are counted" "$(metric vllm:prompt_tokens_total) $(metric vllm:generation_tokens_total)" "$usage"
equal "its end is counted" "$(metric vllm:request_success_total 'finished_reason="length"')" 1
equal "its first token and the five after it are timed" \
  "$(metric vllm:time_to_first_token_seconds_count) $(metric vllm:inter_token_latency_seconds_count)" "1 5"
equal "nothing runs, waits or holds pages afterwards" \
  "$(metric vllm:num_requests_running) $(metric vllm:num_requests_waiting) $(metric vllm:kv_cache_usage_perc)" "0 0 0"
equal "every line is a comment or a sample" \
  "$(curl -s "$url/metrics" | grep -vcE '^(# (HELP|TYPE) [a-z0-9_:]+ .+|[a-z0-9_:]+\{[^}]*\} [0-9.e+-]+)$')" 0

# ---- the Messages API
# events_named: the data of named events, one JSON value a line; a name that is not its data's type becomes an error line.
events_named() {
  awk '/^event: /{name = substr($0, 8)} /^data: /{print name "\t" substr($0, 7)}' |
    jq -Rc 'split("\t") as [$name, $data] | $data | fromjson | if .type == $name then . else {type: "wrong name"} end'
}
count='{"max_tokens":400,"temperature":0,"system":"","messages":[{"role":"user","content":"Count from 1 to 20, one number per line."}]}'
chat=$(post /v1/chat/completions "$(jq -c 'del(.system)' <<<"$count")")
shown=$(jq -c '. + {thinking: {type: "enabled", budget_tokens: 1024}}' <<<"$count")
reply=$(post /v1/messages "$shown")
equal "a message has the chat's content" "$(jq -r '.content[-1] | select(.type == "text").text' <<<"$reply")" "$(seq 1 20)"
equal "and its thinking, when asked for" "$(jq -r '.content[0] | select(.type == "thinking").thinking' <<<"$reply")" \
  "$(jq -r '.choices[0].message.reasoning_content' <<<"$chat")"
equal "its kind, model, end and usage are right" \
  "$(jq -c '[.type, .role, .model, .stop_reason, .stop_sequence, .usage.input_tokens, .usage.output_tokens]' <<<"$reply")" \
  "$(jq -c '["message", "assistant", .model, "end_turn", null, .usage.prompt_tokens, .usage.completion_tokens]' <<<"$chat")"
equal "thinking is hidden otherwise" "$(post /v1/messages "$count" | jq -c '[.content[].type]')" '["text"]'
equal "count_tokens counts the same prompt" "$(post /v1/messages/count_tokens "$count" | jq -c .)" \
  "$(jq -c '{input_tokens: .usage.prompt_tokens}' <<<"$chat")"
post /v1/messages "$(jq -c '. + {stream: true}' <<<"$shown")" >"$scratch/stream"
events_named <"$scratch/stream" >"$scratch/events"
equal "a stream's events come in order" "$(jq -r .type "$scratch/events" | uniq | paste -sd' ')" \
  "message_start ping content_block_start content_block_delta content_block_stop content_block_start content_block_delta content_block_stop message_delta message_stop"
equal "the streamed text is the whole one" "$(jq -j 'select(.delta.type == "text_delta").delta.text' "$scratch/events")" \
  "$(seq 1 20)"
equal "so is the thinking" "$(jq -j 'select(.delta.type == "thinking_delta").delta.thinking' "$scratch/events")" \
  "$(jq -r '.content[0].thinking' <<<"$reply")"
equal "so are end and usage" "$(jq -c 'select(.type == "message_delta") | [.delta.stop_reason, .usage]' "$scratch/events")" \
  "$(jq -c '[.stop_reason, .usage]' <<<"$reply")"
reply=$(post /v1/messages "$(jq -c '. + {stop_sequences: ["\n7\n"]}' <<<"$count")")
equal "a stop sequence ends a message" "$(jq -c '[.content[0].text, .stop_reason, .stop_sequence]' <<<"$reply")" \
  "$(jq -nc --arg text "$(seq 1 6)" '[$text, "stop_sequence", "\n7\n"]')"
equal "max_tokens ends a message" "$(post /v1/messages "$(jq -c '. + {max_tokens: 3}' <<<"$count")" | jq -r .stop_reason)" \
  max_tokens
tool_turns='[{"role":"user","content":"What is the weather in London?"},
  {"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"get_weather","input":{"city":"London"}}]},
  {"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"15 C"}]}]}]'
equal "a tool round trip renders the chat's prompt" \
  "$(post /v1/messages/count_tokens "{\"messages\":$tool_turns,\"tools\":[{\"name\":\"get_weather\",\"input_schema\":{\"type\":\"object\"}}]}" | jq .input_tokens)" \
  "$(post /tokenize '{"messages":[{"role":"user","content":"What is the weather in London?"},
    {"role":"assistant","tool_calls":[{"id":"t1","type":"function","function":{"name":"get_weather","arguments":"{\"city\":\"London\"}"}}]},
    {"role":"tool","tool_call_id":"t1","content":"15 C"}],
    "tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object"}}}]}' | jq .count)"

# refused NAME PATH JSON PART: 400 in the Messages API's shape, with that part in the message.
refused() {
  post "$2" "$3" >/dev/null
  contains "refused: $1" "$(status) $(jq -r '[.type, .error.type, .error.message] | join(" ")' "$scratch/reply" 2>&1)" \
    "400 error invalid_request_error $4"
}
for path in /v1/messages /v1/messages/count_tokens; do
  refused "$path without JSON" $path hello "the request body is not valid JSON"
  refused "$path without messages" $path '{"max_tokens":5}' "messages is required"
  refused "$path of an unknown role" $path '{"max_tokens":5,"messages":[{"role":"wizard","content":"hi"}]}' "messages[0].role"
  refused "$path with a picture" $path \
    '{"max_tokens":5,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","data":""}}]}]}' \
    "image input is not supported by this version: messages[0].content[0]"
done
refused "a message without max_tokens" /v1/messages '{"messages":[{"role":"user","content":"hi"}]}' "max_tokens is required"
refused "a message beyond the context" /v1/messages "$(jq -c '. + {max_tokens: 9000}' <<<"$count")" \
  "input length and \`max_tokens\` exceed context limit"

# ---- the Responses API
ask='{"max_output_tokens":400,"temperature":0,"input":"Count from 1 to 20, one number per line."}'
reply=$(post /v1/responses "$ask")
equal "a response has the chat's content" \
  "$(jq -r '.output[] | select(.type == "message").content[0].text' <<<"$reply")" "$(seq 1 20)"
equal "and its reasoning" "$(jq -r '.output[] | select(.type == "reasoning").content[0].text' <<<"$reply")" \
  "$(jq -r '.choices[0].message.reasoning_content' <<<"$chat")"
equal "its kind, model, status and usage are right" \
  "$(jq -c '[.object, .model, .status, .incomplete_details, .usage.input_tokens, .usage.output_tokens, .usage.total_tokens]' <<<"$reply")" \
  "$(jq -c '["response", .model, "completed", null, .usage.prompt_tokens, .usage.completion_tokens, .usage.total_tokens]' <<<"$chat")"
post /v1/responses "$(jq -c '. + {stream: true}' <<<"$ask")" >"$scratch/stream"
events_named <"$scratch/stream" >"$scratch/events"
equal "a stream's events come in order" "$(jq -r '.type | sub("^response\\."; "")' "$scratch/events" | uniq | paste -sd' ')" \
  "created in_progress output_item.added content_part.added reasoning_text.delta reasoning_text.done content_part.done output_item.done output_item.added content_part.added output_text.delta output_text.done content_part.done output_item.done completed"
equal "they are numbered without gaps" "$(jq -s 'to_entries | all(.key == .value.sequence_number)' "$scratch/events")" true
equal "the streamed text is the whole one" \
  "$(jq -j 'select(.type == "response.output_text.delta").delta' "$scratch/events")" "$(seq 1 20)"
equal "the last event holds the whole response" \
  "$(tail -n 1 "$scratch/events" | jq -c '.response | [.status, .usage, [.output[] | [.type, .content[0].text]]]')" \
  "$(jq -c '[.status, .usage, [.output[] | [.type, .content[0].text]]]' <<<"$reply")"
equal "no [DONE] follows" "$(grep -c 'DONE' "$scratch/stream")" 0
equal "a cut response is incomplete" \
  "$(post /v1/responses "$(jq -c '. + {max_output_tokens: 3}' <<<"$ask")" | jq -c '[.status, .incomplete_details.reason]')" \
  '["incomplete","max_output_tokens"]'
reply=$(post /v1/responses '{"temperature":0,"reasoning":{"effort":"none"},"input":[{"role":"user","content":"What is 8 * 7?"}]}')
contains "effort none answers without reasoning" "$(jq -c '[.output[] | [.type, .content[0].text]]' <<<"$reply")" \
  '[["message","8 * 7 = 56'
reply=$(post /v1/responses "$(jq -c '{temperature: 0, max_output_tokens: 40, reasoning: {effort: "none"}, input: ([
    {role: "user", content: "What is 8 * 7?"}] + .output + [{role: "user", content: "What is 2 + 3?"}])}' <<<"$reply")")
contains "a response's output is taken back as input" "$(jq -r '.output[-1].content[0].text' <<<"$reply")" "2 + 3 = 5"

# refused NAME JSON PARAM: 400 naming the field.
refused() {
  post /v1/responses "$2" >/dev/null
  equal "refused: $1" "$(status) $(jq -r '[(.error.message | type), .error.param // "-"] | join(" ")' "$scratch/reply" 2>&1)" \
    "400 string $3"
}
refused "a response without JSON" hello -
refused "a response to nothing" '{}' input
refused "an item of an unknown role" '{"input":[{"role":"wizard","content":"hi"}]}' 'input[0].role'
refused "a picture" '{"input":[{"role":"user","content":[{"type":"input_image","image_url":"data:"}]}]}' 'input[0].content[0]'
refused "a stored response" '{"input":"hi","previous_response_id":"resp_1"}' previous_response_id
refused "a response beyond the context" '{"input":"hi","max_output_tokens":9000}' max_output_tokens

# ---- what reads the bodies of one protocol must survive those of all others, and everything malformed
for path in /v1/messages /v1/messages/count_tokens /v1/responses /tokenize /detokenize; do
  bad=0
  for file in tests/data/fuzz/request_json/* tests/data/malformed/request_json/*.json; do
    code=$(curl -sS -m 60 -o "$scratch/reply" -w '%{http_code}' --data-binary @"$file" "$url$path")
    case $code in 200 | 400 | 404) ;; *) bad=$((bad + 1)) && echo "    $path: $code for $file" ;; esac
  done
  equal "$path: the request corpora never give a 5xx" "$bad" 0
done
equal "the server is still well" "$(post /v1/messages "$count" | jq -r '.content[0].text')" "$(seq 1 20)"

stop_server
equal "SIGTERM ends the server with code 0" "$stop_code" 0
finish
