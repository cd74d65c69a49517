# However a reply is cut into deltas, they join to the whole reply: reasoning, content, calls, end.
start_server
while IFS= read -r prompt; do
  chat_both "14.1 ${prompt:0:40}" "$(user "$prompt")"
  chat_both "14.1 ${prompt:0:40}, thinking off" "$(user "$prompt" '{chat_template_kwargs: {enable_thinking: false}}')"
done <<'PROMPTS'
Count from 1 to 20, one number per line.
What is 8 * 7?
Give me a JSON object with name Sam and age 51.
Tell me a story about a goat.
Write Python functions clamp_00 to clamp_03.
PROMPTS
# Many chunkings of one request: what the stream merges depends on time alone.
request=$(user "Tell me a story about a goat." '{temperature: 1.5, seed: 4, stop: ["the end", "\n\n"], logprobs: true}')
chat_both "14.1 a sampled reply with stops" "$request"
for try in 1 2 3 4 5; do
  post /v1/chat/completions "$(jq -c '. + {stream: true}' <<<"$request")" >"$scratch/stream"
  equal "14.1 streamed again ($try)" "$(streamed_parts <"$scratch/stream")" "$parts"
done
request='{"prompt":"Once upon a time,","max_tokens":60,"temperature":1.3,"seed":11}'
text=$(post /v1/completions "$request" | jq -r '.choices[0].text')
post /v1/completions "$(jq -c '. + {stream: true}' <<<"$request")" >"$scratch/stream"
equal "14.1 a completion's deltas join to its text" "$(events <"$scratch/stream" | jq -j '.choices[]?.text // empty')" "$text"
