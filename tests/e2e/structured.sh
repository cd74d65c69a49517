#!/usr/bin/env bash
# Structured output against the tiny checkpoint (spec 40 §12): whatever is drawn, at any
# temperature, is what the request asked for.
. "$(dirname "$0")/lib.sh"
start_server

user='"messages":[{"role":"user","content":"Give me a JSON object with name Sam and age 51."}]'
# chat FIELDS: a chat reply, whole.
chat() { post /v1/chat/completions "{$user,\"max_tokens\":400,$1}"; }
# streamed FIELDS: the same from a stream, as one message.
streamed() {
  post /v1/chat/completions "{$user,\"max_tokens\":400,\"stream\":true,$1}" | events |
    jq -cs '{choices: [{message: {content: ([.[].choices[0].delta.content // empty] | join("")),
      reasoning_content: ([.[].choices[0].delta.reasoning_content // empty] | join(""))},
      finish_reason: ([.[].choices[0].finish_reason // empty] | last)}]}'
}
# follows NAME FIELDS TEST: replies, whole and streamed, end with `stop` and their content passes the jq TEST (the content
# as a string).
follows() {
  local fields=$2 test=$3
  every_draw "$1" follows_once
}
follows_once() {
  local reply
  reply=$(chat "$fields,$1")
  [ "$(jq -r ".choices[0] | .finish_reason == \"stop\" and (.message.content | $test)" <<<"$reply" 2>&1)" = true ] ||
    echo "$1: $reply"
  [[ "$1" != *'"seed":3' ]] || [ "$(streamed "$fields,$1" | jq -c '.choices[0].message.content')" = \
    "$(jq -c '.choices[0].message.content' <<<"$reply")" ] || echo "$1: the streamed reply differs"
}

schema() { echo "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"strict\":true,\"schema\":$1}}"; }

# ---- content
follows "json_schema: object of two" \
  "$(schema '{"type":"object","properties":{"name":{"type":"string","maxLength":20},"age":{"type":"integer","minimum":0,"maximum":150}},"required":["name","age"]}')" \
  'fromjson | keys == ["age","name"] and (.name | type == "string" and length <= 20) and (.age | . == floor and 0 <= . and . <= 150)'
follows "json_schema: enum, const and nesting" \
  "$(schema '{"type":"object","properties":{"kind":{"enum":["cat","dog",7,null]},"version":{"const":"v1"},"list":{"type":"array","items":{"type":"boolean"},"minItems":1,"maxItems":3}},"required":["kind","version","list"]}')" \
  'fromjson | (.kind | IN("cat","dog",7,null)) and .version == "v1" and (.list | length >= 1 and length <= 3 and all(type == "boolean"))'
# The model would nest for ever: it is pushed towards the end of the list.
null=$(post /tokenize '{"prompt":" null"}' | jq '.tokens[0]')
follows "json_schema: recursion by \$ref" \
  "\"logit_bias\":{\"$null\":10},$(schema '{"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"v":{"type":"integer","minimum":0,"maximum":9},"next":{"anyOf":[{"type":"null"},{"$ref":"#/$defs/node"}]}},"required":["v","next"]}}}')" \
  'fromjson | [recurse(.next; . != null)] | all((.v | . >= 0 and . <= 9) and has("next"))'
follows "json_schema as text, compact" \
  '"structured_outputs":{"json":"{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"maximum\":99,\"minimum\":10},\"minItems\":2,\"maxItems\":2}","disable_any_whitespace":true}' \
  'test("^\\[[1-9][0-9], [1-9][0-9]\\]$")'
follows "choice" '"structured_outputs":{"choice":["north","south","south-west"]}' 'IN("north","south","south-west")'
follows "guided_choice" '"guided_choice":["yes","no"]' 'IN("yes","no")'
follows "regex" '"structured_outputs":{"regex":"[A-Z][a-z]{2,8} [0-9]{4}"}' 'test("^[A-Z][a-z]{2,8} [0-9]{4}$")'
follows "guided_regex" '"guided_regex":"(ab|c){3}x?"' 'test("^(ab|c){3}x?$")'
follows "min_tokens and ignore_eos yield to the end of the grammar" \
  '"guided_regex":"a{3}","min_tokens":30,"ignore_eos":true' '. == "aaa"'

# Free text inside JSON may run to the limit; what ends by itself is an object.
bad=
for seed in 1 2 3 4; do
  reply=$(chat "\"response_format\":{\"type\":\"json_object\"},$off,\"temperature\":0.7,\"seed\":$seed")
  jq -e '.choices[0] | if .finish_reason == "stop" then .message.content | fromjson | type == "object"
    else .message.content | startswith("{") end' >/dev/null 2>&1 <<<"$reply" || bad+=$reply
done
equal "json_object" "$bad" ""
reply=$(chat "\"response_format\":{\"type\":\"json_object\"},\"temperature\":0,\"chat_template_kwargs\":{\"enable_thinking\":true}")
equal "json_object as the model writes it after its reasoning" \
  "$(jq -c '[.choices[0].message.content, .choices[0].finish_reason]' <<<"$reply")" '["{\"name\": \"Sam\", \"age\": 51}","stop"]'
equal "its reasoning is not constrained" "$(jq -r '.choices[0].message.reasoning_content' <<<"$reply")" \
  "The user wants JSON with name and age."
equal "a grammar's last token ends the reply" "$(chat "\"guided_choice\":[\"a\"],$off" | jq -c '.usage.completion_tokens')" 1
equal "length cuts a constrained reply" \
  "$(chat "\"guided_regex\":\"a{300}\",\"max_tokens\":3,$off" | jq -c '.choices[0].finish_reason')" '"length"'
equal "the choices of n each follow the grammar" \
  "$(chat "\"n\":4,\"temperature\":1.5,\"seed\":5,\"guided_choice\":[\"yes\",\"no\"],$off" | jq '[.choices[].message.content | IN("yes","no")] | all and length == 4')" true
equal "logprobs are those among the allowed" \
  "$(chat "\"guided_choice\":[\"a\",\"b\"],$off,\"logprobs\":true,\"top_logprobs\":5" |
    jq -c '.choices[0].logprobs.content[0].top_logprobs | [length, ([.[].logprob | exp] | add * 1000 | round)]')" '[2,1000]'
equal "completions: from the first token" \
  "$(post /v1/completions '{"prompt":"Once upon a time","max_tokens":50,"guided_regex":"[0-9]{3}-[0-9]{2}"}' |
    jq -r '.choices[0].text | test("^[0-9]{3}-[0-9]{2}$")')" true
equal "Responses: text.format" \
  "$(post /v1/responses '{"input":"hi","max_output_tokens":400,"thinking":false,"text":{"format":{"type":"json_schema","name":"n","schema":{"enum":["e","f"]}}}}' |
    jq -r '.output[] | select(.type == "message") | .content[0].text | fromjson | IN("e","f")')" true
equal "Messages: output_format" \
  "$(post /v1/messages '{"messages":[{"role":"user","content":"hi"}],"max_tokens":400,"thinking":{"type":"disabled"},"output_format":{"type":"json_schema","schema":{"enum":["e","f"]}}}' |
    jq -r '.content[0].text | fromjson | IN("e","f")')" true

# ---- refusals
refused() {
  post /v1/chat/completions "{$user,$2}" >"$scratch/refused"
  equal "refused: $1" "$(status) $(jq -r '.error.param + " " + .error.message' "$scratch/refused")" "400 $3"
}
refused "an unsupported keyword" "$(schema '{"type":"object","properties":{"a":{"type":"array","uniqueItems":true}}}')" \
  "response_format.json_schema.schema response_format.json_schema.schema: schema: 'uniqueItems' is not supported"
refused "json_schema without one" '"response_format":{"type":"json_schema"}' \
  "response_format When response_format type is 'json_schema', the 'json_schema' field must be provided."
refused "two constraints" '"structured_outputs":{"regex":"a","choice":["b"]}' \
  "structured_outputs.choice You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice')."

# strict PARAMETERS: two functions, the second of them strict.
strict() {
  echo '"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g","strict":true,"parameters":'"$1"'}}]'
}
refused "a strict function that refers to nothing" "$(strict '{"$ref":"#/nowhere"}')" \
  "tools[1].function.parameters tools[1].function.parameters: schema: '\$ref' points to nothing"
even=$(strict '{"properties":{"n":{"type":"integer","multipleOf":2},"unit":{"enum":["C","F"]}},"required":["n","unit"]}')
chat "$even,$off,\"max_tokens\":8" >"$scratch/even"
equal "an unsupported keyword of a strict function is no refusal" "$(status)" 200
contains "the log names it" "$(cat "$scratch/server.log")" \
  "[info] tools: calls of \"g\" are not held to all of its schema: argument \"n\": schema: 'multipleOf' is not supported"
strict_once() {
  local reply
  reply=$(chat "$even,\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}},$1")
  [ "$(jq -r '.choices[0].message.tool_calls | length == 1 and (.[0].function.arguments | fromjson |
    keys == ["n","unit"] and (.n | . == floor) and (.unit | IN("C","F")))' <<<"$reply" 2>&1)" = true ] || echo "$1: $reply"
}
every_draw "the type of such an argument, and the other ones, hold" strict_once
refused "patterns without end" "\"guided_json\":$(jq -nc '{anyOf: [range(15000) | {const: "b", pattern: "(a{9999}){19}"}]}')" \
  "guided_json guided_json: grammar: too large (more work than a compilation may cost)"

# ---- large lists
items=$(jq -nc '[range(30000) | "item \(. * 7919)"]')
equal "one of 30,000 choices" \
  "$(chat "\"guided_choice\":$items,$off" | jq -r '.choices[0].message.content | test("^item [0-9]+$")')" true
equal "one of an enum of 30,000" \
  "$(chat "$(schema "{\"enum\":$items}"),$off" | jq -r '.choices[0].message.content | fromjson | test("^item [0-9]+$")')" true

# ---- reasoning budget
equal "a budget of 0 reasons not at all" \
  "$(chat '"temperature":0,"thinking_token_budget":0,"max_tokens":20' | jq -c '[.usage.completion_tokens_details.reasoning_tokens, (.choices[0].message.content | length > 0)]')" '[0,true]'
equal "a budget of 3 reasons for three tokens" \
  "$(chat '"temperature":0,"thinking_token_budget":3,"max_tokens":20' | jq -c '.usage.completion_tokens_details.reasoning_tokens')" 3
equal "no budget changes nothing" \
  "$(chat '"temperature":0,"thinking_token_budget":500' | jq -r '.choices[0].message.reasoning_content')" "The user wants JSON with name and age."
refused "a format beside a named function" \
  '"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"f"}},"guided_json":{}' \
  "guided_json guided_json cannot be combined with a tool_choice that names a function"

stop_server
equal "the server ends with code 0" "$stop_code" 0
finish
