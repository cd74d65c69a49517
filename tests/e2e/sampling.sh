#!/usr/bin/env bash
# Sampling fields of both completion routes against the tiny checkpoint: what they promise, seen from outside.
. "$(dirname "$0")/lib.sh"
start_server

# complete FIELDS: a completion of a fixed prompt.
complete() { post /v1/completions "$(jq -c ". + $1" <<<'{"prompt":"Once upon a time,","max_tokens":12,"temperature":0}')"; }
# chat FIELDS: a chat reply.
chat() {
  post /v1/chat/completions "$(jq -c ". + $1" \
    <<<'{"messages":[{"role":"user","content":"What is 8 * 7?"}],"max_tokens":40,"temperature":0}')"
}
text() { jq -r '.choices[0].text'; }
plain=$(complete '{}' | text)
equal "greedy has a text" "$([ -n "$plain" ] && echo yes)" yes

# ---- logprobs
reply=$(chat '{logprobs: true, top_logprobs: 5}')
equal "one logprob entry for each completion token" \
  "$(jq '(.choices[0].logprobs.content | length) == .usage.completion_tokens' <<<"$reply")" true
equal "a greedy token is the likeliest" \
  "$(jq '[.choices[0].logprobs.content[] | .token == .top_logprobs[0].token and .logprob == .top_logprobs[0].logprob] | all' <<<"$reply")" true
equal "top logprobs descend, are five, and are shares of one" \
  "$(jq '[.choices[0].logprobs.content[].top_logprobs | length == 5 and ([.[].logprob] | . == (sort | reverse))
    and ([.[].logprob | exp] | add) <= 1.0001] | all' <<<"$reply")" true
equal "the tokens spell the reply" \
  "$(jq -j '[.choices[0].logprobs.content[].token] | join("") | sub("<\\|[a-z]+\\|>$"; "")' <<<"$reply")" \
  "$(jq -j '.choices[0].message | .reasoning_content + "</think>" + .content' <<<"$reply")"
chat '{logprobs: true, top_logprobs: 5, stream: true}' >"$scratch/stream"
equal "a stream delivers the same logprobs" \
  "$(events <"$scratch/stream" | jq -c '.choices[0].logprobs.content[]?')" "$(jq -c '.choices[0].logprobs.content[]' <<<"$reply")"
reply=$(complete '{logprobs: 3}')
equal "completion logprobs are lists of one length" \
  "$(jq '[.choices[0].logprobs[] | length] | unique == [12]' <<<"$reply")" true
equal "the tokens of a completion spell its text" "$(jq -r '.choices[0].logprobs.tokens | join("")' <<<"$reply")" "$plain"
reply=$(complete '{logprobs: 0, echo: true, max_tokens: 1}')
equal "echo repeats the prompt" "$(jq -r '.choices[0].text | startswith("Once upon a time,")' <<<"$reply")" true
equal "echoed logprobs begin with null and cover prompt and reply" \
  "$(jq -c '.choices[0].logprobs.token_logprobs as $l | [$l[0], ($l | length) == .usage.total_tokens, ($l[1:] | all(. <= 0))]' <<<"$reply")" \
  '[null,true,true]'
equal "echoed tokens spell prompt and reply" "$(jq -r '.choices[0].logprobs.tokens | join("")' <<<"$reply")" \
  "$(text <<<"$reply")"

# ---- biases and bans
equal "logit_bias +100 forces a token" "$(complete '{logit_bias: {"64": 100}, max_tokens: 5}' | text)" aaaaa
first=$(complete '{logprobs: 1, max_tokens: 1}' | jq -r '.choices[0].logprobs.tokens[0]')
first_id=$(post /v1/completions "$(jq -nc --arg p "$first" '{prompt: $p, max_tokens: 1, echo: true}')" | jq '.usage.prompt_tokens')
equal "the first greedy token is one token" "$first_id" 1
banned=$(complete "$(jq -nc --arg w "${first# }" '{bad_words: [$w], max_tokens: 12}')" | text)
equal "a bad word does not come" "$([[ "$banned" != *"${first# }"* ]] && echo yes)" yes
equal "allowed_token_ids leaves nothing else" \
  "$(complete '{allowed_token_ids: [64, 65], max_tokens: 6, ignore_eos: true}' | text | tr -d ab)" ""
forced='{prompt: [64], max_tokens: 8, temperature: 0, logit_bias: {"4060": 100}}'
equal "an end token of bias +100 ends at once" \
  "$(post /v1/completions "$(jq -nc "$forced")" | jq -c '[.usage.completion_tokens, .choices[0].finish_reason]')" '[1,"stop"]'
equal "min_tokens holds the end back" \
  "$(post /v1/completions "$(jq -nc "$forced + {min_tokens: 4}")" | jq -c '[.usage.completion_tokens, .choices[0].finish_reason]')" '[5,"stop"]'
equal "ignore_eos goes on to the limit" \
  "$(post /v1/completions "$(jq -nc "$forced + {ignore_eos: true}")" | jq -c '[.usage.completion_tokens, .choices[0].finish_reason]')" '[8,"length"]'
equal "logit_bias -100 bans a token" \
  "$(post /v1/completions "$(jq -nc "$forced + {logit_bias: {\"64\": 100, \"65\": 100, \"4060\": -100}, max_tokens: 5}")" | text | tr -d ab)" ""
equal "a biased end id is not in the text" "$(post /v1/completions "$(jq -nc "$forced")" | text)" ""

# ---- penalties
two='{prompt: [64], max_tokens: 12, temperature: 0, ignore_eos: true, allowed_token_ids: [64, 65, 66, 67]}'
distinct() { jq -r '.choices[0].text' | fold -w1 | sort -u | wc -l; }
repeated=$(post /v1/completions "$(jq -nc "$two + {logit_bias: {\"64\": 5}}")" | distinct)
varied=$(post /v1/completions "$(jq -nc "$two + {logit_bias: {\"64\": 5}, frequency_penalty: 2, presence_penalty: 2}")" | distinct)
equal "frequency and presence penalties vary the text" "$([ "$varied" -gt "$repeated" ] && echo yes)" yes
equal "a huge repetition penalty avoids the prompt and every repetition" \
  "$(post /v1/completions "$(jq -nc '{prompt: [64], max_tokens: 3, temperature: 0, ignore_eos: true,
    allowed_token_ids: [64, 65, 66, 67], logit_bias: {"64": 100, "65": 100, "66": 100, "67": 100},
    repetition_penalty: 1000}')" | jq -r '.choices[0].text' | fold -w1 | sort | tr -d '\n')" bcd

# ---- stops
equal "a stop string across tokens cuts before it" \
  "$(post /v1/completions "$(jq -nc '{prompt: [64], max_tokens: 8, temperature: 0, logit_bias: {"65": 100}, stop: ["bbb"]}')" |
    jq -c '[.choices[0].text, .usage.completion_tokens, .choices[0].stop_reason]')" '["",3,"bbb"]'
equal "include_stop_str_in_output keeps it" \
  "$(post /v1/completions "$(jq -nc '{prompt: [64], max_tokens: 8, temperature: 0, logit_bias: {"65": 100}, stop: ["bbb"],
    include_stop_str_in_output: true}')" | text)" bbb
equal "a stop id ends and is reported" \
  "$(post /v1/completions "$(jq -nc '{prompt: [64], max_tokens: 8, temperature: 0, logit_bias: {"65": 100}, stop_token_ids: [65]}')" |
    jq -c '[.choices[0].text, .usage.completion_tokens, .choices[0].stop_reason]')" '["",1,65]'

# ---- seeds and choices
seeded='{temperature: 1.3, seed: 11, n: 3, max_tokens: 16}'
reply=$(complete "$seeded")
texts=$(jq -c '[.choices[].text]' <<<"$reply")
equal "n choices come in order" "$(jq -c '[.choices[].index]' <<<"$reply")" '[0,1,2]'
equal "the choices of one seed differ" "$(jq 'unique | length' <<<"$texts")" 3
equal "and repeat" "$(complete "$seeded" | jq -c '[.choices[].text]')" "$texts"
equal "choice 0 is the reply without n" "$(complete '{temperature: 1.3, seed: 11, max_tokens: 16}' | text)" \
  "$(jq -r '.[0]' <<<"$texts")"
equal "usage counts the prompt once and all choices" \
  "$(jq -c '.usage | [.prompt_tokens < 16, .completion_tokens > 16, .total_tokens == .prompt_tokens + .completion_tokens]' <<<"$reply")" \
  '[true,true,true]'
complete "$seeded + {stream: true}" >"$scratch/stream"
equal "streamed choices have the same texts" \
  "$(events <"$scratch/stream" | jq -sc '[range(3) as $i | [.[].choices[] | select(.index == $i) | .text] | join("")]')" "$texts"
equal "several prompts give a choice each" \
  "$(complete '{prompt: ["One, two,", [64, 65]], max_tokens: 2}' | jq -c '[.choices[].index]')" '[0,1]'

# ---- tokenize
greeting='{messages: [{role: "user", content: "hi"}], reasoning_effort: "high"}'
reply=$(post /tokenize "$(jq -nc "$greeting + {return_token_strs: true}")")
equal "a tokenized chat is the chat's prompt" "$(jq .count <<<"$reply")" \
  "$(post /v1/chat/completions "$(jq -nc "$greeting + {max_tokens: 1}")" | jq .usage.prompt_tokens)"
equal "its strings begin and end as the template does" "$(jq -c '[.token_strs[0, 1, 2, -2, -1]]' <<<"$reply")" \
  '["[gMASK]","<sop>","<|system|>","<|assistant|>","<think>"]'
equal "detokenize is the way back" "$(post /detokenize "$(jq -c '{tokens}' <<<"$reply")" | jq -r .prompt)" \
  "[gMASK]<sop><|system|>Reasoning Effort: High<|user|>hi<|assistant|><think>"

# ---- refusals name the field
refused() {
  post "$1" "$(jq -nc "{messages: [{role: \"user\", content: \"hi\"}], prompt: \"hi\"} + $3")" >/dev/null
  equal "refused: $2" "$(status) $(jq -r '.error.param' "$scratch/reply")" "400 $2"
}
refused /v1/chat/completions n '{n: 9}'
refused /v1/chat/completions n '{n: 2, temperature: 0}'
refused /v1/chat/completions top_logprobs '{top_logprobs: 2}'
refused /v1/chat/completions top_logprobs '{logprobs: true, top_logprobs: 21}'
refused /v1/completions logprobs '{logprobs: 21}'
refused /v1/completions logit_bias '{logit_bias: {"4096": 1}}'
refused /v1/completions presence_penalty '{presence_penalty: 3}'
refused /v1/completions repetition_penalty '{repetition_penalty: 0}'
refused /v1/completions 'allowed_token_ids[0]' '{allowed_token_ids: [4096]}'
refused /v1/completions min_tokens '{min_tokens: 50}'
refused /v1/completions 'prompt[1]' '{prompt: ["a", ""]}'

stop_server
equal "the server ends well" "$stop_code" 0
finish
