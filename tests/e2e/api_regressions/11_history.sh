# Histories as clients really send them: each is served, and its prompt is the one of spec 40 §2.
start_server
# prompt_of JSON: the rendered prompt as text.
prompt_of() {
  post /tokenize "$1" >"$scratch/tokens"
  post /detokenize "$(jq -c '{tokens}' "$scratch/tokens")" | jq -r '.prompt'
}
# history NAME MESSAGES EXPECTED [JSON]: EXPECTED is what follows the effort line.
history() {
  local request
  request=$(jq -nc --argjson messages "$2" "{messages: \$messages, max_tokens: 2, temperature: 0} + ${4:-{\}}")
  equal "14.11 $1: prompt" "$(prompt_of "$request")" "[gMASK]<sop><|system|>Reasoning Effort: Max$3"
  post /v1/chat/completions "$request" >/dev/null
  equal "14.11 $1: served" "$(status)" 200
}
call() { printf '{"id":"%s","type":"function","function":{"name":"%s","arguments":%s}}' "$1" "$2" "$3"; }
turn='<|assistant|><think>'

history "null content" '[{"role":"user","content":null},{"role":"assistant","content":null},{"role":"user","content":"q"}]' \
  "<|user|><|assistant|><think></think><|user|>q$turn"
history "missing content" '[{"role":"user"},{"role":"user","content":"q"}]' "<|user|><|user|>q$turn"
for arguments in '"{\"city\":\"Bonn\",\"days\":3}"' '{"city":"Bonn","days":3}'; do
  history "arguments ${arguments:0:6}" "[{\"role\":\"user\",\"content\":\"q\"},
    {\"role\":\"assistant\",\"content\":null,\"tool_calls\":[$(call c1 f "$arguments")]},
    {\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"r\"}]" \
    "<|user|>q<|assistant|><think></think><tool_call>f<arg_key>city</arg_key><arg_value>Bonn</arg_value><arg_key>days</arg_key><arg_value>3</arg_value></tool_call><|observation|><tool_response>r</tool_response>$turn"
done
for arguments in '"{\"city\": "' '"[1,2]"' '"null"' '""' null; do
  history "invalid arguments $arguments" "[{\"role\":\"user\",\"content\":\"q\"},
    {\"role\":\"assistant\",\"tool_calls\":[$(call c1 f "$arguments")]},{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"r\"}]" \
    "<|user|>q<|assistant|><think></think><tool_call>f</tool_call><|observation|><tool_response>r</tool_response>$turn"
done
both="$(call a f '"{}"'),$(call b g '"{}"')"
calls='<|user|>q<|assistant|><think></think><tool_call>f</tool_call><tool_call>g</tool_call><|observation|>'
history "results out of order" "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"tool_calls\":[$both]},
  {\"role\":\"tool\",\"tool_call_id\":\"b\",\"content\":\"B\"},{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"A\"}]" \
  "$calls<tool_response>A</tool_response><tool_response>B</tool_response>$turn"
history "missing ids" "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"tool_calls\":[$both]},
  {\"role\":\"tool\",\"tool_call_id\":\"b\",\"content\":\"B\"},{\"role\":\"tool\",\"content\":\"A\"}]" \
  "$calls<tool_response>B</tool_response><tool_response>A</tool_response>$turn"
history "a call without an id" '[{"role":"user","content":"q"},
  {"role":"assistant","tool_calls":[{"type":"function","function":{"name":"f","arguments":"{}"}}]},
  {"role":"tool","tool_call_id":"x","content":"r"}]' \
  "<|user|>q<|assistant|><think></think><tool_call>f</tool_call><|observation|><tool_response>r</tool_response>$turn"
history "a tool result without a call" '[{"role":"user","content":"q"},{"role":"tool","tool_call_id":"x","content":"r"}]' \
  "<|user|>q<|observation|><tool_response>r</tool_response>$turn"
history "numbers and objects as tool results" "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"tool_calls\":[$both]},
  {\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":360},{\"role\":\"tool\",\"tool_call_id\":\"b\",\"content\":{\"x\":[1,null]}}]" \
  "$calls<tool_response>360</tool_response><tool_response>{\"x\": [1, null]}</tool_response>$turn"
history "the developer role" '[{"role":"developer","content":"S"},{"role":"user","content":"q"}]' "<|system|>S<|user|>q$turn"
history "the function role" '[{"role":"user","content":"q"},{"role":"function","name":"f","content":"r"}]' \
  "<|user|>q<|observation|><tool_response>r</tool_response>$turn"
for field in reasoning reasoning_content; do
  history "earlier $field" "[{\"role\":\"user\",\"content\":\"q\"},
    {\"role\":\"assistant\",\"content\":\"4\",\"$field\":\"R1\"},{\"role\":\"user\",\"content\":\"again\"}]" \
    "<|user|>q<|assistant|><think>R1</think>4<|user|>again$turn"
  history "earlier $field, cleared" "[{\"role\":\"user\",\"content\":\"q\"},
    {\"role\":\"assistant\",\"content\":\"4\",\"$field\":\"R1\"},{\"role\":\"user\",\"content\":\"again\"}]" \
    "<|user|>q<|assistant|><think></think>4<|user|>again$turn" '{chat_template_kwargs: {clear_thinking: true}}'
done
history "inline think tags" '[{"role":"user","content":"q"},
  {"role":"assistant","content":"x<think>A<think>B</think>C</think> D "},{"role":"user","content":"again"}]' \
  "<|user|>q<|assistant|><think>B</think>D<|user|>again$turn"
history "think tags beside reasoning" '[{"role":"user","content":"q"},
  {"role":"assistant","reasoning_content":"","content":"<think>X</think>a"},{"role":"user","content":"again"}]' \
  "<|user|>q<|assistant|><think></think><think>X</think>a<|user|>again$turn"
history "parts of text" '[{"role":"user","content":[{"type":"text","text":"a"},"b",{"type":"input_text","text":"c"}]}]' \
  "<|user|>abc$turn"

picture='{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}}'
refused "14.11 an image" /v1/chat/completions \
  "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"see\"},$picture]}]}" \
  'messages[0].content[1]' "image and video input is not supported"
refused "14.11 an image in a tool result" /v1/chat/completions \
  "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"tool_calls\":[$both]},
    {\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":[$picture]}]}" 'messages[2].content[0]' "image and video input is not supported"
refused "14.11 an unknown role" /v1/chat/completions '{"messages":[{"role":"wizard","content":"q"}]}' 'messages[0].role'
refused "14.11 an unknown part" /v1/chat/completions '{"messages":[{"role":"user","content":[{"type":"smell"}]}]}' \
  'messages[0].content[0].type'
