# The usage chunk comes last; cached tokens are always told; where the effort line stands decides how much of a prompt a
# switch of effort leaves as it was.
start_server
request=$(user "What is 8 * 7?" '{stream: true, stream_options: {include_usage: true}}')
post /v1/chat/completions "$request" >"$scratch/stream"
equal "14.12 the usage chunk is the last, without choices" \
  "$(events <"$scratch/stream" | tail -n 1 | jq -c '[.choices, .usage.total_tokens == .usage.prompt_tokens + .usage.completion_tokens]')" \
  '[[],true]'
equal "14.12 it follows the finish reason" \
  "$(events <"$scratch/stream" | tail -n 2 | head -n 1 | jq -r '.choices[0].finish_reason')" stop
equal "14.12 then comes [DONE]" "$(grep "^data:" "$scratch/stream" | tail -n 1)" "data: [DONE]"
equal "14.12 the other chunks carry no usage" \
  "$(events <"$scratch/stream" | head -n -1 | jq -c '.usage' | sort -u)" null
post /v1/chat/completions "$(jq -c 'del(.stream_options)' <<<"$request")" >"$scratch/stream"
equal "14.12 unasked there is none" "$(events <"$scratch/stream" | jq -c 'select(.usage != null)')" ""
whole=$(jq -c 'del(.stream, .stream_options)' <<<"$request")
for try in 1 2; do
  equal "14.12 cached_tokens is a number within the prompt (request $try)" "$(post /v1/chat/completions "$whole" |
    jq '.usage | .prompt_tokens_details.cached_tokens as $cached | $cached >= 0 and $cached < .prompt_tokens')" true
done

# shared PLACE: tokens that prompts of efforts low and high have in common.
shared() {
  local words='{"messages":[{"role":"system","content":"You are terse."},{"role":"user","content":"Count to five."}]}'
  start_server --set "template.effort_at=$1"
  jq -nc --argjson low "$(post /tokenize "$(jq -c '. + {chat_template_kwargs: {reasoning_effort: "low"}}' <<<"$words")" | jq -c .tokens)" \
    --argjson high "$(post /tokenize "$(jq -c '. + {chat_template_kwargs: {reasoning_effort: "high"}}' <<<"$words")" | jq -c .tokens)" \
    '[range($low | length) | select($low[.] != $high[.])] | first' >"$scratch/shared"
  equal "14.12 the effort line at $1 is in the prompt" "$(jq -c 'type' "$scratch/shared")" '"number"'
  stop_server
}
stop_server
shared head
head=$(cat "$scratch/shared")
shared before_last_user
before=$(cat "$scratch/shared")
shared tail
tail=$(cat "$scratch/shared")
equal "14.12 the later the effort line, the more of the prompt survives a switch" \
  "$([ "$head" -lt 10 ] && [ "$head" -lt "$before" ] && [ "$before" -lt "$tail" ] && echo yes)" yes
