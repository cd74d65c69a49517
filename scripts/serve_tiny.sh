#!/usr/bin/env bash
# Builds the server, serves the tiny checkpoint of the test data on the CPU and asks it to count, streamed.
# Usage: scripts/serve_tiny.sh [--once | --keep] [--port N] [option of glm53-serve…]
#   --keep  go on serving until Ctrl-C (the default on a terminal)
#   --once  stop after the answer      (the default elsewhere)
#   --port  8888 unless given here or as PORT=N
# Requests are not logged, so that the answer can be read; --set server.access_log=true logs them.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/packages.sh

keep=false
[ -t 0 ] && [ -t 1 ] && keep=true
port=${PORT:-8888}
options=()
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) sed -n '2,/^[^#]/s/^# //p' scripts/serve_tiny.sh; exit ;;
    --keep) keep=true ;;
    --once) keep=false ;;
    --port) port=${2:?--port: the value is missing}; shift ;;
    --port=*) port=${1#*=} ;;
    *) options+=("$1") ;;
  esac
  shift
done
url=http://127.0.0.1:$port

ensure_packages "${client_packages[@]}"
scripts/build.sh

build/glm53-serve --config configs/tiny-cpu.yaml --set server.access_log=false "${options[@]}" --port "$port" &
server=$!
trap 'kill -TERM "$server" 2>/dev/null && wait "$server"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
for ((try = 0; ; ++try)); do
  curl -sf -o /dev/null "$url/health" && break
  if ! kill -0 "$server" 2>/dev/null; then
    code=0
    wait "$server" || code=$?
    trap - EXIT
    echo "The server ended while starting (exit code $code)." >&2
    exit 1
  fi
  [ "$try" -lt 600 ] || { echo "The server did not become ready within 60 s." >&2; exit 1; }
  sleep 0.1
done

question='Count from 1 to 20, one number per line.'
echo
echo "> $question"
curl -sSN --fail-with-body "$url/v1/chat/completions" -H 'Content-Type: application/json' -d "$(
  jq -n --arg question "$question" '{messages: [{role: "user", content: $question}], temperature: 0, stream: true}'
)" | sed -un 's/^data: \({.*\)$/\1/p' | jq -jn --unbuffered '
  foreach (inputs | .choices[]?.delta) as $delta ({answers: false};
    .text = ($delta.reasoning_content // $delta.content // "") |
    .first = ((.answers | not) and ($delta.content // "") != "") | .answers = (.answers or .first);
    if .first then "\n\n" + .text else .text end)'
echo

if $keep; then
  echo
  echo "Serving on $url; Ctrl-C stops."
  code=0
  wait "$server" || code=$?
  trap - EXIT
  exit "$code"
fi
trap - EXIT
kill -TERM "$server"
wait "$server"
