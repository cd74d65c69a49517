# Each end id ends a reply, its text is never output; so does <|assistant|> on the chat routes.
start_server
ends='["<|endoftext|>","<|user|>","<|observation|>"]'
for end in $(jq -r '.[]' <<<"$ends"); do
  id=$(post /tokenize "$(jq -nc --arg last "$end" '{prompt: $last}')" | jq '.tokens[0]')
  # The first of the list is the primary one, whose id is not reported (spec 40 §6.2).
  reason=$([ "$end" = "<|endoftext|>" ] && echo null || echo "$id")
  chat_both "14.6 $end" "$(user "Hello" "$(scripted "$(jq -nc --arg last "$end" '["</think>", "time", $last]')")")"
  equal "14.6 $end ends the reply" "$(jq -c '[.content, .finish, .stop]' <<<"$parts")" "[\"time\",\"stop\",$reason]"
  equal "14.6 $end is counted" "$(jq '.usage.completion_tokens' "$scratch/whole")" 3
  request="{\"prompt\":\"Once\",\"max_tokens\":5,\"temperature\":0,\"allowed_token_ids\":[$id]}"
  equal "14.6 $end ends a completion" \
    "$(post /v1/completions "$request" | jq -c '[.choices[0].text, .choices[0].finish_reason, .usage.completion_tokens]')" \
    '["","stop",1]'
  equal "14.6 $end under ignore_eos" \
    "$(post /v1/completions "$(jq -c '. + {ignore_eos: true}' <<<"$request")" | jq -c '[.choices[0].finish_reason, .usage.completion_tokens]')" \
    '["length",5]'
done
script=$(scripted '["</think>","time","<|assistant|>","count","<|user|>"]')
chat_both "14.6 <|assistant|> in the middle of an answer" "$(user "Hello" "$script")"
equal "14.6 <|assistant|> ends the reply" "$(jq -c '[.content, .finish]' <<<"$parts")" '["time","stop"]'
equal "14.6 <|assistant|> ends a message too" "$(post /v1/messages "$(user "Hello" "$script")" | jq -c '[.content[].text, .stop_reason]')" \
  '["time","end_turn"]'
stop_server
start_server --set guards.assistant_ends=false
equal "14.6 without guards.assistant_ends the answer goes on" \
  "$(post /v1/chat/completions "$(user "Hello" "$script")" | whole_parts | jq -c '[.content, .finish]')" '["timecount","stop"]'
