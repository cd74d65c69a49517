# Arguments that look like something else arrive as the model wrote them: "007" and JSON as text where the parameter is a
# string, numbers as numbers where it is one, closing tags inside a value.
start_server
off='{chat_template_kwargs: {enable_thinking: false}}'
# argument NAME SCHEMA TOKENS EXPECTED: TOKENS are those of the value, EXPECTED is the arguments object.
argument() {
  local script
  script=$(scripted "$(jq -nc --argjson value "$3" '["<tool_call>", "time", "<arg_key>", "x", "</arg_key>", "<arg_value>"] +
    $value + ["</arg_value>", "</tool_call>", "<|observation|>"]')")
  chat_both "14.4 $1" "$(user "Hello" "$(jq -nc --argjson script "$script" --argjson schema "$2" \
    "\$script + $off + {tools: [{type: \"function\", function: {name: \"time\", parameters: {type: \"object\", properties: {x: \$schema}}}}]}")")"
  equal "14.4 $1: arguments" "$(jq -c '.calls | map(.arguments | fromjson)' <<<"$parts")" "[$4]"
}
string='{"type":"string"}'
argument "a string of digits keeps its zeros" "$string" '["00","7"]' '{"x":"007"}'
argument "a string that is JSON" "$string" '["{","}"]' '{"x":"{}"}'
argument "lines with a trailing newline" "$string" '["time","\n"]' '{"x":"time\n"}'
argument "the text null" "$string" '["n","ull"]' '{"x":"null"}'
argument "a string with <arg_key> in it" "$string" '["time","<think>","count"]' '{"x":"time<think>count"}'
argument "an integer" '{"type":"integer"}' '["7"]' '{"x":7}'
argument "a boolean" '{"type":"boolean"}' '["tr","ue"]' '{"x":true}'
argument "an integer that is none stays text" '{"type":"integer"}' '["time"]' '{"x":"time"}'
argument "an object" '{"type":"object"}' '["{","}"]' '{"x":{}}'
argument "no schema means text" '{}' '["7"]' '{"x":"7"}'
