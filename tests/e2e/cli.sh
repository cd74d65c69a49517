#!/usr/bin/env bash
# The command line: options, precedence of command line, environment and file, and what a start refuses.
. "$(dirname "$0")/lib.sh"

# run ARGUMENT…: sets code and output (both streams).
run() {
  output=$(timeout 60 "$binary" "$@" 2>&1)
  code=$?
}
# refused NAME PART ARGUMENT…: exit code 2 and one line that holds PART.
refused() {
  local name=$1 part=$2
  shift 2
  output=$(timeout 60 "$binary" "$@" 2>&1 >/dev/null)
  code=$?
  equal "refused with code 2: $name" "$code" 2
  contains "the message names it: $name" "$output" "$part"
  equal "the message is one line: $name" "$(wc -l <<<"$output")" 1
}

run --version
equal "--version prints name and version" "$code $(grep -cE '^glm53-serve [0-9]+\.[0-9]+\.[0-9]+' <<<"$output")" "0 1"
run --help
equal "--help ends with code 0" "$code" 0
for option in --config --set --port --rank --served-model-name --generation-config --override-generation-config \
  --print-config --version --check; do
  contains "--help names $option" "$output" "$option"
done

printed() { timeout 60 "$binary" --config $config --print-config "$@" 2>/dev/null; }
# value SECTION KEY: reads "key: value" below "section:" of the printed YAML.
value() {
  awk -v section="$1:" -v key="$2:" '
    /^[a-z]/ { inside = ($1 == section) } inside && $1 == key { print $2; exit }'
}
equal "--print-config shows the file's value" "$(printed | value cluster tp)" 1
equal "--print-config shows defaults" "$(printed | value server max_body_mib)" 96
equal "the environment overrides the file" "$(GLM53_CLUSTER_MASTER_PORT=4000 printed | value cluster master_port)" 4000
equal "--set overrides the environment" \
  "$(GLM53_CLUSTER_MASTER_PORT=4000 printed --set cluster.master_port=5000 | value cluster master_port)" 5000
printed --set ops.drain_s=7 --set server.max_body_mib=12 >"$scratch/printed.yaml"
equal "--set may be repeated" \
  "$(value ops drain_s <"$scratch/printed.yaml") $(value server max_body_mib <"$scratch/printed.yaml")" "7 12"
equal "--port overrides the environment" "$(GLM53_SERVER_PORT=4000 printed --port 5001 | value server port)" 5001
equal "--rank is cluster.rank" "$(printed --set cluster.tp=2 --rank 1 | value cluster rank)" 1
# Comments say where a value comes from, so they differ.
printed >"$scratch/printed.yaml"
equal "the printed configuration can be read back" \
  "$(timeout 60 "$binary" --config "$scratch/printed.yaml" --print-config 2>&1 | sed 's/ *#.*//')" \
  "$(sed 's/ *#.*//' "$scratch/printed.yaml")"

refused "no such file" no-such.yaml --config "$scratch/no-such.yaml"
refused "an unknown option" --colour --colour
refused "an unknown section" servr --config $config --set servr.port=1
refused "an unknown key, naming the nearest" server.port --config $config --set server.prot=1 --print-config
refused "a value of the wrong type" server.port --config $config --set server.port=many --print-config
refused "a value out of range" server.port --config $config --set server.port=70000 --print-config
refused "a section as a key" dense.groups.kda --config $config --set dense.groups=bf16 --print-config
for item in a:b 4:9 4:0 :3 4: 4 -1:3 -0:3 04:3 4:03 4:3:3 99999999999:3 4:3,4:4; do
  refused "dummy.layer_k $item, used or not" dummy.layer_k --config $config --set "dummy.layer_k=$item" --check
done
for json in '{"temperatur": 1}' '{"temperature": 3}' '{"max_new_tokens": 5}' '[]' '{'; do
  refused "generation defaults $json" defaults.override_generation_config --config $config \
    --override-generation-config "$json" --check
done
refused "bodies that exceed all bodies" server.max_bodies_mib --config $config --set server.max_body_mib=300 --check
refused "nothing given" "--config FILE"
printf '' >"$scratch/empty.yaml"
refused "a file without keys" "model.path: not set" --config "$scratch/empty.yaml"
refused "an address that is none" server.host --config $config --set server.host=999.1.1.1 --check
refused "an option in a value's place" "--api-key: the value is missing" --config $config --api-key --check
echo "model: {path: $tiny}" >"$scratch/path.yaml"
run --config "$scratch/path.yaml" --set backend=cpu --check
equal "a path alone is refused with code 2" "$code" 2
for key in cluster.tp draft.kind stream.smooth context kv.dtype dense.format; do
  contains "at once it is said of $key" "$output" "$key: "
done
contains "with a hint at files that work" "$output" "configs/"
run --config $config --api-key= --check
equal "an empty key is none, and the next option counts" "$code $(grep -c 'listening' <<<"$output")" "0 0"
equal "a list may be in brackets" "$(printed --set 'server.cors_origin=[]' --api-key '[a, b]' |
  sed -n 's/^ *\(cors_origin\|api_key\): \(.*\)  #.*/\2/p')" $'["<redacted>", "<redacted>"]\n[]'
equal "the last port counts" "$(printed --port 1 --port 2 | value server port)" 2
GLM53_PORT=1 refused "a variable without its section" GLM53_SERVER_PORT --config $config --print-config
GLM53_SERVER_PROT=1 refused "an unknown variable" GLM53_SERVER_PROT --config $config --print-config
refused "a checkpoint that is not there" "$scratch/nowhere" --config $config --set "model.path=$scratch/nowhere" --check

run --config $config --check --set defaults.reasoning_budget=100
equal "a reasoning budget is served" "$code" 0
mkdir "$scratch/model"
ln -s "$PWD/$tiny"/* "$scratch/model/"
echo "{{ 'Reasoning Effort' }} clear_thinking" >"$scratch/model/chat_template.jinja"
run --config $config --set "model.path=$scratch/model" --check
contains "another chat template is warned of" "$output" \
  "chat_template.jinja knows nothing of tool_reference: prompts are not rendered with it"
equal "and served all the same" "$code" 0
contains "the log begins with the settings that are set" "$output" "model.path: \"$scratch/model\" (--set)"
head -c 1048577 /dev/zero >"$scratch/model/chat_template.jinja"
run --config $config --set "model.path=$scratch/model" --check
contains "a template that is too large is warned of" "$output" "1048577 bytes, more than the limit of 1048576 bytes"
equal "and does not stop the start" "$code" 0
rm "$scratch/model/chat_template.jinja" && mkfifo "$scratch/model/chat_template.jinja"
run --config $config --set "model.path=$scratch/model" --check
contains "so is one that is no file" "$output" "chat_template.jinja: not a regular file"
equal "which does not stop the start either" "$code" 0
run --config $config --check
equal "no template, no warning" "$(grep -c chat_template <<<"$output")" 0
equal "--check of the tiny checkpoint ends with code 0" "$code" 0
contains "--check prints a memory plan" "$(tr '[:upper:]' '[:lower:]' <<<"$output")" weights
finish
