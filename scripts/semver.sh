#!/usr/bin/env bash
# Compares the public API with the last release by cargo-semver-checks.
#   scripts/semver.sh [revision]
# Without a revision of git, compares with the last version on crates.io.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "semver.sh: $*" >&2; exit 1; }

version=$(cargo pkgid -p fleeting | sed 's/.*[#@]//')
if [ $# -eq 0 ] && [ "$version" = 0.1.0 ]; then
    echo "skipped: 0.1.0 is the first release"
    exit
fi
cargo semver-checks --version >/dev/null 2>&1 || cargo install cargo-semver-checks --locked ||
    fail "could not install cargo-semver-checks: cargo install cargo-semver-checks --locked"
cargo semver-checks -p fleeting --all-features ${1:+--baseline-rev "$1"}
