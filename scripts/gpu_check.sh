#!/usr/bin/env bash
# Checks and measures on a machine with a GPU (compute capability 9.0 or 12.1). Each part takes at most 8 minutes:
#   gates     all tests of kernels and model on the GPU; the server on configs/tiny-cuda.yaml answers the greedy text of
#             the CPU server for every golden prompt, as far as the bands of tests/data/golden/README.md call it stable,
#             and obeys and agrees on requests with every sampling field and with grammars (tests/e2e/same_replies.cpp)
#   sanitize  compute-sanitizer, memcheck and racecheck, over small tests of every kernel
#   kernels   kernel table: the benchmarks of single kernels
#   model     whole-model table, and what each storage format costs in KL divergence
# Usage: scripts/gpu_check.sh gates|sanitize|kernels|model [PACK]
#   PACK  folder of scripts/pack_gpu.sh. Without it the programs are built where nvcc is found (in build-gpu-check), else
#         build-gpu-pack is taken.
# The last line says what passed; the exit code is 0 when all did.
set -uo pipefail
cd "$(dirname "$0")/.."
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1

part=${1:-}
[[ $part =~ ^(gates|sanitize|kernels|model)$ ]] || { sed -n '2,12s/^# \?//p' "$0" >&2; exit 2; }
started=$SECONDS
failed=()
passed=0
# check NAME COMMAND…: runs and counts.
check() {
  local name=$1
  shift
  echo "-- $name"
  if "$@"; then
    passed=$((passed + 1))
  else
    echo "not ok $name (exit code $?)"
    failed+=("$name")
  fi
}
finish() {
  local state=ok
  if [ ${#failed[@]} -gt 0 ] || [ "$passed" -eq 0 ]; then state=FAILED; fi
  echo "gpu_check $part: $state, $passed passed, ${#failed[@]} failed${failed[*]:+ (${failed[*]})}, $((SECONDS - started)) s"
  [ $state = ok ]
  exit
}
give_up() {
  echo "$1" >&2
  failed+=("$2")
  finish
}

nvcc=$(command -v nvcc || { [ -x /usr/local/cuda/bin/nvcc ] && echo /usr/local/cuda/bin/nvcc; })
if [ $# -gt 1 ]; then
  pack=$2
elif [ -n "$nvcc" ]; then
  build=build-gpu-check
  . scripts/packages.sh
  ensure_packages "${build_packages[@]}" "${test_packages[@]}" &&
    cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=Release -DGLM53_CUDA=ON -DGLM53_CUDA_ARCHITECTURES=native \
      -DGLM53_TESTS=ON -DGLM53_BENCH=ON -DCMAKE_CUDA_COMPILER="$nvcc" &&
    cmake --build $build --parallel "$(nproc)" || give_up "The build failed; a carried one can be named: $0 $part PACK" build
  pack=$build
else
  pack=build-gpu-pack
fi
# program NAME: its path in a pack or in a build.
program() {
  local path
  for path in "$pack/$1" "$pack/tests/gpu/$1" "$pack/tests/e2e/$1" "$pack/tests/bench/gpu/$1"; do
    if [ -f "$path" ] && [ -x "$path" ]; then
      echo "$path"
      return
    fi
  done
}
for name in glm53-serve test_gpu test_gpu_model gpu_same_text same_replies; do
  [ -n "$(program $name)" ] || give_up "$pack: no program $name (scripts/pack_gpu.sh makes a pack)" pack
done
nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader 2>/dev/null || true

# tests PROGRAM FILTER: GoogleTest; a skipped test counts as a failure, since here there must be a GPU.
tests() {
  local log code
  log=$(mktemp)
  "$(program "$1")" --gtest_brief=1 --gtest_filter="$2" 2>&1 | tee "$log"
  code=$?
  if grep -q '^\[  SKIPPED \]' "$log"; then
    echo "tests were skipped: is there a GPU?"
    code=1
  fi
  rm -f "$log"
  return $code
}

# serve CONFIG LOG: starts a server on any free port; sets server and port once it answers.
serve() {
  "$(program glm53-serve)" --config "$1" --port 0 >"$2" 2>&1 &
  server=$!
  for ((try = 0; try < 600; ++try)); do
    port=$(sed -nE 's/.*on http:\/\/[^ ]*:([0-9]+)$/\1/p' "$2" | head -1)
    if [ -n "$port" ]; then return 0; fi
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
  done
  cat "$2"
  return 1
}

same_text() {
  local logs code=1 gpu=
  logs=$(mktemp -d)
  if serve configs/tiny-cuda.yaml "$logs/gpu"; then
    gpu=$server
    local gpu_port=$port
    if serve configs/tiny-cpu.yaml "$logs/cpu"; then
      "$(program gpu_same_text)" "$gpu_port" "$port"
      code=$?
      kill -TERM "$server" && wait "$server" || code=1
    fi
    kill -TERM "$gpu" && wait "$gpu" || code=1
  fi
  rm -rf "$logs"
  return $code
}

# Against a CPU server that the program brings along.
same_replies() {
  local logs code=1
  logs=$(mktemp -d)
  if serve configs/tiny-cuda.yaml "$logs/gpu"; then
    "$(program same_replies)" "$port"
    code=$?
    kill -TERM "$server" && wait "$server" || code=1
  fi
  rm -rf "$logs"
  return $code
}

# Small tests that together launch every kernel family.
small_tests='ExpertsTest.MatchesDoubleAtOddShapes:ExpertsTest.PacksAShard:ExpertsTest.AddsTheSharedExpert*'
small_tests+=':*IndexWriteTest.RawKeysAndPoolsMatchDouble*:*IndexScoreTest.PreparedQueries*'
small_tests+=':KdaWindow.TogetherOrOneByOne*:KdaWindow.RejectedRows*:KdaPrompt.FollowsDecodedRows:KdaReset.*'
small_tests+=':LatentWrite.*:LatentRecord.*:Linear.OneHotRows*:Linear.NanRows*:Linear.ConvertsCheckpointTypes'
small_tests+=':*Mhc.FusedIsPostThenPre*:RouterTest.ChoosesAndGroups:RouterTest.Ties*:RowOps.*:RowSums.AddsRagged*'
small_tests+=':Sampler.CutsAmongEqualLogits:SparseAttentionLayer.Fp8KeysSelect*:Synthetic.*'

# sanitize TOOL SECONDS FILTER
sanitize() {
  local log code
  log=$(mktemp)
  timeout "$2" "$sanitizer" --tool "$1" --error-exitcode 9 --print-limit 20 "$(program test_gpu)" --gtest_brief=1 \
    --gtest_filter="$3" 2>&1 | tee "$log"
  code=${PIPESTATUS[0]}
  if grep -q '^\[  SKIPPED \]' "$log" || ! grep -qE '^\[  PASSED  \] [1-9]' "$log"; then
    echo "no tests ran on a GPU"
    code=1
  fi
  rm -f "$log"
  return "$code"
}

case $part in
  gates)
    # The one left out wants a machine without a GPU.
    check "kernel tests" tests test_gpu '-RowSums.ReportsAMissingDevice'
    check "model gates" tests test_gpu_model '*'
    check "same greedy text as the CPU server" same_text
    check "sampling, penalties, logprobs and grammars as on the CPU server" same_replies
    ;;
  sanitize)
    sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -1)
    [ -n "$sanitizer" ] || give_up "compute-sanitizer is missing: it comes with the CUDA toolkit" compute-sanitizer
    "$sanitizer" --version | tail -1
    check memcheck sanitize memcheck 120 "$small_tests"
    # Racecheck is some fifty times slower, most of all with KDA's replays.
    check racecheck sanitize racecheck 340 "$small_tests:-KdaWindow.RejectedRows*"
    ;;
  kernels)
    for source in tests/bench/gpu/bench_*.cu; do
      name=$(basename "$source" .cu)
      [ -n "$(program "$name")" ] || give_up "$pack: no program $name" "$name"
      check "$name" timeout 120 "$(program "$name")"
    done
    ;;
  model)
    for source in tests/bench/gpu/bench_*.cpp; do
      name=$(basename "$source" .cpp)
      [ -n "$(program "$name")" ] || give_up "$pack: no program $name" "$name"
      check "$name" timeout 400 "$(program "$name")"
    done
    ;;
esac
finish
