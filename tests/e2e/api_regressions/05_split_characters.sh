# Characters of several tokens: streamed whole, cut by max_tokens, begun in the prompt.
start_server
emoji=$(post /tokenize '{"prompt":"😀"}' | jq -c '.tokens')
equal "14.5 the emoji has several tokens" "$(jq 'length >= 3' <<<"$emoji")" true
# A repetition penalty of a million leaves a token nothing of its bias once it has been said, so biases that fall give
# the order. The tokens are not in the prompt, where the penalty would count them too.
said=$(jq -c '. as $ids | {temperature: 0, allowed_token_ids: $ids, repetition_penalty: 1000000,
  logit_bias: ([range($ids | length) | {key: "\($ids[.])", value: (100 - 35 * .)}] | from_entries)}' <<<"$emoji")
length=$(jq length <<<"$emoji")
for ((n = 1; n <= length; ++n)); do
  expected=$([ "$n" -eq "$length" ] && echo 😀)
  request=$(jq -c "{prompt: \"Once\", max_tokens: $n} + ." <<<"$said")
  equal "14.5 max_tokens $n of $length: no half of an emoji" \
    "$(post /v1/completions "$request" | jq -c '[.choices[0].text, .choices[0].finish_reason, .usage.completion_tokens]')" \
    "[\"$expected\",\"length\",$n]"
  post /v1/completions "$(jq -c '. + {stream: true}' <<<"$request")" >"$scratch/stream"
  equal "14.5 streamed with max_tokens $n: the same" "$(events <"$scratch/stream" | jq -j '.choices[]?.text // empty')" "$expected"
  chat_both "14.5 chat with max_tokens $n" \
    "$(user "Hello" "$(jq -c ". + {max_tokens: $n, chat_template_kwargs: {enable_thinking: false}}" <<<"$said")")"
  equal "14.5 its content with max_tokens $n" "$(part content)" "$expected"
done
# The reply continues a character that the prompt began: only the reply's own bytes count, and those are no character.
request=$(jq -c '{prompt: .[:-1], max_tokens: 1, temperature: 0, allowed_token_ids: .[-1:]}' <<<"$emoji")
equal "14.5 a prompt that ends inside a character leaks nothing" \
  "$(post /v1/completions "$request" | jq -c '.choices[0].text')" '"�"'
stop_server
start_server --set api.flush_partial_utf8=true
equal "14.5 api.flush_partial_utf8 shows that something was cut" \
  "$(post /v1/completions "$(jq -c '{prompt: "Once", max_tokens: 1} + .' <<<"$said")" | jq -c '.choices[0].text')" '"�"'
