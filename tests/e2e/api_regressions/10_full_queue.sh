# A full queue is 429 before any header, whatever the route and whether it streams.
start_server --set scheduler.max_queued=1
endless='{"prompt":"Once upon a time,","max_tokens":7000,"temperature":0,"ignore_eos":true,"stream":true}'
clients=()
for n in 1 2; do
  (exec curl -sSN -m 600 -o /dev/null -d "$endless" "$url/v1/completions" 2>/dev/null) &
  clients+=($!)
done
until_true counts 1 1 || not_ok "14.10 one runs and one waits" "$(curl -s "$url/health")"
# answer PATH JSON: status, Retry-After and type of the reply that a body meets.
answer() {
  curl -sS -m 60 -o "$scratch/reply" -w '%{http_code} %header{retry-after} %{content_type}' -d "$2" "$url$1"
}
for streamed in false true; do
  for path in /v1/completions /v1/chat/completions /v1/responses; do
    case $path in
      /v1/completions) request='{"prompt":"Hello"}' ;;
      /v1/responses) request='{"input":"Hello"}' ;;
      *) request=$(user "Hello") ;;
    esac
    equal "14.10 $path with stream $streamed is refused" \
      "$(answer $path "$(jq -c ". + {stream: $streamed}" <<<"$request")") $(jq -r '.error | "\(.type) \(.code)"' "$scratch/reply")" \
      "429 5 application/json rate_limit_error queue_full"
  done
  equal "14.10 /v1/messages with stream $streamed is refused" \
    "$(answer /v1/messages "$(user "Hello" "{stream: $streamed}")") $(jq -r '.error.type' "$scratch/reply")" \
    "529 5 application/json overloaded_error"
done
equal "14.10 what needs no place is answered: count_tokens" \
  "$(post /v1/messages/count_tokens "$(user "Hello")" | jq '.input_tokens > 0')" true
equal "14.10 refusals are counted" "$(curl -s "$url/metrics" | sed -n 's/^glm53:queue_refusals_total{.*} //p')" 8
kill "${clients[@]}"
wait "${clients[@]}" 2>/dev/null
until_true is_idle || not_ok "14.10 the clients leave" "$(curl -s "$url/health")"
equal "14.10 then requests are served again" \
  "$(post /v1/completions '{"prompt":"Once","max_tokens":2,"temperature":0}' | jq '.usage.completion_tokens')" 2
