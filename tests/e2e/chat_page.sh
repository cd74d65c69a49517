#!/usr/bin/env bash
# The chat page: its files by curl, then what a user does with it in headless Chromium. Screenshots go to build/.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/clients/install.sh"

# header NAME: of the reply whose head is in $scratch/head.
header() { sed -n "s/^$1: \(.*\)\r$/\1/p" "$scratch/head"; }
start_server --set server.api_key=test-key
page=$(curl -s -D "$scratch/head" "$url/")
contains "the page needs no key" "$page" "<title>glm53-serve</title>"
equal "it is HTML that browsers ask for again" "$(header Content-Type), $(header Cache-Control)" \
  "text/html; charset=utf-8, no-cache"
contains "it may load from its own server only" "$(header Content-Security-Policy)" "default-src 'none'; script-src 'self'"
equal "a browser that has it gets 304" \
  "$(curl -s -o /dev/null -w '%{http_code} %{size_download}' -H "If-None-Match: $(header ETag)" "$url/")" "304 0"
for file in src/server/page/*; do
  curl -s "$url/page/${file##*/}" | cmp -s - "$file"
  equal "page/${file##*/} is the file" $? 0
done
equal "no file, no page" "$(curl -s -o /dev/null -w '%{http_code}' "$url/page/no.js")" 404
equal "the page is for reading" "$(curl -s -o /dev/null -w '%{http_code}' -X POST "$url/")" 405
stop_server

install_clients
ensure_packages "${browser_packages[@]}" || { echo "skipped: no Chromium here" && finish; }
mkdir -p build
start_server --set server.api_key=test-key
timeout 600 node $clients/chat_page.mjs "$url" test-key /usr/bin/chromium build 2>"$scratch/errors" >"$scratch/suite"
code=$?
cat "$scratch/suite"
failures=$((failures + $(grep -c '^not ok ' "$scratch/suite")))
[ $code -eq 0 ] || grep -q '^not ok ' "$scratch/suite" ||
  not_ok "the browser suite ends with code 0" "but with $code" "$(tail -n 20 "$scratch/errors")"
stop_server

start_server --set api.chat_page=false
equal "api.chat_page false: no page" "$(for path in / /page/chat.js; do
  curl -s -o /dev/null -w '%{http_code} ' "$url$path"; done)" "404 404 "
stop_server
finish
