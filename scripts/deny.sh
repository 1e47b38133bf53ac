#!/usr/bin/env bash
# Checks the licenses, sources and versions of all dependencies by cargo-deny, according to deny.toml.
#   scripts/deny.sh [check...=bans licenses sources]
# `advisories` is another check. It downloads the database of RustSec, so its result may change without a commit.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "deny.sh: $*" >&2; exit 1; }

cargo deny --version >/dev/null 2>&1 || cargo install cargo-deny --locked ||
    fail "could not install cargo-deny: cargo install cargo-deny --locked"
[ $# -gt 0 ] || set -- bans licenses sources
# Without `--workspace`, the packages of examples, benchmarks and browser tests are left out.
cargo deny --locked --workspace check "$@"
