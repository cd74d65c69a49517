# required, a named function, allowed_tools and none, with reasoning and without, greedy and hot, whole and streamed; and a
# reply that finishes with tool_calls always has some.
start_server
tools='{tools: [{type: "function", function: {name: "time", parameters: {type: "object", properties: {}}}},
  {type: "function", function: {name: "count", parameters: {type: "object", properties: {London: {enum: ["a", "b"]}}, required: ["London"]}}}]}'
modes=('{chat_template_kwargs: {enable_thinking: true}, thinking_token_budget: 40}' '{chat_template_kwargs: {enable_thinking: false}}')
# choice NAME JSON TEST FINISH: replies to these fields end with FINISH and their calls pass the jq TEST.
choice() {
  local mode draw
  for mode in "${modes[@]}"; do
    for draw in '{}' '{temperature: 1.5, top_p: 1, seed: 1}' '{temperature: 1.5, top_p: 1, seed: 2}'; do
      chat_both "14.14 $1" "$(user "What is the weather in London?" "$(jq -nc "$tools + $2 + $mode + $draw")")"
      equal "14.14 $1: calls" "$(jq -c "[.finish, (.calls | map(.arguments |= fromjson) | $3)]" <<<"$parts")" "[\"$4\",true]"
    done
  done
}
fits='all(if .name == "count" then .arguments.London | IN("a", "b") else .arguments == {} end)'
choice required '{tool_choice: "required", parallel_tool_calls: false}' "length == 1 and $fits" tool_calls
choice "a named function" '{tool_choice: {type: "function", function: {name: "count"}}}' \
  "length == 1 and .[0].name == \"count\" and $fits" stop
choice "required among allowed tools" \
  '{tool_choice: {type: "allowed_tools", allowed_tools: {mode: "required", tools: [{type: "function", function: {name: "time"}}]}}, parallel_tool_calls: false}' \
  'map(.name) == ["time"]' tool_calls

# A call that the model is made to write.
call='["<tool_call>","time","</tool_call>","<|observation|>"]'
# written NAME JSON EXPECTED: [content, names, finish]
written() {
  chat_both "14.14 $1" "$(user "Hello" "$(jq -nc "$(scripted "$call") + $tools + ${modes[1]} + $2")")"
  equal "14.14 $1: parts" "$(jq -c '[.content, (.calls | map(.name)), .finish]' <<<"$parts")" "$3"
}
allow() { echo "{tool_choice: {type: \"allowed_tools\", mode: \"auto\", tools: [{type: \"function\", name: \"$1\"}]}}"; }
written "auto: a call" '{tool_choice: "auto"}' '["",["time"],"tool_calls"]'
written "none: the text of a call" '{tool_choice: "none"}' '["<tool_call>time</tool_call>",[],"stop"]'
written "allowed_tools: a call of such a tool" "$(allow time)" '["",["time"],"tool_calls"]'
written "allowed_tools: the text of another call" "$(allow count)" '["<tool_call>time</tool_call>",[],"stop"]'
# Cut before the call is complete.
for mode in "${modes[@]}"; do
  for words in required auto; do
    chat_both "14.14 $words, cut" "$(user "What is the weather in London?" "$(jq -nc "$tools + $mode + {tool_choice: \"$words\", max_tokens: 2}")")"
    equal "14.14 $words, cut: no calls, no finish that speaks of them" "$(jq -c '[.calls, .finish]' <<<"$parts")" '[[],"length"]'
  done
done
refused "14.14 a function that is not offered" /v1/chat/completions \
  "$(user "Hello" "$(jq -nc "$tools + {tool_choice: {type: \"function\", function: {name: \"none\"}}}")")" tool_choice.function.name
