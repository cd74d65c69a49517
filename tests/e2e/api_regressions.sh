#!/usr/bin/env bash
# One case for each trap of spec 40 §14 and for each row of spec 80 §2.1 in which the HTTP library alone goes wrong. Every
# file of the folder beside this script is one item of §14 or, 80_http_rows, that table; names carry its number.
#   api_regressions.sh [ITEM…]   only the files that begin so: 03 80
. "$(dirname "$0")/lib.sh"
program_folder=$(dirname "$binary")/tests/e2e

# counts RUNNING WAITING: what /health says now.
counts() { [ "$(curl -s "$url/health" | jq -c '[.running, .waiting]')" = "[$1,$2]" ]; }
is_idle() { counts 0 0; }

# user TEXT [JSON]: a greedy chat request of one user message, with more fields.
user() { jq -nc --arg text "$1" "{messages: [{role: \"user\", content: \$text}], temperature: 0, max_tokens: 400} + ${2:-{\}}"; }

# scripted TOKENS: fields that make a greedy reply these tokens and no others. TOKENS is a list of texts of one token each,
# the last one an end id. The first is chosen by its bias; after it, bad words ban whatever does not follow.
scripted() {
  local ids
  ids=$(jq -c '.[]' <<<"$1" | while read -r text; do post /tokenize "{\"prompt\":$text}" | jq -c '.tokens'; done | jq -sc .)
  jq -e 'all(length == 1)' >/dev/null <<<"$ids" || not_ok "a script holds texts of one token" "$1" "$ids"
  jq -nc --argjson texts "$1" --argjson ids "$ids" '
    ($ids | map(.[0])) as $all |
    # The shortest end of what has been said after which `next` never comes.
    def banned($i; $next): [range(1; $i + 2) | . as $k | ($texts[$i + 1 - $k : $i + 1] + [$next]) as $words |
      select([range($texts | length) | $texts[. : . + ($words | length)] == $words] | any | not) | $words | join("")][0] //
      error("no bad word tells what follows \($texts[: $i + 1])");
    {temperature: 0, allowed_token_ids: ($all | unique), logit_bias: {"\($all[0])": 100},
     bad_words: ([range(($texts | length) - 1) as $i | ($texts | unique[]) | select(. != $texts[$i + 1]) | banned($i; .)] |
       unique)}'
}

# A reply's parts, from a whole chat completion and from the chunks of a streamed one.
whole_parts() {
  jq -c '.choices[0] | {reasoning: (.message.reasoning_content // ""), content: (.message.content // ""),
    calls: [.message.tool_calls[]?.function | {name, arguments}], finish: .finish_reason, stop: .stop_reason}'
}
streamed_parts() {
  events | jq -cs '[.[].choices[]?] | {reasoning: ([.[].delta.reasoning_content // empty] | join("")),
    content: ([.[].delta.content // empty] | join("")),
    calls: ([.[].delta.tool_calls[]?] | group_by(.index) |
      map({name: ([.[].function.name // empty] | join("")), arguments: ([.[].function.arguments // empty] | join(""))})),
    finish: ([.[].finish_reason // empty] | last), stop: ([.[].stop_reason // empty] | last)}'
}
# chat_both NAME REQUEST: runs it whole and streamed, which must agree; sets parts. The replies stay in $scratch/whole and
# $scratch/stream.
chat_both() {
  post /v1/chat/completions "$2" >"$scratch/whole"
  equal "$1: status" "$(status)" 200
  parts=$(whole_parts <"$scratch/whole")
  post /v1/chat/completions "$(jq -c '. + {stream: true}' <<<"$2")" >"$scratch/stream"
  equal "$1: the streamed reply is the whole one" "$(streamed_parts <"$scratch/stream")" "$parts"
}
part() { jq -r ".$1" <<<"$parts"; }
# refused NAME PATH REQUEST PARAM [PART]: 400 naming the parameter, whole and streamed.
refused() {
  local streamed
  for streamed in false true; do
    post "$2" "$(jq -c ". + {stream: $streamed}" <<<"$3")" >"$scratch/refusal"
    equal "$1 (stream $streamed)" "$(status) $(jq -r '.error.param' "$scratch/refusal" 2>&1)" "400 $4"
    [ $# -lt 5 ] || contains "$1: message (stream $streamed)" "$(jq -r '.error.message' "$scratch/refusal")" "$5"
  done
}

# http_rows ITEM: the checks of http_rows.cpp that belong to it, against a server with the limits it expects.
http_rows() {
  start_server --set server.max_body_mib=1 --set server.header_timeout_s=2 --set scheduler.prefill_rows=64
  "$program_folder/http_rows" "${url##*:}" "$server_pid" "$1" >"$scratch/rows" 2>&1 || failures=$((failures + 1))
  cat "$scratch/rows"
}

for item in "${0%.sh}"/*.sh; do
  wanted=$([ $# -eq 0 ] && echo yes)
  for prefix in "$@"; do [[ ${item##*/} != "$prefix"* ]] || wanted=yes; done
  [ -n "$wanted" ] || continue
  . "$item"
  [ -z "$server_pid" ] || stop_server
done
finish
