# Shell tests against the real binary. Sourced by the scripts beside it: each prints "ok NAME" or "not ok NAME" lines and
# ends through `finish`. SERVE_BINARY names the binary.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

binary=${SERVE_BINARY:-build/glm53-serve}
config=configs/tiny-cpu.yaml
golden=tests/data/golden
tiny=tests/data/models/glm53-tiny
scratch=$(mktemp -d)
server_pid=
url=
failures=0

cleanup() {
  [ -z "$server_pid" ] || kill -KILL "$server_pid" 2>/dev/null
  rm -rf "$scratch"
}
trap cleanup EXIT

ok() { echo "ok $1"; }
not_ok() {
  echo "not ok $1"
  failures=$((failures + 1))
  shift
  [ $# -eq 0 ] || printf '    %s\n' "$@"
}
finish() { exit $((failures > 0)); }

# equal NAME ACTUAL EXPECTED
equal() {
  if [ "$2" = "$3" ]; then ok "$1"; else not_ok "$1" "expected: ${3:0:600}" "but got:  ${2:0:600}"; fi
}
# contains NAME ACTUAL PART
contains() {
  if [[ "$2" == *"$3"* ]]; then ok "$1"; else not_ok "$1" "expected part: $3" "in:            ${2:0:600}"; fi
}

# A port nobody listens on now.
free_port() {
  local port
  while :; do
    port=$((20000 + RANDOM % 12000))
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
  done
}

# start_server [option…]: sets url and server_pid; the log goes to $scratch/server.log. Ends the script when the server
# does not become ready.
start_server() {
  local port try
  port=$(free_port)
  url=http://127.0.0.1:$port
  "$binary" --config "$config" --port "$port" "$@" >"$scratch/server.log" 2>&1 &
  server_pid=$!
  for ((try = 0; try < 600; ++try)); do
    curl -sf -o /dev/null "$url/health" && return
    kill -0 "$server_pid" 2>/dev/null || break
    sleep 0.1
  done
  not_ok "the server starts" "$(tail -n 20 "$scratch/server.log")"
  finish
}

# Sends SIGTERM and waits; sets stop_code.
stop_server() {
  kill -TERM "$server_pid"
  stop_code=0
  wait "$server_pid" || stop_code=$?
  server_pid=
}

# post PATH JSON [curl option…]: the reply's body; its status goes to $scratch/status.
post() {
  local path=$1 body=$2
  shift 2
  printf '%s' "$body" | curl -sS -m 300 -o "$scratch/reply" -w '%{http_code}' -H 'Content-Type: application/json' \
    --data-binary @- "$@" "$url$path" >"$scratch/status"
  cat "$scratch/reply"
}
status() { cat "$scratch/status"; }

# Fields of a chat request: with reasoning, bounded, and without.
on='"chat_template_kwargs":{"enable_thinking":true},"thinking_token_budget":40'
off='"chat_template_kwargs":{"enable_thinking":false}'
# every_draw NAME CHECK: CHECK gets the fields of a reply as an argument, with reasoning and without, greedy and hot, and
# prints what is wrong with it: nothing, each time.
every_draw() {
  local name=$1 check=$2 mode draw bad='' n=0
  for mode in "$on" "$off"; do
    for draw in '"temperature":0' '"temperature":1.5,"top_p":1,"seed":'{1,2,3}; do
      bad+=$("$check" "$mode,$draw")
      n=$((n + 1))
    done
  done
  if [ -z "$bad" ]; then ok "$name ($n replies)"; else not_ok "$name" "$bad"; fi
}

# until_true COMMAND…: until it succeeds; fails when it has not within two minutes.
until_true() {
  local give_up=$((SECONDS + 120))
  until "$@"; do
    [ "$SECONDS" -lt "$give_up" ] || return 1
    sleep 0.02
  done
}

# The data of an SSE body, one JSON value a line, without the closing [DONE].
events() { sed -n 's/^data: \({.*\)$/\1/p'; }
