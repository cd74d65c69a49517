#!/usr/bin/env bash
# Tool calls that a request demands or constrains, against the tiny checkpoint (spec 40 §4.5, §12.4): whatever is drawn,
# at any temperature, with reasoning and without, there is a call and it fits its schema.
. "$(dirname "$0")/lib.sh"
start_server

user='"messages":[{"role":"user","content":"What is the weather in London?"}]'
chat() { post /v1/chat/completions "{$user,\"max_tokens\":400,$1}"; }

tools='"tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"enum":["London","Paris"]},"days":{"type":"integer","minimum":1,"maximum":9}},"required":["city"]}}},
  {"type":"function","function":{"name":"get_time","parameters":{"type":"object","properties":{}}}}]'
call_ok='(.function.arguments | fromjson) as $a | if .function.name == "get_weather" then ($a.city | IN("London","Paris")) and ($a.days // 1 | IN(range(1;10)))
  else .function.name == "get_time" and $a == {} end'
# calls NAME FIELDS TEST FINISH: replies are calls alone, their list passes the jq TEST, and they end with FINISH.
calls() {
  local fields=$2 test=$3 finish=$4
  every_draw "$1" calls_once
}
calls_once() {
  local reply
  reply=$(chat "$tools,$fields,$1")
  [ "$(jq -r ".choices[0] | .finish_reason == \"$finish\" and .message.content == null and
    (.message.tool_calls | length > 0 and all($call_ok) and ($test))" <<<"$reply" 2>&1)" = true ] || echo "$1: $reply"
}
calls "required: one call, not parallel" '"tool_choice":"required","parallel_tool_calls":false' 'length == 1' tool_calls
calls "a named function" '"tool_choice":{"type":"function","function":{"name":"get_time"}}' \
  'length == 1 and .[0].function.name == "get_time"' stop
calls "required among allowed tools" '"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[{"type":"function","function":{"name":"get_weather"}}]}},"parallel_tool_calls":false' \
  '.[0].function.name == "get_weather"' tool_calls
for mode in "$on" "$off"; do
  for seed in 1 2; do
    fields="$tools,\"tool_choice\":\"required\",\"parallel_tool_calls\":false,\"temperature\":1.5,\"top_p\":1,\"seed\":$seed,$mode"
    equal "the same call as a stream, seed $seed" \
      "$(chat "$fields,\"stream\":true" | events | jq -cs '[([.[].choices[0].delta.tool_calls[]?.function | .name // empty, .arguments // empty] | join(" ")),
        ([.[].choices[0].finish_reason // empty] | last)]')" \
      "$(chat "$fields" | jq -c '[(.choices[0].message.tool_calls[0].function | .name + " " + .arguments), .choices[0].finish_reason]')"
  done
done
# Calls may follow calls until the limit.
reply=$(chat "$tools,\"tool_choice\":\"required\",\"temperature\":0,$off")
equal "required: calls as the model likes" "$(jq -r ".choices[0].message.tool_calls | length > 0 and all($call_ok)" <<<"$reply")" true
bad=
for seed in 1 2 3 4 5 6; do
  reply=$(chat "$tools,\"guided_json\":{\"type\":\"object\",\"properties\":{\"ok\":{\"type\":\"boolean\"}},\"required\":[\"ok\"]},\"parallel_tool_calls\":false,\"temperature\":1.5,\"top_p\":1,\"seed\":$seed,$off")
  jq -e ".choices[0] | if .message.tool_calls then (.message.tool_calls | length == 1 and all($call_ok))
    else (.message.content | fromjson | .ok | type == \"boolean\") end" >/dev/null 2>&1 <<<"$reply" || bad+=$reply
done
equal "tools beside a format: one or the other" "$bad" ""

# story: a greedy reply that calls nothing.
story() {
  post /v1/chat/completions "{\"messages\":[{\"role\":\"user\",\"content\":\"Tell me a story about a goat.\"}],\"max_tokens\":60,\"temperature\":0,$tools,$off}" |
    jq -c '.choices[0] | [.message.content, .message.tool_calls]'
}
free=$(story)
equal "a reply without calls" "$(jq -c '[(.[0] | length > 0), .[1]]' <<<"$free")" "[true,null]"
stop_server
equal "the server ends with code 0" "$stop_code" 0

start_server --set api.tool_grammar=true
free_once() {
  local reply
  reply=$(chat "$tools,$1")
  # Names and keys are the request's, values need not be there.
  [ "$(jq -r '.choices | length == 1 and (.[0].message.tool_calls // [] | all(.function.name as $name |
    (.function.arguments | fromjson | keys) as $keys |
    if $name == "get_weather" then $keys - ["city", "days"] == [] else $name == "get_time" and $keys == [] end))' <<<"$reply" 2>&1)" = true ] ||
    echo "$1: $reply"
  jq -r '.choices[]?.message.tool_calls[]?.function.name' <<<"$reply" >>"$scratch/called"
}
every_draw "api.tool_grammar: calls of the model's own accord" free_once
equal "and there are some" "$([ -s "$scratch/called" ] && echo yes)" yes
equal "api.tool_grammar: a reply without calls stays as it is" "$(story)" "$free"
stop_server
finish
