# /metrics parses, and every name of spec 40 §13 is there at zero before the first request.
start_server
curl -sS -D "$scratch/headers" "$url/metrics" >"$scratch/metrics"
contains "14.16 the type is Prometheus text" "$(cat "$scratch/headers")" "Content-Type: text/plain; version=0.0.4"
# A line is a comment with a known word, or NAME{LABELS} NUMBER.
equal "14.16 every line parses" "$(grep -cvE '^(# (HELP|TYPE) [a-z0-9_:]+ .+|[a-zA-Z_:][a-zA-Z0-9_:]*(\{([a-z_]+="([^"\\]|\\.)*",?)*\})? -?([0-9.]+(e[+-]?[0-9]+)?|\+Inf|NaN))$' "$scratch/metrics")" 0
equal "14.16 every series has its type" "$(grep -v '^#' "$scratch/metrics" | sed -E 's/[{ ].*//; s/_(bucket|sum|count)$//' | sort -u |
  while read -r name; do grep -qE "^# TYPE $name (gauge|counter|histogram)$" "$scratch/metrics" || echo "$name"; done)" ""
equal "14.16 no series comes twice" "$(grep -v '^#' "$scratch/metrics" | sed 's/ [^ ]*$//' | sort | uniq -d)" ""
value() { sed -n "s/^$1\({.*}\)\{0,1\} \(.*\)\$/\2/p" "$scratch/metrics" | sort -u | paste -sd' '; }
for name in num_requests_running num_requests_waiting kv_cache_usage_perc gpu_cache_usage_perc \
  prefix_cache_queries_total prefix_cache_hits_total gpu_prefix_cache_queries_total gpu_prefix_cache_hits_total \
  mm_cache_queries_total mm_cache_hits_total num_preemptions_total prompt_tokens_total generation_tokens_total \
  request_success_total spec_decode_num_drafts_total spec_decode_num_draft_tokens_total \
  spec_decode_num_accepted_tokens_total spec_decode_num_accepted_tokens_per_pos_total; do
  equal "14.16 vllm:$name is there and 0" "$(value "vllm:$name")" 0
done
for name in iteration_tokens_total time_to_first_token_seconds inter_token_latency_seconds \
  request_time_per_output_token_seconds time_per_output_token_seconds e2e_request_latency_seconds request_queue_time_seconds \
  request_inference_time_seconds request_prefill_time_seconds request_decode_time_seconds request_prompt_tokens \
  request_generation_tokens request_max_num_generation_tokens request_params_max_tokens request_prefill_kv_computed_tokens \
  request_params_n; do
  equal "14.16 vllm:$name is there and empty" \
    "$(value "vllm:${name}_count") $(value "vllm:${name}_sum") $(value "vllm:${name}_bucket")" "0 0 0"
done
for reason in stop length abort error; do
  equal "14.16 vllm:request_success_total knows $reason" \
    "$(grep -c "^vllm:request_success_total{.*finished_reason=\"$reason\"} 0$" "$scratch/metrics")" 1
done
contains "14.16 labels name model and engine" "$(grep '^vllm:num_requests_running' "$scratch/metrics")" \
  "{model_name=\"$(curl -s "$url/v1/models" | jq -r '.data[0].id')\",engine=\"0\"}"
equal "14.16 vllm:cache_config_info is there" "$(grep -c '^vllm:cache_config_info{.*block_size="64".*} 1$' "$scratch/metrics")" 1

post /v1/completions '{"prompt":"Once","max_tokens":4,"temperature":0,"ignore_eos":true}' >/dev/null
curl -sS "$url/metrics" >"$scratch/metrics"
equal "14.16 a request is counted" \
  "$(value vllm:generation_tokens_total) $(value vllm:time_to_first_token_seconds_count) $(value vllm:num_requests_running)" "4 1 0"
