# JSON schemas, with reasoning and without, greedy and hot, whole and streamed: the content follows the schema, the
# reasoning stays apart, and what is not supported is refused by its name.
start_server
# format SCHEMA: fields that ask for it.
format() { jq -nc --argjson schema "$1" '{response_format: {type: "json_schema", json_schema: {name: "n", strict: true, $schema}}}'; }
# follows NAME SCHEMA TEST [JSON]: the content, parsed, passes the jq TEST; JSON: more fields.
follows() {
  local mode draw
  for mode in '{chat_template_kwargs: {enable_thinking: true}, thinking_token_budget: 40}' \
    '{chat_template_kwargs: {enable_thinking: false}}'; do
    for draw in '{}' '{temperature: 1.5, top_p: 1, seed: 1}'; do
      chat_both "14.13 $1" "$(user "Give me a JSON object with name Sam and age 51." "$(jq -nc "$(format "$2") + $mode + $draw + ${4:-{\}}")")"
      equal "14.13 $1: the content follows it" \
        "$(jq -c "[(.content | fromjson | $3), .finish, (.reasoning != \"\")]" <<<"$parts" 2>&1)" \
        "[true,\"stop\",$([[ $mode == *true* ]] && echo true || echo false)]"
    done
  done
}
follows "an object" \
  '{"type":"object","properties":{"ok":{"type":"boolean"},"age":{"type":"integer","minimum":0,"maximum":150}},"required":["ok","age"],"additionalProperties":false}' \
  'keys == ["age","ok"] and (.ok | type == "boolean") and (.age | . == floor and 0 <= . and . <= 150)'
follows "enum and const" \
  '{"type":"object","properties":{"kind":{"enum":["cat",7,null]},"version":{"const":"v1"}},"required":["kind","version"]}' \
  '(.kind | IN("cat",7,null)) and .version == "v1"'
# The model would nest for ever: it is pushed towards the end of the list.
null=$(post /tokenize '{"prompt":" null"}' | jq '.tokens[0]')
follows 'recursion by $ref' \
  '{"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"v":{"type":"integer","minimum":0,"maximum":9},"next":{"anyOf":[{"type":"null"},{"$ref":"#/$defs/node"}]}},"required":["v","next"]}}}' \
  '[recurse(.next; . != null)] | all((.v | . >= 0 and . <= 9) and has("next"))' "{logit_bias: {\"$null\": 10}}"
for keyword in multipleOf uniqueItems contains patternProperties propertyNames if not dependentRequired unevaluatedItems; do
  refused "14.13 $keyword is not supported" /v1/chat/completions \
    "$(user "Hello" "$(format "$(jq -nc --arg keyword "$keyword" '{type: "object", properties: {a: {($keyword): {}}}}')")")" \
    response_format.json_schema.schema "'$keyword' is not supported"
done
