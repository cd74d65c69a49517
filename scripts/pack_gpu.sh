#!/usr/bin/env bash
# Packs what scripts/gpu_check.sh needs on a GPU machine that cannot build: the server, the GPU tests and benchmarks,
# stripped, for sm_90a, with the shared libraries they load in lib/ beside them; not the C library and OpenSSL 3, which
# every such machine has.
# Usage: scripts/pack_gpu.sh [--build DIR] [FOLDER]
#   --build DIR  take the programs of this build instead of building in build-gpu-sm90
#   FOLDER       build-gpu-pack by default; it is replaced
# Prints the size and fails above 24 MiB.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/packages.sh
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
limit_kib=$((24 * 1024))

build=
if [ "${1:-}" = --build ]; then
  build=${2:?--build needs a folder}
  shift 2
fi
folder=${1:-build-gpu-pack}

if [ -z "$build" ]; then
  build=build-gpu-sm90
  ensure_packages "${build_packages[@]}" "${test_packages[@]}"
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGLM53_CUDA=ON -DGLM53_CUDA_ARCHITECTURES=90a-real \
    -DGLM53_SHARED_KERNELS=ON -DGLM53_TESTS=ON -DGLM53_BENCH=ON
  benches=$(basename -a -s .cu tests/bench/gpu/bench_*.cu; basename -a -s .cpp tests/bench/gpu/bench_*.cpp)
  cmake --build "$build" --parallel "$(nproc)" --target glm53-serve test_gpu test_gpu_model gpu_same_text \
    same_replies $benches
fi

programs=("$build"/glm53-serve "$build"/tests/gpu/{test_gpu,test_gpu_model,gpu_same_text} "$build"/tests/e2e/same_replies)
for bench in "$build"/tests/bench/gpu/bench_*; do
  if [ -f "$bench" ]; then programs+=("$bench"); fi
done
if [ -e "$folder" ] && [ ! -e "$folder/.glm53-pack" ]; then
  echo "pack_gpu.sh: $folder exists and is no pack" >&2
  exit 1
fi
rm -rf "$folder"
mkdir -p "$folder/lib"
touch "$folder/.glm53-pack"
for program in "${programs[@]}"; do
  [ -x "$program" ] || { echo "pack_gpu.sh: $program is missing" >&2; exit 1; }
  strip -o "$folder/$(basename "$program")" "$program"
  # ldd finds a build's own libraries through the program's RPATH, which names its build folder too.
  while read -r name path; do
    case $name in
      libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.* | libssl.so.3 | libcrypto.so.3 | ld-linux*) continue ;;
    esac
    [ "$path" != not ] || { echo "pack_gpu.sh: $program needs $name, which is not found" >&2; exit 1; }
    [ -e "$folder/lib/$name" ] || strip --strip-unneeded -o "$folder/lib/$name" "$path"
  done < <(ldd "$program" | sed -nE 's/^\s*(\S+) => (\S+).*/\1 \2/p')
  if [ -n "$(ls "$folder/lib")" ] && ! readelf -d "$program" | grep -q 'RPATH.*\$ORIGIN/lib'; then
    echo "pack_gpu.sh: $program does not look for libraries in lib/ beside it: build with -DGLM53_SHARED_KERNELS=ON" >&2
    exit 1
  fi
done

size=$(du -sk --apparent-size "$folder" | cut -f1)
ls -l "$folder" "$folder/lib" | awk '$5 > 0 && $9 != "lib" { printf "  %8.1f KiB  %s\n", $5 / 1024, $9 }'
printf '%s: %d programs, %.1f MiB of at most %d\n' "$folder" "${#programs[@]}" "$(awk "BEGIN { print $size / 1024 }")" \
  $((limit_kib / 1024))
if [ "$size" -gt "$limit_kib" ]; then
  echo "pack_gpu.sh: the pack is too large" >&2
  exit 1
fi
