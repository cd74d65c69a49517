#!/usr/bin/env bash
# Checks what the compiler cannot: the dependency direction of src/README.md, the few files that alone may use some
# facility, and file lengths. Prints "ok RULE" or "not ok RULE" with the offending lines; fails if any rule is broken.
set -euo pipefail
cd "$(dirname "$0")/.."

broken=0
# report RULE LINES: the rule holds when there are no lines.
report() {
  if [ -z "$2" ]; then
    echo "ok layout: $1"
  else
    echo "not ok layout: $1"
    sed 's/^/    /' <<<"$2"
    broken=1
  fi
}
# matches REGEX PATH…: matching lines as file:line:text, nothing when there are none.
matches() { grep -rnE --include='*.h' --include='*.cpp' --include='*.cu' --include='*.cuh' "$@" || true; }

# includes_only FOLDER ALLOWED…: quoted includes of src/FOLDER name only these folders.
includes_only() {
  local folder=$1
  shift
  local allowed
  allowed=$(IFS='|'; echo "glm53/core|$*")
  report "src/$folder includes only: $*" "$(
    find "src/$folder" -maxdepth 1 \( -name "*.h" -o -name "*.cpp" \) | sort |
      xargs -r grep -nHE '^ *# *include "' | grep -vE "\"($allowed)/[^/]+\"" || true)"
}
includes_only core core
includes_only comm comm
includes_only backend backend
includes_only backend/cpu backend backend/cpu
includes_only checkpoint checkpoint
includes_only text text
includes_only model model backend checkpoint comm
includes_only engine engine model backend text comm
includes_only config config
includes_only server server engine text

report "src/engine knows no JSON and no socket" \
  "$(matches 'include *[<"](nlohmann|httplib|sys/socket|netinet|arpa|poll)' src/engine)"
report "src/text starts no thread and reads no file" \
  "$(matches 'include *(<(thread|mutex|future|condition_variable|fstream|cstdio|filesystem|fcntl\.h|unistd\.h)>|"glm53/core/read_file)' src/text)"
report "only src/server/http_server.cpp includes httplib" \
  "$(matches 'include *[<"]httplib' src include tests kernels | grep -vE '^(src/server/http_server\.cpp|tests/)' || true)"
report "only src/config/environment.cpp reads the environment" \
  "$(matches '\b(secure_)?getenv *\(|\benviron\b' src include kernels | grep -v '^src/config/environment\.cpp:' || true)"
report "headers include no heavy third-party header" \
  "$(matches 'include *<(nlohmann/json\.hpp|httplib\.h|CLI/|yaml-cpp/|spdlog/|pcre2\.h)' src include --exclude='*.cpp')"
report "kernels include nothing of src" \
  "$(matches 'include *"' kernels | grep -vE '"kernels/[^"]+"' || true)"
report "source files have at most 800 lines" \
  "$(find src include kernels -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -exec wc -l {} + |
    awk '$1 > 800 && $2 != "total" { print $2 ": " $1 " lines" }')"
exit "$broken"
