#!/usr/bin/env bash
# SIGTERM while a stream runs: the stream ends whole, new requests are refused, the exit code is 0. And a client that
# hangs up frees the engine.
. "$(dirname "$0")/lib.sh"

# A reply long enough to be running when the signal comes: an end id is ignored.
long='{"prompt":"Once upon a time,","max_tokens":1500,"temperature":0,"ignore_eos":true}'
streamed=$(jq -c '. + {stream: true}' <<<"$long")

start_server
expected=$(post /v1/completions "$long" | jq -r '.choices[0].text')
equal "the reply is long" "$(jq '.usage.completion_tokens' "$scratch/reply")" 1500

curl -sSN -m 120 -H 'Content-Type: application/json' -d "$streamed" "$url/v1/completions" >"$scratch/stream" &
client=$!
for ((try = 0; try < 200; ++try)); do
  [ "$(grep -c '^data: {' "$scratch/stream")" -ge 5 ] && break
  sleep 0.02
done
equal "the stream runs when the signal is sent" "$(grep -c '^data: \[DONE\]' "$scratch/stream")" 0
kill -TERM "$server_pid"
sleep 0.1
code=$(curl -s -o /dev/null -m 10 -w '%{http_code}' -H 'Content-Type: application/json' -d "$long" "$url/v1/completions")
# Refused at the socket or answered 503, but never served.
equal "a new request is refused while draining" "$([ "$code" = 000 ] || [ "$code" = 503 ] && echo yes)" yes
wait "$client"
equal "the client saw no error" "$?" 0
equal "the running stream ends whole" "$(events <"$scratch/stream" | jq -j '.choices[]?.text // empty')" "$expected"
equal "with its finish reason" "$(events <"$scratch/stream" | jq -r '.choices[]?.finish_reason // empty')" length
equal "and [DONE]" "$(grep '^data:' "$scratch/stream" | tail -n 1)" "data: [DONE]"
code=0
wait "$server_pid" || code=$?
server_pid=
equal "the server ends with code 0" "$code" 0

# ---- a patience shorter than the reply: cut, still orderly
start_server --set ops.drain_s=0
curl -sSN -m 120 -H 'Content-Type: application/json' -d "$(jq -c '.max_tokens = 7000' <<<"$streamed")" \
  "$url/v1/completions" >"$scratch/stream" 2>/dev/null &
client=$!
for ((try = 0; try < 200; ++try)); do
  [ "$(grep -c '^data: {' "$scratch/stream")" -ge 5 ] && break
  sleep 0.02
done
started=$SECONDS
stop_server
wait "$client"
equal "without patience the server ends at once with code 0" "$stop_code $((SECONDS - started < 5))" "0 1"

# ---- hang-up
start_server
for kind in "$long" "$streamed"; do
  curl -sS -m 1 -o /dev/null -H 'Content-Type: application/json' -d "$(jq -c '.max_tokens = 7000' <<<"$kind")" \
    "$url/v1/completions" 2>/dev/null
  started=$SECONDS
  equal "after a hang-up ($(jq -r 'if .stream then "streamed" else "whole" end' <<<"$kind")) the next request is served" \
    "$(post /v1/completions '{"prompt":"Once","max_tokens":2,"temperature":0}' | jq '.usage.completion_tokens')" 2
  equal "at once" "$((SECONDS - started < 4))" 1
done
stop_server
equal "the server ends with code 0" "$stop_code" 0
finish
