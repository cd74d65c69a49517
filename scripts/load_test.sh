#!/usr/bin/env bash
# 200 connections against the real binary with the tiny model: streams, idle ones, writers of a byte a second, half-closed
# ones and bodies without end (tests/e2e/load_clients.cpp). Reports the latency of /health meanwhile, which has no bound
# here, and checks that afterwards nothing is left: threads, descriptors, requests.
#   scripts/load_test.sh [SECONDS]   60 unless given
. "$(dirname "$0")/../tests/e2e/lib.sh"
seconds=${1:-60}
start_server --set server.max_body_mib=4 --set server.body_timeout_s=10

descriptors() { find "/proc/$server_pid/fd" -type l 2>/dev/null | wc -l; }
of_status() { sed -n "s/^$1:[[:space:]]*\([0-9]*\).*/\1/p" "/proc/$server_pid/status"; }
threads() { of_status Threads; }
# Every client has gone when there are no more threads and descriptors than before it came.
is_over() {
  [ "$(threads) $(descriptors)" = "$1" ] && [ "$(curl -s "$url/health" | jq -c '[.running, .waiting]')" = "[0,0]" ]
}
settles_at() {
  local give_up=$((SECONDS + 120))
  until is_over "$1"; do
    [ "$SECONDS" -lt "$give_up" ] || return 1
    sleep 0.2
  done
}

# The connection that found the server ready may not be over yet.
at_rest() {
  before="$(threads) $(descriptors)"
  sleep 1
  is_over "$before"
}
until_true at_rest
# Once through everything first, so that memory that is taken on first use counts as "before".
"$(dirname "$binary")/tests/e2e/load_clients" "${url##*:}" 2 >"$scratch/warm" || not_ok "a short load" "$(cat "$scratch/warm")"
settles_at "$before" || not_ok "a short load leaves nothing" "$(threads) $(descriptors) instead of $before"
rss_before=$(of_status VmRSS)
"$(dirname "$binary")/tests/e2e/load_clients" "${url##*:}" "$seconds" >"$scratch/load"
equal "load of $seconds s: every client got the answer that is right for it" "$?" 0
sed 's/^/    /' "$scratch/load"
afterwards="load: afterwards as many threads and descriptors as before, and no request"
if settles_at "$before"; then ok "$afterwards"; else not_ok "$afterwards" "$(threads) $(descriptors) instead of $before"; fi
echo "    threads and descriptors: $before; resident memory: $((rss_before / 1024)) MiB before, $(($(of_status VmRSS) / 1024)) MiB after"
equal "load: the server still answers" \
  "$(post /v1/completions '{"prompt":"Once","max_tokens":3,"temperature":0,"ignore_eos":true}' | jq '.usage.completion_tokens')" 3
stop_server
equal "load: SIGTERM ends the server with code 0" "$stop_code" 0
finish
