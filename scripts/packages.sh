# Debian and Ubuntu packages that the scripts need, and the one way they are installed. Sourced, not run.

# What build/glm53-serve is built from.
build_packages=(build-essential cmake ninja-build pkg-config libcpp-httplib-dev nlohmann-json3-dev libfmt-dev
  libspdlog-dev libyaml-cpp-dev libcli11-dev libpcre2-dev libssl-dev)
# What talks to a running server.
client_packages=(curl jq ca-certificates)
# What scripts/test.sh needs beyond both.
test_packages=(libgtest-dev libgmock-dev git ccache clang-format)
# What opens the chat page in tests/e2e/chat_page.sh; a font, because Chromium draws nothing without one.
browser_packages=(chromium fonts-dejavu-core)
cross_packages=(g++-aarch64-linux-gnu)
# libFuzzer; clang's runtime is a package of its own.
fuzz_packages=(clang libclang-rt-dev)

# Prints those of the named packages that are not installed.
missing_packages() {
  local package
  for package in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || echo "$package"
  done
}

# Installs what is missing of the named packages; does nothing, and needs no rights, when all are there.
ensure_packages() {
  if ! command -v dpkg-query >/dev/null; then
    echo "This system has no dpkg: install the equivalents of: $*" >&2
    return 1
  fi
  local missing
  mapfile -t missing < <(missing_packages "$@")
  [ ${#missing[@]} -gt 0 ] || return 0
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    # A password is asked for only where there is somebody to type it.
    if ! command -v sudo >/dev/null || { [ ! -t 0 ] && ! sudo -n true 2>/dev/null; }; then
      echo "Missing packages; as root run: apt-get install ${missing[*]}" >&2
      return 1
    fi
    as_root=(sudo)
  fi
  echo "Installing: ${missing[*]}" >&2
  "${as_root[@]}" apt-get -q update >&2 &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "${missing[@]}" >&2
}
