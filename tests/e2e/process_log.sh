#!/usr/bin/env bash
# The log when its reader is slow, gone or never there: requests and the shut-down do not wait for it, and what was lost
# is told. And the address that it shows.
. "$(dirname "$0")/lib.sh"

# start_with_log FILE [option…]: as start_server, the log to FILE.
start_with_log() {
  local log=$1 port
  shift
  port=$(free_port)
  url=http://127.0.0.1:$port
  "$binary" --config "$config" --port "$port" "$@" 2>"$log" &
  server_pid=$!
  until_true curl -sf -o /dev/null "$url/health" || { not_ok "the server starts"; finish; }
}
# More lines than a pipe holds, each of them answered.
many_requests() { curl -s -m 60 -o /dev/null -w '%{http_code}\n' "$url/v1/models/none?[1-1500]" | sort | uniq -c | xargs; }

mkfifo "$scratch/pipe"
sleep 600 <>"$scratch/pipe" &
reader=$!
start_with_log "$scratch/pipe"
equal "1,500 requests are answered while nobody reads the log" "$(many_requests)" "1500 404"
equal "and a reply too" \
  "$(post /v1/completions '{"prompt":"Once","max_tokens":3,"temperature":0,"ignore_eos":true}' | jq '.usage.completion_tokens')" 3
cat <"$scratch/pipe" >"$scratch/log" &
copy=$!
told() { curl -s -o /dev/null "$url/v1/models" && grep -q 'lines of this log were lost' "$scratch/log"; }
until_true told
equal "a reader that comes late is told how many lines were lost" "$?" 0
kill "$copy"
# The one that had begun when the pipe was full may lack its end.
equal "every line of the log begins as one" "$(grep -cvE '^\[20..-..-.. ..:..:..\.[0-9]{3}\] \[rank 0\] \[[a-z]+\] ' "$scratch/log")" 0
many_requests >"$scratch/again"
stop_server
equal "SIGTERM ends the server with code 0 though the pipe is full again" "$stop_code" 0
kill "$reader"

start_with_log /dev/full
equal "requests are answered on a full disk" "$(many_requests)" "1500 404"
stop_server
equal "and the server ends with code 0" "$stop_code" 0

# Without standard descriptors nothing that the server opens takes their place.
"$binary" --config "$config" --port "$(free_port)" <&- >&- 2>&- &
server_pid=$!
has_opened() { [ "$(find "/proc/$server_pid/fd" -lname 'socket:*' 2>/dev/null | wc -l)" -ge 1 ]; }
until_true has_opened
equal "closed standard descriptors are /dev/null" \
  "$(readlink "/proc/$server_pid/fd/"{0,1,2} | sort | uniq -c | xargs)" "3 /dev/null"
stop_server

if grep -q '^0*1 ' /proc/net/if_inet6 2>/dev/null; then
  port=$(free_port)
  "$binary" --config "$config" --set server.host=::1 --port "$port" 2>"$scratch/six" &
  server_pid=$!
  until_true curl -sf -o /dev/null "http://[::1]:$port/health"
  contains "an IPv6 address stands in brackets" "$(cat "$scratch/six")" "on http://[::1]:$port"
  stop_server
fi

start_server
: >"$scratch/stream"
curl -sSN -m 600 -d '{"prompt":"Once","max_tokens":1500,"temperature":0,"ignore_eos":true,"stream":true}' \
  "$url/v1/completions" >"$scratch/stream" &
client=$!
begun() { [ "$(grep -c '^data: {' "$scratch/stream")" -ge 5 ]; }
until_true begun
kill -HUP "$server_pid"
wait "$client"
equal "SIGHUP lets a running stream end" "$(grep '^data:' "$scratch/stream" | tail -n 1)" "data: [DONE]"
code=0
wait "$server_pid" || code=$?
server_pid=
equal "and the server with code 0" "$code" 0
finish
