#!/usr/bin/env bash
# Real clients against the tiny checkpoint: the OpenAI, Anthropic and AI SDKs, and every stream byte by byte.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/clients/install.sh"
install_clients
# One reply runs and eight may wait, which the suites' cases of a full queue count on.
start_server --set server.api_key=test-key --set scheduler.max_streams=1 --set scheduler.max_queued=8
for suite in openai_chat openai_responses openai_tools anthropic anthropic_tools ai_sdk ai_sdk_tools constrained sse_framing; do
  timeout 300 node $clients/$suite.mjs "$url" test-key >"$scratch/suite"
  code=$?
  cat "$scratch/suite"
  failures=$((failures + $(grep -c '^not ok ' "$scratch/suite")))
  # A suite that dies says no "not ok".
  [ $code -eq 0 ] || grep -q '^not ok ' "$scratch/suite" || not_ok "$suite ends with code 0" "but with $code"
done
stop_server
equal "the server ends with code 0" "$stop_code" 0
finish
