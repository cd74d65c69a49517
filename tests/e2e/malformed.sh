#!/usr/bin/env bash
# Every file of the malformed-input corpora ends a start with exit code 2 and one clear line: never a crash, never a
# hang, never memory taken on a hostile header's word.
. "$(dirname "$0")/lib.sh"

# A sanitised binary reserves terabytes of address space; the others get a limit, so that a huge allocation shows.
if ! grep -q __asan_init "$binary"; then ulimit -v 8000000; fi

# start_with NAME DIRECTORY|'' CONFIG
start_with() {
  local output code lines
  output=$(timeout 60 "$binary" --config "$3" ${2:+--set "model.path=$2"} --check 2>&1 >/dev/null)
  code=$?
  # Log lines of the load may precede the error, which is one line.
  lines=$(grep -c '^glm53-serve: error: ' <<<"$output")
  lines=$((lines + $(grep -vcE '^glm53-serve: error: |^\[[^]]*\]|^$' <<<"$output")))
  if [ "$code" -ne 2 ]; then
    not_ok "$1: exit code 2" "exit code $code: ${output:0:800}"
  elif [ "$lines" -ne 1 ]; then
    not_ok "$1: one line" "${output:0:800}"
  else
    ok "$1"
  fi
}

# model_with FILE NAME: a copy of the tiny checkpoint in links, FILE in the place of NAME.
model_with() {
  rm -rf "$scratch/model"
  mkdir "$scratch/model"
  ln -s "$PWD/$tiny"/* "$scratch/model/"
  ln -sf "$PWD/$1" "$scratch/model/$2"
}

corpus() {
  local files=("tests/data/malformed/$1"/*)
  [ -e "${files[0]}" ] || { not_ok "the corpus $1 exists"; return 1; }
  printf '%s\n' "${files[@]}"
}

while IFS= read -r file; do
  # A single file beside no index is the whole checkpoint; its header is what is judged.
  rm -rf "$scratch/model"
  mkdir "$scratch/model"
  ln -s "$PWD/$tiny"/*.json "$scratch/model/"
  rm "$scratch/model/model.safetensors.index.json"
  ln -s "$PWD/$file" "$scratch/model/model.safetensors"
  start_with "safetensors/$(basename "$file")" "$scratch/model" $config
done < <(corpus safetensors)
while IFS= read -r file; do
  model_with "$file" config.json
  start_with "config_json/$(basename "$file")" "$scratch/model" $config
done < <(corpus config_json)
while IFS= read -r file; do
  model_with "$file" tokenizer.json
  start_with "tokenizer_json/$(basename "$file")" "$scratch/model" $config
done < <(corpus tokenizer_json)
while IFS= read -r file; do
  start_with "yaml/$(basename "$file")" '' "$file"
done < <(corpus yaml)

# Faults of a checkpoint that no single file shows.
model_with "$tiny/tokenizer.json" tokenizer.json
rm "$scratch/model/model-00002-of-00003.safetensors"
start_with "a missing shard" "$scratch/model" $config
model_with "$tiny/tokenizer.json" tokenizer.json
head -c 100000 "$tiny/model-00001-of-00003.safetensors" >"$scratch/cut"
ln -sf "$scratch/cut" "$scratch/model/model-00001-of-00003.safetensors"
start_with "a shard cut short" "$scratch/model" $config
model_with "$tiny/tokenizer.json" tokenizer.json
rm "$scratch/model/model.safetensors.index.json" "$scratch/model/model-00002-of-00003.safetensors"
start_with "missing tensors" "$scratch/model" $config
model_with "$tiny/tokenizer.json" tokenizer.json
rm "$scratch/model/tokenizer.json"
start_with "no tokenizer.json" "$scratch/model" $config
finish
