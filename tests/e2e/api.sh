#!/usr/bin/env bash
# The HTTP routes against the tiny checkpoint: answers, streams and refusals.
. "$(dirname "$0")/lib.sh"
start_server

# ---- small routes
equal "GET /health answers 200" "$(curl -s -o "$scratch/reply" -w '%{http_code}' "$url/health")" 200
equal "GET /v1/models names the served model" \
  "$(curl -s "$url/v1/models" | jq -c '[.object, .data[0].object, .data[0].max_model_len]')" '["list","model",8192]'
model=$(curl -s "$url/v1/models" | jq -r '.data[0].id')
equal "an unknown path answers 404 in JSON" \
  "$(curl -s -o "$scratch/reply" -w '%{http_code}' "$url/no/such/path") $(jq -r '.error | type' "$scratch/reply")" \
  "404 object"
equal "a wrong method answers 405" "$(curl -s -o "$scratch/reply" -w '%{http_code}' "$url/v1/chat/completions")" 405

# ---- chat, streamed
count_request='{"messages":[{"role":"user","content":"Count from 1 to 20, one number per line."}],"temperature":0}'
expected_count=$(seq 1 20)
post /v1/chat/completions "$(jq -c '. + {stream: true, stream_options: {include_usage: true}}' <<<"$count_request")" \
  >"$scratch/stream"
equal "the streamed count has status 200" "$(status)" 200
events <"$scratch/stream" >"$scratch/events"
content=$(jq -j '.choices[]?.delta.content // empty' "$scratch/events")
reasoning=$(jq -j '.choices[]?.delta.reasoning_content // empty' "$scratch/events")
equal "the streamed content counts from 1 to 20" "$content" "$expected_count"
equal "the streamed reasoning is apart and not empty" "$([ -n "$reasoning" ] && echo yes)" yes
equal "no marker reaches the client" "$(grep -c '</\?think>' "$scratch/stream")" 0
equal "no delta carries reasoning and content at once" \
  "$(jq -c 'select(.choices[]?.delta | ((.reasoning_content // "") != "") and ((.content // "") != ""))' "$scratch/events")" ""
equal "the stream is cut in many deltas" \
  "$([ "$(jq -c 'select((.choices[]?.delta.content // "") != "")' "$scratch/events" | wc -l)" -ge 10 ] && echo yes)" yes
equal "exactly one chunk carries a finish reason: stop" \
  "$(jq -r '.choices[]?.finish_reason // empty' "$scratch/events")" stop
equal "the stream ends with [DONE]" "$(grep '^data:' "$scratch/stream" | tail -n 1)" "data: [DONE]"
equal "all chunks share one id, object and model" \
  "$(jq -c '[.id, .object, .model]' "$scratch/events" | sort -u | wc -l)" 1
equal "the last chunk reports usage" \
  "$(tail -n 1 "$scratch/events" |
    jq -c '[.choices, .usage.total_tokens == .usage.prompt_tokens + .usage.completion_tokens]')" '[[],true]'
streamed_usage=$(tail -n 1 "$scratch/events" | jq -c '[.usage.prompt_tokens, .usage.completion_tokens]')

# ---- chat, whole
reply=$(post /v1/chat/completions "$count_request")
equal "the whole reply has the stream's content" "$(jq -r '.choices[0].message.content' <<<"$reply")" "$content"
equal "the whole reply has the stream's reasoning" \
  "$(jq -r '.choices[0].message.reasoning_content' <<<"$reply")" "$reasoning"
equal "the whole reply has the stream's usage" \
  "$(jq -c '[.usage.prompt_tokens, .usage.completion_tokens]' <<<"$reply")" "$streamed_usage"
equal "the whole reply has its object, model and finish reason" \
  "$(jq -c '[.object, .model, .choices[0].finish_reason, .choices[0].message.role]' <<<"$reply")" \
  "[\"chat.completion\",\"$model\",\"stop\",\"assistant\"]"

reply=$(post /v1/chat/completions '{"messages":[{"role":"user","content":"What is 8 * 7?"}],"temperature":0,
  "chat_template_kwargs":{"enable_thinking":false}}')
contains "thinking off answers without reasoning" \
  "$(jq -c '[.choices[0].message.reasoning_content, .choices[0].message.content]' <<<"$reply")" '[null,"8 * 7 = 56'

reply=$(post /v1/chat/completions "$(jq -c '. + {max_tokens: 3}' <<<"$count_request")")
equal "max_tokens ends with length" "$(jq -c '[.choices[0].finish_reason, .usage.completion_tokens]' <<<"$reply")" '["length",3]'

reply=$(post /v1/chat/completions "$(jq -c '. + {stop: ["\n7\n", "never"]}' <<<"$count_request")")
equal "a stop string cuts the content before it" "$(jq -r '.choices[0].message.content' <<<"$reply")" "$(seq 1 6)"
equal "the stop string is reported" \
  "$(jq -c '[.choices[0].finish_reason, .choices[0].stop_reason]' <<<"$reply")" '["stop","\n7\n"]'

# ---- seeded sampling
seeded='{"prompt":"Once upon a time,","max_tokens":24,"temperature":1.2,"top_p":0.98,"top_k":50,"min_p":0.001,"seed":'
first=$(post /v1/completions "${seeded}7}" | jq -r '.choices[0].text')
equal "one seed gives one text" "$(post /v1/completions "${seeded}7}" | jq -r '.choices[0].text')" "$first"
equal "another seed gives another" \
  "$([ "$(post /v1/completions "${seeded}8}" | jq -r '.choices[0].text')" != "$first" ] && echo yes)" yes

# ---- a tool prompt: the rendered prompt must be the golden one, token for token
tools='[{"type":"function","function":{"name":"get_weather","description":"Get the current weather for a city",
  "parameters":{"type":"object","properties":{"city":{"type":"string","description":"City name"},
  "unit":{"type":"string","enum":["celsius","fahrenheit"]}},"required":["city"]}}},
  {"type":"function","function":{"name":"add_numbers","description":"Add two integers",
  "parameters":{"type":"object","properties":{"a":{"type":"integer","description":"First number"},
  "b":{"type":"integer","description":"Second number"}},"required":["a","b"]}}}]'
reply=$(post /v1/chat/completions \
  "{\"messages\":[{\"role\":\"user\",\"content\":\"What is the weather in London?\"}],\"tools\":$tools,\"temperature\":0}")
equal "the tool prompt has the golden number of tokens" "$(jq '.usage.prompt_tokens' <<<"$reply")" \
  "$(jq '.[] | select(.name == "tool") | .ids | length' $golden/text.json)"
equal "the tool prompt yields the call" "$(jq -c '.choices[0].message.tool_calls[0].function' <<<"$reply")" \
  '{"name":"get_weather","arguments":"{\"city\": \"London\"}"}'
equal "the tool prompt's reasoning is the golden one" \
  "$(jq -r '.choices[0].message.reasoning_content' <<<"$reply")" "I should call get_weather."

# ---- completions from token ids: the golden greedy continuations; an end id's text is not output
while IFS= read -r name; do
  jq -c --arg name "$name" '.[] | select(.name == $name)' $golden/text.json >"$scratch/case"
  reply=$(post /v1/completions "$(jq -c \
    '{prompt: .ids, max_tokens: 40, temperature: 0, skip_special_tokens: false}' "$scratch/case")")
  equal "golden greedy text of $name" "$(jq -c '[.choices[0].text, .usage.completion_tokens, .usage.prompt_tokens]' <<<"$reply")" \
    "$(jq -c '[(.greedy_text | sub("(<\\|endoftext\\|>|<\\|user\\|>|<\\|observation\\|>)$"; "")), (.greedy | length),
      (.ids | length)]' "$scratch/case")"
done < <(jq -r '.[].name' $golden/text.json)
reply=$(post /v1/completions "$(jq -c '.[] | select(.name == "multi") | {prompt, max_tokens: 40, temperature: 0}' \
  $golden/text.json)")
equal "a text prompt is the same as its ids" "$(jq -r '.choices[0].text' <<<"$reply")" \
  "The user said the name is Emma.</think>Your name is Emma."
post /v1/completions "$(jq -c '.[] | select(.name == "multi") | {prompt, max_tokens: 40, temperature: 0, stream: true}' \
  $golden/text.json)" >"$scratch/stream"
equal "a streamed completion has the same text" "$(events <"$scratch/stream" | jq -j '.choices[]?.text // empty')" \
  "$(jq -r '.choices[0].text' <<<"$reply")"

# ---- long prompts
long=$(jq -c '[.[] | select(.name == "needle_long") | .ids] | first | [limit(7000; repeat(.[]))]' $golden/text.json)
reply=$(post /v1/completions "{\"prompt\":$long,\"max_tokens\":8,\"temperature\":0}")
equal "a 7,000-token prompt works" "$(jq -c '[.usage.prompt_tokens, .usage.completion_tokens >= 1]' <<<"$reply")" \
  '[7000,true]'
equal "it is deterministic" \
  "$(post /v1/completions "{\"prompt\":$long,\"max_tokens\":8,\"temperature\":0}" | jq -r '.choices[0].text')" \
  "$(jq -r '.choices[0].text' <<<"$reply")"
too_long=$(jq -c '. + .' <<<"$long")
post /v1/completions "{\"prompt\":$too_long,\"max_tokens\":8}" >/dev/null
equal "a prompt beyond the context answers 400" "$(status)" 400

# ---- bodies curl sends in unusual ways
equal "a chunked request body works" "$(post /v1/chat/completions "$count_request" -H 'Transfer-Encoding: chunked' |
  jq -r '.choices[0].message.content')" "$content"
padded=$(jq -c '. + {metadata: {padding: ("x" * 20000)}}' <<<"$count_request")
equal "a body of curl's default form type works" \
  "$(curl -sS "$url/v1/chat/completions" --data-binary "$padded" | jq -r '.choices[0].message.content')" "$content"

# ---- refusals: status 400 and an error object, and the server lives on
refuse() {
  post "$1" "$3" >/dev/null
  equal "refused: $2" "$(status) $(jq -r '.error.message | type' "$scratch/reply" 2>&1)" "400 string"
}
refuse /v1/chat/completions "not JSON" 'hello'
refuse /v1/chat/completions "an empty body" ''
refuse /v1/chat/completions "an array" '[]'
refuse /v1/chat/completions "no messages" '{}'
refuse /v1/chat/completions "empty messages" '{"messages":[]}'
refuse /v1/chat/completions "messages of a wrong type" '{"messages":"hi"}'
refuse /v1/chat/completions "a message without a role" '{"messages":[{"content":"hi"}]}'
refuse /v1/chat/completions "an unknown role" '{"messages":[{"role":"wizard","content":"hi"}]}'
refuse /v1/chat/completions "a negative temperature" '{"messages":[{"role":"user","content":"hi"}],"temperature":-1}'
refuse /v1/chat/completions "max_tokens 0" '{"messages":[{"role":"user","content":"hi"}],"max_tokens":0}'
refuse /v1/chat/completions "a fractional max_tokens" '{"messages":[{"role":"user","content":"hi"}],"max_tokens":1.5}'
refuse /v1/chat/completions "top_p 0" '{"messages":[{"role":"user","content":"hi"}],"top_p":0}'
refuse /v1/chat/completions "an empty stop string" '{"messages":[{"role":"user","content":"hi"}],"stop":[""]}'
refuse /v1/chat/completions "a lone surrogate" '{"messages":[{"role":"user","content":"\ud83d"}]}'
refuse /v1/chat/completions "invalid UTF-8" "$(printf '{"messages":[{"role":"user","content":"\xff"}]}')"
refuse /v1/completions "an empty prompt" '{"prompt":""}'
refuse /v1/completions "an id beyond the vocabulary" '{"prompt":[1,4096]}'
refuse /v1/completions "a negative id" '{"prompt":[-1]}'
equal "the server is still well" "$(post /v1/chat/completions "$count_request" | jq -r '.choices[0].message.content')" \
  "$content"

logged() {
  tail -n 1 "$scratch/server.log" | grep -qE 'client=127\.0\.0\.1 id=chatcmpl-[0-9a-f]{32} method=POST '\
'path=/v1/chat/completions status=200 bytes=[0-9]+ seconds=[0-9.]+ prompt_tokens=[0-9]+ completion_tokens=[0-9]+$'
}
until_true logged
equal "the log has a line for the last reply" "$?" 0
equal "and none shows what was asked" "$(grep -c 'Count from' "$scratch/server.log")" 0

# ---- one port, one server
"$binary" --config $config --port "${url##*:}" >"$scratch/second.log" 2>&1
equal "a second server on the port ends with code 2" "$?" 2
contains "and names the port" "$(cat "$scratch/second.log")" "${url##*:}"

stop_server
equal "SIGTERM ends an idle server with code 0" "$stop_code" 0

# ---- several names, sampling defaults
start_server --served-model-name one,two --generation-config vllm --override-generation-config '{"temperature": 0}'
equal "all names are listed" "$(curl -s "$url/v1/models" | jq -c '[.data[].id]')" '["one","two"]'
named=$(jq -c 'del(.temperature) + {model: "two"}' <<<"$count_request")
equal "the second name answers, greedily as the defaults say" \
  "$(post /v1/chat/completions "$named" | jq -r '.model, .choices[0].message.content')" "two
$content"
stop_server
finish
