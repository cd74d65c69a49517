# One seed, one text: alone, among others, streamed; choices are no copies; temperature 0 needs no seed.
start_server
seeded='{"prompt":"Once upon a time,","max_tokens":40,"temperature":1.2,"seed":-7}'
alone=$(post /v1/completions "$seeded" | jq -r '.choices[0].text')
equal "14.15 again" "$(post /v1/completions "$seeded" | jq -r '.choices[0].text')" "$alone"
for n in 1 2 3 4; do
  (curl -sS -m 300 -o "$scratch/together$n" -d "$seeded" "$url/v1/completions") &
  (curl -sS -m 300 -o /dev/null -d '{"prompt":"Tell me","max_tokens":40,"temperature":1.5}' "$url/v1/completions") &
done
wait $(jobs -p | grep -vx "$server_pid")
for n in 1 2 3 4; do
  equal "14.15 as one of a batch of 4 ($n)" "$(jq -r '.choices[0].text' "$scratch/together$n")" "$alone"
done
many=$(jq -c '. + {n: 4}' <<<"$seeded")
equal "14.15 the first of four choices" "$(post /v1/completions "$many" | jq -r '.choices[0].text')" "$alone"
equal "14.15 the four differ" "$(post /v1/completions "$many" | jq '[.choices[].text] | unique | length')" 4
equal "14.15 another seed gives another text" \
  "$([ "$(post /v1/completions "$(jq -c '.seed = 8' <<<"$seeded")" | jq -r '.choices[0].text')" != "$alone" ] && echo yes)" yes
greedy=$(jq -c '.temperature = 0 | del(.seed)' <<<"$seeded")
text=$(post /v1/completions "$greedy" | jq -r '.choices[0].text')
for seed in 1 99; do
  equal "14.15 temperature 0 whatever the seed ($seed)" \
    "$(post /v1/completions "$(jq -c ". + {seed: $seed}" <<<"$greedy")" | jq -r '.choices[0].text')" "$text"
done
