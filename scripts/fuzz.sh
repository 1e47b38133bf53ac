#!/usr/bin/env bash
# Fuzzes the builder and the verbs against a naive map, on nightly with AddressSanitizer.
#   scripts/fuzz.sh [seconds=60]
# What it learns (the corpus) and what it finds stay in target/fuzz. Another run goes on from there.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "fuzz.sh: $*" >&2; exit 1; }

seconds=${1:-60}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || fail "seconds must be a whole number above 0, got '$seconds'"
command -v c++ >/dev/null || fail "it needs a C++ compiler (Debian: apt-get install build-essential)"
cargo +nightly --version >/dev/null 2>&1 || fail "it needs nightly Rust: rustup toolchain install nightly"
cargo +nightly fuzz --version >/dev/null 2>&1 || cargo install cargo-fuzz --locked ||
    fail "cargo-fuzz can't be installed: cargo install cargo-fuzz --locked"

corpus=$PWD/target/fuzz/corpus/verbs found=$PWD/target/fuzz/found/
mkdir -p "$corpus" "$found"
# The input is made of a few bytes each, with no constants to be guessed from comparisons.
options=(--target-dir target/fuzz --no-trace-compares verbs)
# The stack, which no `unsafe` touches, is not worth a fifth of the speed.
export ASAN_OPTIONS=detect_stack_use_after_return=0
cargo +nightly fuzz build "${options[@]}" || fail "the fuzz target does not build"
cargo +nightly fuzz run "${options[@]}" "$corpus" -- -max_total_time="$seconds" -timeout=20 \
    -len_control=0 -max_len=512 -artifact_prefix="$found" -print_final_stats=1 ||
    fail "a sequence failed; again: cargo +nightly fuzz run ${options[*]}" \
        "$(find "$found" -type f -printf '%T@ %p\n' | sort -n | tail -1 | cut -d' ' -f2)"
