#!/usr/bin/env bash
# Fuzzes the builder and the methods of the cache against a naive map, and the fields that proxies write, on nightly with
# AddressSanitizer.
#   scripts/fuzz.sh [seconds=60]    of which the fields take a fifth
# The corpus and the failing inputs stay in target/fuzz. The next run continues from there.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "fuzz.sh: $*" >&2; exit 1; }

seconds=${1:-60}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || fail "seconds must be a whole number above 0, got '$seconds'"
command -v c++ >/dev/null || fail "needs a C++ compiler (Debian: apt-get install build-essential)"
cargo +nightly --version >/dev/null 2>&1 || fail "needs nightly Rust: rustup toolchain install nightly"
cargo +nightly fuzz --version >/dev/null 2>&1 || cargo install cargo-fuzz --locked ||
    fail "could not install cargo-fuzz: cargo install cargo-fuzz --locked"

found=$PWD/target/fuzz/found/
mkdir -p "$found"
# Checks of the stack would cost a fifth of the speed, and no `unsafe` code touches the stack.
export ASAN_OPTIONS=detect_stack_use_after_return=0

# run TARGET SECONDS [options of cargo fuzz]
run() {
    local target=$1 seconds=$2 corpus=$PWD/target/fuzz/corpus/$1
    local options=(--target-dir target/fuzz "${@:3}" "$target")
    mkdir -p "$corpus"
    cargo +nightly fuzz build "${options[@]}" || fail "the fuzz target $target does not build"
    cargo +nightly fuzz run "${options[@]}" "$corpus" -- -max_total_time="$seconds" -timeout=20 \
        -len_control=0 -max_len=512 -artifact_prefix="$found" -print_final_stats=1 ||
        fail "an input of $target failed; reproduce it with: cargo +nightly fuzz run ${options[*]}" \
            "$(find "$found" -type f -printf '%T@ %p\n' | sort -n | tail -1 | cut -d' ' -f2)"
}

run forwarded $((seconds / 5 + 1))
# Traced comparisons do not help: the input consists of short values, without constants to guess.
run verbs "$seconds" --no-trace-compares
