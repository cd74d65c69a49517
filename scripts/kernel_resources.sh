#!/usr/bin/env bash
# Resource table of all kernels for one GPU target: registers a thread, static and dynamic shared memory a block, spilled
# bytes. Fails when a kernel that runs while serving spills, or a block takes more shared memory than 99 KiB.
# Usage: scripts/kernel_resources.sh [sm_121a | sm_90a]
# Compiles every kernels/*/*.cu for that target alone; needs nvcc, no GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
target=${1:-sm_121a}
limit=$((99 * 1024))
# Run once a weight at load time, or in tests only.
cold='pack|unpack|convert|dequantise|row_sums|record'

nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
[ -x "$nvcc" ] || { echo "kernel_resources.sh: no nvcc" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

compile() {
  local object=$work/$(tr / _ <<<"$1").o
  $(command -v ccache || true) "$nvcc" -std=c++20 -O3 -I. -gencode "arch=compute_${target#sm_},code=$target" -Xptxas -v \
    -c "$1" -o "$object" >"$object.log" 2>&1 || { cat "$object.log" >&2; return 1; }
}
export -f compile
export work target nvcc
printf '%s\0' kernels/*/*.cu | xargs -0 -P "$(nproc)" -I{} bash -ec 'compile {}'

# Both lists name kernels alike: demangled, without namespaces, return type and parameters.
plain='s/\(anonymous namespace\)::|glm53::kernels:://g; s/\t(&\(|&)?(void )?/\t/; s/>\(.*/>/; /</!s/\(.*//; s/> >/>>/g'
# "bytes<TAB>kernel" of allow_dynamic_shared<kernel, bytes> (kernels/common/dynamic_shared.h).
nm -C "$work"/*.o | sed -nE 's/ \[clone .*//; s/.* glm53::kernels::allow_dynamic_shared<(.*), ([0-9]+)>\(char const\*\)$/\2\t\1/p' |
  sed -E "$plain" | sort -u >"$work/dynamic"
cat "$work"/*.log | c++filt | sed -nE '
  s/^ptxas info +: Compiling entry function .(.*). for .*$/kernel\t\1/p
  s/^ +([0-9]+) bytes stack frame, ([0-9]+) bytes spill stores, ([0-9]+) bytes spill loads$/spills\t\2\t\3/p
  s/^ptxas info +: Used ([0-9]+) registers.*$/&/p' | sed -E "/^kernel/{ $plain }" |
  awk -F '\t' -v cold="$cold" -v limit="$limit" -v target="$target" '
    FILENAME != "-" { dynamic[$2] = $1; wanted[$2] = 1; next }
    $1 == "kernel" { name = $2; next }
    $1 == "spills" { spilled = $2 + $3; next }
    {
      match($0, /Used [0-9]+/); registers = substr($0, RSTART + 5, RLENGTH - 5)
      shared = match($0, /[0-9]+ bytes smem/) ? substr($0, RSTART, RLENGTH) + 0 : 0
      own = dynamic[name] + 0
      delete wanted[name]
      note = ""
      if (spilled > 0) { note = name ~ cold ? "  spills, not hot" : "  SPILLS"; bad += name !~ cold }
      if (shared + own > limit) { note = note "  TOO MUCH SHARED MEMORY"; ++bad }
      lines[++count] = sprintf("%-72s %9d %8d %8d %8d%s", name, registers, shared, own, spilled, note)
    }
    END {
      printf "%-72s %9s %8s %8s %8s\n", "kernel, " target, "registers", "static", "dynamic", "spilled"
      for (i = 1; i <= count; ++i) print lines[i] | "sort"
      close("sort")
      for (name in wanted) { print "not found among the kernels: " name; ++bad }
      printf "%d kernels, %d problems\n", count, bad
      exit bad > 0
    }' "$work/dynamic" -
