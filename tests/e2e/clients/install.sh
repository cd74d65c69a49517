# Node.js and the npm packages of this folder, for the scripts that use them. Sourced after lib.sh; the working directory
# is the repository's root.
. scripts/packages.sh
clients=tests/e2e/clients

has_node() {
  command -v npm >/dev/null && node -e 'process.exit(Number(process.versions.node.split(".")[0]) >= 18 ? 0 : 1)' 2>/dev/null
}

# Ends the script when there is nothing to run the suites with. The packages are installed again only when the lock file
# has changed.
install_clients() {
  # Debian's npm and a Node.js from elsewhere exclude each other, so it is asked for only where there is none.
  if ! has_node; then
    ensure_packages nodejs npm && has_node || { echo "skipped: no Node.js >= 18 with npm here" && exit 0; }
  fi
  cmp -s $clients/package-lock.json $clients/node_modules/.installed-lock && return
  if ! (cd $clients && npm ci --no-audit --no-fund --ignore-scripts) >"$scratch/npm.log" 2>&1; then
    not_ok "npm installs the client packages" "$(tail -n 20 "$scratch/npm.log")"
    finish
  fi
  cp $clients/package-lock.json $clients/node_modules/.installed-lock
}
