#!/usr/bin/env bash
# Builds and runs the loading benchmark. Usage: scripts/bench_loading.sh DIRECTORY [GIB]; DIRECTORY lies on the disk
# under test and has room for GIB (default 16).
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/build.sh -DGLM53_BENCH=ON >/dev/null
cmake --build build --target bench_loading >/dev/null
exec build/tests/bench/bench_loading "$@"
