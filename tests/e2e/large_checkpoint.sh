#!/usr/bin/env bash
# --check of the real model's 120 shards, 164 GiB of holes: by headers alone. Reading the data would take minutes.
. "$(dirname "$0")/lib.sh"

mkdir "$scratch/model"
cp configs/glm53-flash/config.json "$scratch/model/"
cp $tiny/tokenizer.json "$scratch/model/"
equal "the sparse checkpoint has the real size" \
  "$("$(dirname "$binary")/tests/e2e/sparse_checkpoint" "$scratch/model" 4 120)" 175622979576

# The CPU could never hold it, so the check ends with code 3 after everything else was found right.
check() { timeout 20 "$binary" --config $config --set "model.path=$scratch/model" --check 2>&1; }
output=$(check)
equal "a model too large for this machine: code 3" "$?" 3
contains "all shards were seen" "$output" "in 120 files"
contains "the message says what it needs" "$output" "not enough memory"

shard=$scratch/model/model-00077-of-00120.safetensors
truncate -s -1 "$shard"
output=$(check)
equal "a shard cut short: code 2" "$?" 2
contains "the shard is named" "$output" "$shard"
rm "$shard"
output=$(check)
equal "a missing shard: code 2" "$?" 2
contains "the missing shard is named" "$output" "model-00077-of-00120.safetensors: shard is missing"
finish
