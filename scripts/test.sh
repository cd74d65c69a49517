#!/usr/bin/env bash
# Runs all tests, or the named stages in this order:
#   format   clang-format of our sources              layout   dependency rules (scripts/check_layout.sh)
#   unit     release build, unit tests, fuzz corpora   asan     the same and both malformed corpora under ASan + UBSan
#   aarch64  arm64 compile of all libraries            cuda     kernels, with nvcc >= 13.0; run where there is a GPU
#   e2e      the real binary through curl, npm clients and a browser
# Usage: scripts/test.sh [stage…]
# Goes through all stages whatever fails. The last line is "N passed, N failed, N skipped"; the exit code says whether
# anything failed.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/packages.sh
# Clones in different folders share compiled objects, where ccache is there.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1

all_stages=(format layout unit asan aarch64 cuda e2e)
stages=("$@")
[ ${#stages[@]} -gt 0 ] || stages=("${all_stages[@]}")
for stage in "${stages[@]}"; do
  [[ " ${all_stages[*]} " == *" $stage "* ]] || { echo "Unknown stage '$stage'; stages: ${all_stages[*]}" >&2; exit 2; }
done

jobs=$(nproc)
passed=0
failed=0
skipped=0

# one RESULT NAME: counts a check that is not a test program.
one() {
  if [ "$1" -eq 0 ]; then
    echo "ok $2"
    passed=$((passed + 1))
  else
    echo "not ok $2"
    failed=$((failed + 1))
  fi
  return "$1"
}

# count_lines FILE: adds the "ok …", "not ok …" and "skipped…" lines of a shell test.
count_lines() {
  skipped=$((skipped + $(grep -c '^skipped' "$1")))
  passed=$((passed + $(grep -c '^ok ' "$1")))
  failed=$((failed + $(grep -c '^not ok ' "$1")))
}

# run_ctest BUILD [ctest option…]: runs the test programs and counts their cases. A program that dies writes no report
# and counts as one failed test.
run_ctest() {
  local build=$1 reports=$1/reports log=$1/ctest.log name report cases bad skips
  shift
  rm -rf "$reports"
  mkdir -p "$reports"
  GTEST_OUTPUT="xml:$PWD/$reports/" ctest --test-dir "$build" --output-on-failure --timeout 2400 "$@" 2>&1 | tee "$log" |
    grep -vE '^( *Start +[0-9]+:|Internal ctest changing|Test project)'
  for report in "$reports"/*.xml; do
    [ -e "$report" ] || continue
    cases=$(grep -c '<testcase ' "$report")
    skips=$(grep -c '<skipped' "$report")
    bad=$(sed -n 's/^<testsuites .*failures="\([0-9]*\)".*errors="\([0-9]*\)".*/\1+\2/p' "$report")
    bad=$((${bad:-0}))
    failed=$((failed + bad))
    skipped=$((skipped + skips))
    passed=$((passed + cases - bad - skips))
    grep -B1 '<skipped' "$report" | sed -n 's/.*<testcase name="\([^"]*\)".*classname="\([^"]*\)".*/skipped \2.\1/p'
  done
  # Programs without a report: corpus runs, and test programs that died.
  while read -r result name; do
    [ -e "$reports/test_$name.xml" ] && continue
    if [ "$result" = Passed ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
  done < <(sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([A-Za-z0-9_]+) \.*( +|\*\*\*)(Passed|Failed|Exception|Timeout|Not Run|Subprocess aborted).*/\3 \1/p' \
    "$log" | sed 's/^Not Run/NotRun/; s/^Subprocess aborted/Aborted/')
}

stage_format() {
  ensure_packages git clang-format || { one 1 "format: packages"; return; }
  # Version 14 is the one that formats the tree; others differ in small ways.
  local tool
  tool=$(command -v clang-format-14 || command -v clang-format)
  git ls-files -z -- '*.h' '*.cpp' '*.cu' '*.cuh' | xargs -0 "$tool" --dry-run -Werror
  one $? "format: $("$tool" --version)"
}

stage_layout() {
  local log
  log=$(mktemp)
  scripts/check_layout.sh 2>&1 | tee "$log"
  count_lines "$log"
  rm -f "$log"
}

stage_unit() {
  ensure_packages "${test_packages[@]}" || { one 1 "unit: packages"; return; }
  scripts/build.sh -DGLM53_TESTS=ON -DGLM53_BENCH=ON && cmake --build build --parallel "$jobs"
  one $? "unit: release build" || return
  run_ctest build -E '^gpu$'
}

stage_asan() {
  ensure_packages "${build_packages[@]}" "${client_packages[@]}" "${test_packages[@]}" ||
    { one 1 "asan: packages"; return; }
  cmake -S . -B build-asan -G Ninja -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 -DGLM53_SANITIZE=ON \
    -DGLM53_BENCH=OFF -DGLM53_CUDA=OFF && cmake --build build-asan --parallel "$jobs"
  one $? "asan: build" || return
  run_ctest build-asan
  run_e2e build-asan/glm53-serve tests/e2e/malformed.sh tests/e2e/requests.sh tests/e2e/mutated_requests.sh
}

stage_aarch64() {
  if [ "$(uname -m)" = aarch64 ]; then
    echo "skipped aarch64: this machine is one"
    skipped=$((skipped + 1))
    return
  fi
  ensure_packages "${build_packages[@]}" "${cross_packages[@]}" || { one 1 "aarch64: packages"; return; }
  cmake -S . -B build-aarch64 -G Ninja -DCMAKE_BUILD_TYPE=Release -DGLM53_PORTABLE_ONLY=ON \
    -DCMAKE_TOOLCHAIN_FILE=scripts/cmake/aarch64-linux-gnu.cmake && cmake --build build-aarch64 --parallel "$jobs"
  one $? "aarch64: all libraries compile"
}

stage_cuda() {
  ensure_packages "${build_packages[@]}" "${test_packages[@]}" || { one 1 "cuda: packages"; return; }
  if [ ! -f build/build.ninja ] || ! grep -q '^GLM53_TESTS:BOOL=ON' build/CMakeCache.txt; then
    cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DGLM53_TESTS=ON -DGLM53_BENCH=ON
    one $? "cuda: configure" || return
  fi
  if ! ninja -C build -t query test_gpu >/dev/null 2>&1; then
    echo "skipped cuda: no nvcc >= 13.0"
    skipped=$((skipped + 1))
    return
  fi
  cmake --build build --parallel "$jobs" --target test_gpu
  one $? "cuda: kernels compile for $(sed -n 's/^GLM53_CUDA_ARCHITECTURES:[A-Z]*=//p' build/CMakeCache.txt)" || return
  scripts/kernel_resources.sh sm_121a
  one $? "cuda: no kernel spills or takes too much shared memory on sm_121a"
  run_ctest build -R '^gpu$'
}

# run_e2e BINARY SCRIPT…: a script that fails without saying which check did counts as one failed test.
run_e2e() {
  local binary=$1 script log before
  shift
  log=$(mktemp)
  for script in "$@"; do
    echo "-- $script ($binary)"
    before=$failed
    SERVE_BINARY="$binary" timeout 900 bash "$script" 2>&1 | tee "$log"
    local code=${PIPESTATUS[0]}
    count_lines "$log"
    if [ "$code" -ne 0 ] && [ "$failed" -eq "$before" ]; then
      one 1 "$script ended with exit code $code"
    fi
  done
  rm -f "$log"
}

stage_e2e() {
  ensure_packages "${client_packages[@]}" "${test_packages[@]}" || { one 1 "e2e: packages"; return; }
  scripts/build.sh -DGLM53_TESTS=ON && cmake --build build --parallel "$jobs" --target e2e_programs
  one $? "e2e: build" || return
  run_e2e build/glm53-serve $(ls tests/e2e/*.sh | grep -v '/lib\.sh$')
}

for stage in "${stages[@]}"; do
  echo "== $stage"
  started=$SECONDS
  "stage_$stage"
  echo "== $stage: $((SECONDS - started)) s"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
