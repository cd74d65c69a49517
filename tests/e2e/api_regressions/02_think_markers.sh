# <think> never appears in content, </think> never leaks, whatever `stop` says.
start_server
for stop in null '"</think>"' '"<think>"' '["<","</"]' '["think"]' '["</think>","</thi"]'; do
  for thinking in true false; do
    chat_both "14.2 stop $stop, thinking $thinking" \
      "$(user "What is 8 * 7?" "{stop: $stop, chat_template_kwargs: {enable_thinking: $thinking}}")"
    equal "14.2 no marker reaches the client: stop $stop, thinking $thinking" \
      "$(jq -c '[.reasoning, .content | test("</?think>")]' <<<"$parts")" "[false,false]"
  done
done
equal "14.2 stop strings do not look into reasoning" \
  "$(post /v1/chat/completions "$(user "What is 8 * 7?" '{stop: "8 * 7 = 57"}')" | whole_parts | jq -c '.content | length > 0')" true

# A model that writes markers where none belong.
off='. + {chat_template_kwargs: {enable_thinking: false}}'
chat_both "14.2 </think> in content is swallowed" \
  "$(user "Hello" "$(scripted '["x","</think>","time","</think>","count","<|user|>"]')")"
equal "14.2 its parts are right" "$(jq -c '[.reasoning, .content]' <<<"$parts")" '["x","timecount"]'
chat_both "14.2 </think> with thinking off is swallowed" \
  "$(user "Hello" "$(scripted '["</think>","time","count","<|user|>"]' | jq -c "$off")")"
equal "14.2 its content is right" "$(part content)" timecount
chat_both "14.2 <think> after </think> reasons again" \
  "$(user "Hello" "$(scripted '["x","</think>","time","<think>","count","</think>","London","<|user|>"]')")"
equal "14.2 its parts are apart" "$(jq -c '[.reasoning, .content]' <<<"$parts")" '["xcount","timeLondon"]'
chat_both "14.2 <think> in reasoning is dropped" \
  "$(user "Hello" "$(scripted '["<think>","time","</think>","count","<|user|>"]')")"
equal "14.2 its parts are right too" "$(jq -c '[.reasoning, .content]' <<<"$parts")" '["time","count"]'
chat_both "14.2 a reply without </think> is reasoning" "$(user "Hello" "$(scripted '["time","<|user|>"]')")"
equal "14.2 its content is null" "$(jq -c '.choices[0].message | [.reasoning_content, .content]' "$scratch/whole")" \
  '["time",null]'
