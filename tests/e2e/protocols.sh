#!/usr/bin/env bash
# Metrics and the protocols beside OpenAI's chat, against the tiny checkpoint: answers, streams and refusals.
. "$(dirname "$0")/lib.sh"
start_server
model=$(curl -s "$url/v1/models" | jq -r '.data[0].id')

# ---- metrics
# metric NAME [LABELS]: the sample's value.
metric() { curl -s "$url/metrics" | sed -n "s/^$1{model_name=\"$model\",engine=\"0\"${2:+,$2}} //p"; }
equal "no token was delivered before the first request" "$(metric vllm:generation_tokens_total)" 0
usage=$(post /v1/completions '{"prompt":"Once upon a time,","max_tokens":6,"ignore_eos":true}' |
  jq -r '.usage | "\(.prompt_tokens) \(.completion_tokens)"')
equal "prompt and reply are counted" "$(metric vllm:prompt_tokens_total) $(metric vllm:generation_tokens_total)" "$usage"
equal "its end is counted" "$(metric vllm:request_success_total 'finished_reason="length"')" 1
equal "its first token and the five after it are timed" \
  "$(metric vllm:time_to_first_token_seconds_count) $(metric vllm:inter_token_latency_seconds_count)" "1 5"
equal "nothing runs, waits or holds pages afterwards" \
  "$(metric vllm:num_requests_running) $(metric vllm:num_requests_waiting) $(metric vllm:kv_cache_usage_perc)" "0 0 0"
equal "every line is a comment or a sample" \
  "$(curl -s "$url/metrics" | grep -vcE '^(# (HELP|TYPE) [a-z0-9_:]+ .+|[a-z0-9_:]+\{[^}]*\} [0-9.e+-]+)$')" 0

stop_server
equal "SIGTERM ends the server with code 0" "$stop_code" 0
finish
