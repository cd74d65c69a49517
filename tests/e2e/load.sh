#!/usr/bin/env bash
# A short run of scripts/load_test.sh: leaks are checked, latencies only shown.
exec bash "$(dirname "$0")/../../scripts/load_test.sh" 12
