#!/usr/bin/env bash
# Builds and runs the CPU benchmark of the tiny checkpoint. Usage: scripts/bench_tiny.sh [THREADS]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/build.sh -DGLM53_BENCH=ON >/dev/null
cmake --build build --target bench_tiny_model >/dev/null
exec build/tests/bench/bench_tiny_model tests/data/models/glm53-tiny "$@"
