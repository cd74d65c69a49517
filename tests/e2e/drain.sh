#!/usr/bin/env bash
# SIGTERM while a stream runs: the stream ends whole, new requests are refused, the exit code is 0. And a client that
# hangs up frees the engine. Waits are for states, never for a time: a slow machine makes them longer, not wrong.
. "$(dirname "$0")/lib.sh"

# A reply long enough to be running when the signal comes: an end id is ignored.
long='{"prompt":"Once upon a time,","max_tokens":1500,"temperature":0,"ignore_eos":true}'
streamed=$(jq -c '. + {stream: true}' <<<"$long")
endless=$(jq -c '.max_tokens = 7000' <<<"$streamed")

# For the background only: the shell becomes curl, so that its id is that of the client.
send() { exec curl -sSN -m 600 -H 'Content-Type: application/json' -d "$1" "$url/v1/completions"; }
has_begun() { [ "$(grep -c '^data: {' "$scratch/stream")" -ge 5 ]; }
is_running() { [ "$(curl -s "$url/health" | jq '.running')" = 1 ]; }
# refuses PATH [curl option…]: with an answer, on a new connection.
refuses() {
  local path=$1
  shift
  [ "$(curl -s -o "$scratch/refusal" -m 60 -w '%{http_code} %header{retry-after}' "$@" "$url$path")" = "503 5" ]
}
# A stream that is under way; sets client.
start_stream() {
  : >"$scratch/stream"
  send "$1" >"$scratch/stream" 2>/dev/null &
  client=$!
  until_true has_begun || not_ok "a stream begins" "$(cat "$scratch/stream")"
}

start_server
expected=$(post /v1/completions "$long" | jq -r '.choices[0].text')
equal "the reply is long" "$(jq '.usage.completion_tokens' "$scratch/reply")" 1500

# A machine that stops this script for the length of a reply may need several.
for attempt in 1 2 3 4 5; do
  start_stream "$streamed"
  grep -q '^data: \[DONE\]' "$scratch/stream" || break
  wait "$client"
done
equal "the stream runs when the signal is sent" "$(grep -c '^data: \[DONE\]' "$scratch/stream")" 0
kill -TERM "$server_pid"
until_true refuses /v1/models
refuses /v1/completions -d "$long"
equal "a new request is refused while draining" "$?" 0
wait "$client"
equal "the client saw no error" "$?" 0
equal "the running stream ends whole" "$(events <"$scratch/stream" | jq -j '.choices[]?.text // empty')" "$expected"
equal "with its finish reason" "$(events <"$scratch/stream" | jq -r '.choices[]?.finish_reason // empty')" length
equal "and [DONE]" "$(grep '^data:' "$scratch/stream" | tail -n 1)" "data: [DONE]"
code=0
wait "$server_pid" || code=$?
server_pid=
equal "the server ends with code 0" "$code" 0

# ---- a patience shorter than the replies: all are told before their connections close
start_server --set ops.drain_s=1
start_stream "$endless"
send "$endless" >"$scratch/queued_stream" 2>/dev/null &
queued=$!
pair=$(jq -c 'del(.stream) | .n = 2 | .temperature = 1' <<<"$endless")
curl -sS -m 600 -o "$scratch/pair" -w '%{http_code} %header{retry-after}' -d "$pair" "$url/v1/completions" \
  >"$scratch/pair_status" 2>&1 &
paired=$!
# `waiting` counts choices: the stream's one and two of the pair.
all_wait() { [ "$(curl -s "$url/health" | jq '.waiting')" = 3 ]; }
until_true all_wait || not_ok "the others wait" "$(curl -s "$url/health")"
stop_server
equal "after a short drain the server ends with code 0" "$stop_code" 0
contains "and logs that it cancels" "$(cat "$scratch/server.log")" "3 requests outlasted the drain"
for name in stream queued_stream; do
  if [ "$name" = stream ]; then wait "$client"; else wait "$queued"; fi
  equal "$name: the client saw no cut" "$?" 0
  equal "$name: the last event is an error" \
    "$(events <"$scratch/$name" | tail -n 1 | jq -r '.error | "\(.type) \(.code)"')" "server_error unavailable"
  equal "$name: then [DONE]" "$(grep '^data:' "$scratch/$name" | tail -n 1)" "data: [DONE]"
done
wait "$paired"
equal "a waiting request is answered 503" "$(cat "$scratch/pair_status")" "503 5"
equal "with the error JSON" "$(jq -r .error.code "$scratch/pair")" unavailable

# ---- no patience
start_server --set ops.drain_s=0
start_stream "$endless"
stop_server
wait "$client"
equal "without patience the client saw no cut" "$?" 0
equal "the server ends with code 0" "$stop_code" 0
equal "and the stream with an error" "$(events <"$scratch/stream" | tail -n 1 | jq -r '.error.code')" unavailable

# ---- hang-up
start_server --set ops.log_level=debug
for request in "$(jq -c 'del(.stream)' <<<"$endless")" "$endless"; do
  kind=$(jq -r 'if .stream then "streamed" else "whole" end' <<<"$request")
  send "$request" >/dev/null 2>&1 &
  client=$!
  until_true is_running || not_ok "a $kind reply begins"
  kill -KILL "$client"
  wait "$client" 2>/dev/null
  equal "after a hang-up ($kind) the next request is served" \
    "$(post /v1/completions '{"prompt":"Once","max_tokens":2,"temperature":0}' | jq '.usage.completion_tokens')" 2
done
equal "what ran until then was cancelled, not finished" \
  "$(grep -c ': cancelled after [0-9]* prompt' "$scratch/server.log") $(grep -c 'and 7000 completion' "$scratch/server.log")" \
  "2 0"
stop_server
equal "the server ends with code 0" "$stop_code" 0
finish
