#!/usr/bin/env bash
# Mutated requests for every POST route (mutate_requests.cpp): no crash, no hang, no 5xx for bad input, and of the sanitizer
# build no finding. The requests are the same in every run.
#   mutated_requests.sh [COUNT]   2,000 unless given
. "$(dirname "$0")/lib.sh"
count=${1:-2000}
start_server --set server.body_timeout_s=2 --set server.header_timeout_s=2 --set server.max_body_mib=2 --set context=512 \
  --set defaults.max_tokens=2 --set scheduler.max_queued=4
"$(dirname "$binary")/tests/e2e/mutate_requests" "${url##*:}" "$count" tests/data/requests/valid.jsonl \
  tests/data/malformed/request_json tests/data/fuzz/request_json >"$scratch/mutants"
equal "$count mutated requests are each answered, none with a 5xx" "$?" 0
sed 's/^/    /' "$scratch/mutants"
is_idle() { [ "$(curl -s "$url/health" | jq -c '[.status, .running, .waiting]')" = '["ok",0,0]' ]; }
for ((try = 0; try < 600; ++try)); do
  is_idle && break
  sleep 0.1
done
equal "after $count mutated requests the server is idle and well" \
  "$(curl -s "$url/health" | jq -c '[.status, .running, .waiting]')" '["ok",0,0]'
equal "it counts to 5" "$(post /v1/chat/completions '{"messages":[{"role":"user","content":"Count from 1 to 5, one number per line."}],
  "temperature":0,"max_tokens":100}' | jq -r '.choices[0].message.content')" "$(seq 1 5)"
stop_server
equal "it ends with code 0" "$stop_code" 0
equal "it logged neither an error nor a finding of a sanitizer" \
  "$(grep -E 'Sanitizer|runtime error|\[(error|critical)\]' "$scratch/server.log" | head -n 5)" ""
finish
