#!/usr/bin/env bash
# Every body of the malformed-request corpus is answered with 400, an error object and the field at fault, and the
# server lives on. scripts/test.sh also sends it to a sanitised server, whose end then says whether memory leaked.
. "$(dirname "$0")/lib.sh"
start_server

# "FILE ROUTE PARAM" a line; PARAM is the field at fault, - when none can be named.
corpus=tests/data/malformed/request_json
[ -s $corpus/index.txt ] || not_ok "the request_json corpus exists"
while read -r file route param; do
  case $route in chat) path=/v1/chat/completions ;; *) path=/v1/completions ;; esac
  code=$(curl -sS -m 60 -o "$scratch/reply" -w '%{http_code}' -H 'Content-Type: application/json' \
    --data-binary @"$corpus/$file" "$url$path")
  equal "refused: $file" "$code $(jq -r '[(.error.message | type), .error.param // "-"] | join(" ")' "$scratch/reply" 2>&1)" \
    "400 string $param"
done <$corpus/index.txt

chat='{"messages":[{"role":"user","content":"What is 8 * 7?"}],"temperature":0,
  "chat_template_kwargs":{"enable_thinking":false}'
post /v1/chat/completions "$chat}" | jq -j '.choices[0].message.content' >"$scratch/whole"
contains "the server is still well" "$(cat "$scratch/whole")" "8 * 7 = 56"
post /v1/chat/completions "$chat,\"stream\":true}" | events | jq -j '.choices[]?.delta.content // empty' >"$scratch/streamed"
equal "also as a stream" "$(cat "$scratch/streamed")" "$(cat "$scratch/whole")"
stop_server
equal "the server ends with code 0" "$stop_code" 0
finish
