# Tool calls of every shape, whole and streamed: without arguments, two, after text, inside reasoning; and what only looks
# like a call stays text. The model is made to write each token.
start_server
tools='{tools: [{type: "function", function: {name: "time", parameters: {type: "object", properties: {}}}},
  {type: "function", function: {name: "count", parameters: {type: "object", properties: {London: {type: "string"}}}}}]}'
off='{chat_template_kwargs: {enable_thinking: false}}'
# shape NAME TOKENS JSON EXPECTED: EXPECTED is [reasoning, content, calls, finish].
shape() {
  chat_both "14.3 $1" "$(user "Hello" "$(jq -nc --argjson script "$(scripted "$2")" "$tools + \$script + $3")")"
  equal "14.3 $1: parts" "$(jq -c '[.reasoning, .content, (.calls | map(.arguments |= fromjson)), .finish]' <<<"$parts")" "$4"
}
call='{"name":"time","arguments":{}}'
shape "a call without arguments" '["<tool_call>","time","</tool_call>","<|observation|>"]' "$off" \
  "[\"\",\"\",[$call],\"tool_calls\"]"
equal "14.3 its content is null and its id is there" \
  "$(jq -c '.choices[0].message | [.content, (.tool_calls[0].id | length > 5), .tool_calls[0].type]' "$scratch/whole")" \
  '[null,true,"function"]'
equal "14.3 the streamed call's first delta has id, type, name and index" \
  "$(events <"$scratch/stream" | jq -c '.choices[]?.delta.tool_calls[]? | select(.id) | [.index, .type, .function.name]')" \
  '[0,"function","time"]'
shape "a call after reasoning" '["x","</think>","<tool_call>","time","</tool_call>","<|observation|>"]' '{}' \
  "[\"x\",\"\",[$call],\"tool_calls\"]"
shape "a call after text" '["x","<tool_call>","time","</tool_call>","<|observation|>"]' "$off" \
  "[\"\",\"x\",[$call],\"tool_calls\"]"
shape "two calls after text" \
  '["x","<tool_call>","time","</tool_call>","<tool_call>","count","<arg_key>","London","</arg_key>","<arg_value>","7","</arg_value>","</tool_call>","<|observation|>"]' \
  "$off" "[\"\",\"x\",[$call,{\"name\":\"count\",\"arguments\":{\"London\":\"7\"}}],\"tool_calls\"]"
shape "a call inside reasoning that ends the reply" '["x","<tool_call>","time","</tool_call>","<|observation|>"]' '{}' \
  "[\"x\",\"\",[$call],\"tool_calls\"]"
equal "14.3 a mention of <tool_call> in reasoning is no call" \
  "$(post /v1/chat/completions "$(user "Hello" "$(jq -nc --argjson script "$(scripted '["x","<tool_call>","count","</think>","time","<|user|>"]')" "$tools + \$script")")" |
    whole_parts | jq -c '[.calls, .finish]')" '[[],"stop"]'
# Without tools in the request the tags are text, not calls.
chat_both "14.3 a call without tools" "$(user "Hello" "$(jq -nc --argjson script "$(scripted '["<tool_call>","time","</tool_call>","<|observation|>"]')" "\$script + $off")")"
equal "14.3 a call without tools is no call" "$(jq -c '[.calls, .finish]' <<<"$parts")" '[[],"stop"]'
# The model's own call, as the checkpoint was trained.
chat_both "14.3 the model's own call" "$(user "What is the weather in London?" '{tools: [{type: "function", function: {
  name: "get_weather", description: "Get the current weather for a city", parameters: {type: "object", properties: {
  city: {type: "string", description: "City name"}, unit: {type: "string", enum: ["celsius", "fahrenheit"]}}, required: ["city"]}}}]}')"
equal "14.3 the model's own call: parts" "$(jq -c '[(.calls | map(.arguments |= fromjson)), .finish]' <<<"$parts")" \
  '[[{"name":"get_weather","arguments":{"city":"London"}}],"tool_calls"]'
# A call cut by max_tokens ends with length.
chat_both "14.3 a cut call" "$(user "Hello" "$(jq -nc --argjson script "$(scripted '["<tool_call>","time","</tool_call>","<|observation|>"]')" "$tools + \$script + $off + {max_tokens: 2}")")"
equal "14.3 a cut call ends with length" "$(part finish)" length
