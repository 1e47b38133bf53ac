#!/usr/bin/env bash
# Runs all checks. Needs Rust, a C and a C++ compiler; other missing tools are installed or named.
# A longer run: PROPTEST_CASES=20000 SHUTTLE_ITERATIONS=100000 FLEETING_STRESS_SECONDS=60 FUZZ_SECONDS=600 ./test.sh
set -euo pipefail
cd "$(dirname "$0")"

step() { printf '\n== %s\n' "$*"; }

need() {
    command -v "$1" >/dev/null || { echo "test.sh needs '$1': $2" >&2; exit 1; }
}

need cargo "install Rust from https://rustup.rs"
need cc "install a C compiler (Debian: apt-get install build-essential)"
cargo fmt --version >/dev/null 2>&1 || { echo "test.sh needs rustfmt: rustup component add rustfmt" >&2; exit 1; }
cargo clippy --version >/dev/null 2>&1 || { echo "test.sh needs clippy: rustup component add clippy" >&2; exit 1; }

export RUSTDOCFLAGS="-D warnings"
# Every target is built only once here, so incremental compilation would not pay off.
export CARGO_INCREMENTAL=0
# More threads than processors, because many tests wait for servers, disks and other processes.
export RUST_TEST_THREADS=$((2 * $(nproc)))

step "tools for the tests: redis-server, Valkey, the Python package dirq, promtool, Chromium, axe-core"
valkey=$(scripts/servers.sh)
scripts/python.sh
scripts/prometheus.sh
scripts/browser.sh

step "formatting"
cargo fmt --all --check

step "clippy"
cargo clippy --locked --workspace --all-targets --all-features -- -D warnings

step "clippy with each feature alone"
features=$(awk '/^\[features\]/ {on=1; next} /^\[/ {on=0} on && /^[a-z]/ {print $1}' Cargo.toml)
cargo clippy --locked -p fleeting --no-default-features -- -D warnings
for feature in $features; do
    [ "$feature" = default ] && continue
    echo "feature $feature"
    cargo clippy --locked -p fleeting --no-default-features --features "$feature" -- -D warnings
done

step "tests and doc tests"
cargo test --locked --workspace --all-features

step "Redis tests on Valkey and, concurrently, the interleaving tests"
on_valkey=$(mktemp)
# Skips the TLS tests, because this Valkey is built without TLS.
FLEETING_REDIS_SERVER=$valkey cargo test --locked --workspace --all-features --test redis \
    -- --skip over_tls >"$on_valkey" 2>&1 &
trap 'kill %1 2>/dev/null || true; rm -f "$on_valkey"' EXIT
RUSTFLAGS="--cfg shuttle --cfg lean" cargo test --locked -p fleeting --lib \
    --target-dir target/shuttle interleavings
wait %1 || { cat "$on_valkey" >&2; exit 1; }
tail -n 3 "$on_valkey"

step "memory errors and leaks"
scripts/sanitize.sh

step "fuzzing"
scripts/fuzz.sh "${FUZZ_SECONDS:-30}"

step "docs"
cargo doc --locked -p fleeting --all-features --no-deps

step "all checks passed"
