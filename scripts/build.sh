#!/usr/bin/env bash
# Builds build/glm53-serve, after installing what is missing (Debian 12, Ubuntu 24.04).
# Usage: scripts/build.sh [cmake option…]        for example scripts/build.sh -DGLM53_CUDA=OFF
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in
  -h | --help) sed -n '2,/^[^#]/s/^# //p' scripts/build.sh; exit ;;
esac
. scripts/packages.sh
# Clones in different folders share compiled objects, where ccache is there.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1

ensure_packages "${build_packages[@]}"
# Configuring again costs time only when something was never configured or is asked for.
if [ ! -f build/build.ninja ] || [ $# -gt 0 ]; then
  cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DGLM53_TESTS=OFF -DGLM53_BENCH=OFF "$@"
fi
cmake --build build --target glm53-serve --parallel "$(nproc)"
