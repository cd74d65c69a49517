#!/usr/bin/env bash
# model.load_format dummy: a directory with a config.json and nothing else is served to prompts of token ids.
. "$(dirname "$0")/lib.sh"

mkdir "$scratch/model"
cp $tiny/config.json "$scratch/model/"
dummy=(--load-format dummy --set "model.path=$scratch/model" --set dummy.experts_k=2 --set dummy.layer_k=4:3,5:3)

check=$(timeout 60 "$binary" --config $config "${dummy[@]}" --check 2>&1)
equal "--check ends with code 0" "$?" 0
contains "--check prints a memory plan" "$check" weights
contains "--check says that there is no tokenizer" "$check" "no tokenizer.json"
for refused in "dummy.layer_k=4" "dummy.layer_k=4:9" "dummy.layer_k=1:3" "dummy.layer_k=4:3,4:2" "dummy.experts_k=9"; do
  message=$(timeout 60 "$binary" --config $config "${dummy[@]}" --set "$refused" --check 2>&1 >/dev/null)
  equal "refused with code 2: $refused" "$?" 2
  contains "the message names it: $refused" "$message" "${refused%%=*}"
done
message=$(timeout 60 "$binary" --config $config --set "model.path=$scratch/model" --check 2>&1)
equal "as a checkpoint the same directory is refused" "$?" 2

prompt='[5,99,1024,77,4000,12,3,256,800]'
body="{\"prompt\":$prompt,\"temperature\":0,\"max_tokens\":24,\"ignore_eos\":true"
ids() { jq -c '.choices[0] | [.text, .finish_reason, (.token_ids | length), .token_ids]'; }

start_server "${dummy[@]}"
first=$(post /v1/completions "$body}" | ids)
equal "a prompt of ids gets ids and no text" "$(jq -c '.[0:3]' <<<"$first")" '["","length",24]'
equal "greedy ids are the same again" "$(post /v1/completions "$body}" | ids)" "$first"
equal "also as a stream" "$(post /v1/completions "$body,\"stream\":true}" | events | jq -cs '[.[] | .choices[]?] | last | .token_ids')" \
  "$(jq -c '.[3]' <<<"$first")"
equal "a stop id ends the reply" \
  "$(post /v1/completions "$body,\"stop_token_ids\":[$(jq '.[3][0]' <<<"$first")]}" | ids | jq -c '.[1:3]')" '["stop",1]'
for wrong in 'completions {"prompt":"Hello"} prompt' 'completions {"prompt":[1,2],"stop":"x"} stop' \
  'chat/completions {"messages":[{"role":"user","content":"Hello"}]} messages'; do
  read -r path json param <<<"$wrong"
  equal "text is refused: $path, $param" \
    "$(post "/v1/$path" "$json" | jq -r '[(.error.message | contains("no tokenizer")), .error.param] | join(" ")') $(status)" \
    "true $param 400"
done
stop_server
equal "the server ends with code 0" "$stop_code" 0

start_server "${dummy[@]}"
equal "a new process has the same weights" "$(post /v1/completions "$body}" | ids)" "$first"
stop_server
start_server "${dummy[@]}" --set dummy.seed=1
[ "$(post /v1/completions "$body}" | ids)" != "$first" ] && ok "another seed gives another model" ||
  not_ok "another seed gives another model"
stop_server
finish
