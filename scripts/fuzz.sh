#!/usr/bin/env bash
# Runs the libFuzzer targets, each from its corpus, and fails on a crash.
# Usage: scripts/fuzz.sh [seconds a target, default 60] [target…]     for example scripts/fuzz.sh 600 safetensors
# A crashing input stays in build-fuzz/crashes; grown corpora stay in build-fuzz/corpus.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/packages.sh

seconds=60
if [[ "${1:-}" =~ ^[0-9]+$ ]]; then
  seconds=$1
  shift
fi
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for source in tests/fuzz/fuzz_*.cpp; do
    name=$(basename "$source" .cpp)
    targets+=("${name#fuzz_}")
  done
fi

ensure_packages "${build_packages[@]}" "${fuzz_packages[@]}"
cmake -S . -B build-fuzz -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=clang++ -DGLM53_FUZZ=ON \
  -DGLM53_TESTS=OFF -DGLM53_BENCH=OFF -DGLM53_CUDA=OFF >/dev/null
cmake --build build-fuzz --parallel "$(nproc)" --target "${targets[@]/#/fuzz_}"

failed=0
mkdir -p build-fuzz/crashes
for target in "${targets[@]}"; do
  corpus=build-fuzz/corpus/$target
  mkdir -p "$corpus"
  cp -rn "tests/data/fuzz/$target/." "$corpus/"
  echo "fuzz $target: ${seconds} s from $(find "$corpus" -type f | wc -l) inputs"
  if build-fuzz/tests/fuzz/"fuzz_$target" "$corpus" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -artifact_prefix="build-fuzz/crashes/$target-" -print_final_stats=1 >"build-fuzz/$target.log" 2>&1; then
    grep -E 'Done|stat::(number_of_executed_units|peak_rss_mb)' "build-fuzz/$target.log"
  else
    tail -n 40 "build-fuzz/$target.log"
    echo "fuzz $target: FAILED (full log: build-fuzz/$target.log)"
    failed=1
  fi
done
exit "$failed"
