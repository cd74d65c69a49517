# A prompt exactly at the limit and one beyond; max_tokens absent and too large. What is wrong is 400 before any header of
# a stream.
start_server --set context=512
# completion PROMPT_TOKENS [JSON]
completion() { jq -nc "{prompt: [range($1) | 300 + . % 700], temperature: 0, ignore_eos: true} + ${2:-{\}}"; }
usage() { jq -c '[.usage.prompt_tokens, .usage.completion_tokens, .choices[0].finish_reason]'; }
equal "14.7 prompt and max_tokens exactly fill the context" \
  "$(post /v1/completions "$(completion 500 '{max_tokens: 12}')" | usage)" '[500,12,"length"]'
equal "14.7 a prompt that leaves one token" "$(post /v1/completions "$(completion 511 '{max_tokens: 1}')" | usage)" \
  '[511,1,"length"]'
refused "14.7 one token over" /v1/completions "$(completion 500 '{max_tokens: 13}')" max_tokens \
  "This model's maximum context length is 512 tokens. However, you requested 513 tokens (500 in the messages, 13 in the completion). Please reduce the length of the messages or completion."
equal "14.7 its code" "$(jq -r '.error.code' "$scratch/refusal")" context_length_exceeded
refused "14.7 a prompt as long as the context" /v1/completions "$(completion 512 '{max_tokens: 1}')" prompt \
  "This model's maximum context length is 512 tokens"
refused "14.7 max_tokens beyond all contexts" /v1/completions "$(completion 1 '{max_tokens: 2147483647}')" max_tokens \
  "This model's maximum context length is 512 tokens"
refused "14.7 chat: max_tokens beyond the context" /v1/chat/completions \
  "$(user "Hello" '{max_tokens: 600}')" max_tokens "This model's maximum context length is 512 tokens"
refused "14.7 chat: a prompt beyond the context" /v1/chat/completions \
  "$(user "$(seq -s' ' 600)" 'del(.max_tokens)' 2>/dev/null || jq -nc --arg text "$(seq -s' ' 600)" '{messages: [{role: "user", content: $text}]}')" \
  messages "This model's maximum context length is 512 tokens"
chat='{"messages":[{"role":"user","content":"Hello"}],"temperature":0,"ignore_eos":true}'
reply=$(post /v1/chat/completions "$chat")
equal "14.7 max_tokens absent: the reply fills the context" \
  "$(jq -c '[.usage.total_tokens, .choices[0].finish_reason]' <<<"$reply")" '[512,"length"]'
post /v1/chat/completions "$(jq -c '. + {stream: true, stream_options: {include_usage: true}}' <<<"$chat")" >"$scratch/stream"
equal "14.7 streamed too" "$(events <"$scratch/stream" | jq -c '.usage.total_tokens // empty' | tail -n 1)" 512
equal "14.7 a message beyond the context" \
  "$(post /v1/messages "$(user "Hello" '{max_tokens: 600}')" | jq -r '.error.type'; status)" $'invalid_request_error\n400'
