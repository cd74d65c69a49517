#!/usr/bin/env bash
# A server with the GPU's rounding obeys and agrees with one in fp32 (same_replies.cpp): what scripts/gpu_check.sh asks
# of a GPU.
. "$(dirname "$0")/lib.sh"
start_server --set cpu.mode=bf16
"$(dirname "$binary")/tests/e2e/same_replies" "${url##*:}" >"$scratch/replies" 2>&1 || failures=$((failures + 1))
cat "$scratch/replies"
stop_server
equal "the server ends with code 0" "$stop_code" 0
finish
