#!/usr/bin/env bash
# Runs the tests that reach the crate's only `unsafe` code (src/engine/shard/table.rs), on Linux x86_64, under
#   1. AddressSanitizer and LeakSanitizer, on nightly: invalid accesses, and memory that is unreachable at exit
#   2. valgrind's memcheck, on stable: the same without instrumented code, and reads of uninitialized memory
# Takes no arguments. The tests of 1 are built in target/asan; 2 runs the binaries that ./test.sh has built.
# Reports have the names of functions; for lines: CARGO_PROFILE_DEV_DEBUG=line-tables-only scripts/sanitize.sh
# The script sets:
#   RUSTFLAGS                                      -Zsanitizer=address for 1, and few dependencies (--cfg lean)
#   ASAN_OPTIONS                                   detect_leaks=1 if the system lets LeakSanitizer work
#   CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER   the runner of the test binaries: valgrind
#   PROPTEST_CASES                                 few random sequences: each is 20 times slower under valgrind
# A leak is unreachable memory. Memory that statics and thread-locals of tokio, parking_lot or std still point to at exit
# is reachable, so no list of exceptions is needed.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$*"; }
fail() { echo "sanitize.sh: $*" >&2; exit 1; }

[ "$(uname -sm)" = "Linux x86_64" ] || fail "needs Linux on x86_64, but this is $(uname -sm)"
command -v cc >/dev/null || fail "needs a C compiler (Debian: apt-get install build-essential)"
cargo +nightly --version >/dev/null 2>&1 || fail "needs nightly Rust: rustup toolchain install nightly"
if ! command -v valgrind >/dev/null; then
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
        fail "needs valgrind (Debian: apt-get install valgrind)"
    step "installing valgrind"
    apt-get update -q || true # An outdated package list may suffice.
    apt-get install -q -y valgrind || fail "could not install valgrind: apt-get install valgrind"
fi

target=target/asan
mkdir -p "$target"
unset CARGO_ENCODED_RUSTFLAGS # It would take precedence over RUSTFLAGS.
# A deliberate leak: if it is not found, the result "no leaks" means nothing.
cat >"$target/leak.rs" <<'RUST'
fn main() {
    let leak = || std::mem::forget(std::hint::black_box(vec![0_u8; 100]));
    std::thread::spawn(leak).join().unwrap();
}
RUST
rustc +nightly -Zsanitizer=address "$target/leak.rs" -o "$target/leak" ||
    fail "this nightly cannot build for AddressSanitizer: rustup update nightly"
leaks=1
if report=$(ASAN_OPTIONS=detect_leaks=1 "$target/leak" 2>&1); then
    fail "LeakSanitizer did not find a leak of 100 bytes"
elif [[ $report != *"detected memory leaks"* ]]; then
    # For example under ptrace, and in containers that forbid it.
    leaks=0
    echo "LeakSanitizer does not work here, only valgrind checks for leaks: ${report##*$'\n'}"
fi

step "AddressSanitizer, detect_leaks=$leaks"
address() {
    RUSTFLAGS="-Zsanitizer=address --cfg lean" ASAN_OPTIONS="detect_leaks=$1" PROPTEST_CASES=300 \
        cargo +nightly test --locked -p fleeting --target x86_64-unknown-linux-gnu --target-dir "$target" "${@:2}"
}
# A filter that matches no test would pass without a check, for example after a test was renamed.
matched() {
    local binary=$1 filter tests
    tests=$(cargo test --locked --workspace --all-features --test "$binary" -- --list)
    for filter in "${@:2}"; do
        grep -q "^[a-z_:]*$filter.*: test$" <<<"$tests" || fail "no test of $binary matches $filter"
    done
}
cache=(verbs:: streams:: model:: sweeper:: bounds::)
rate_limit=(checks:: peek_refund_reset:: keys:: waiting::)
valgrind=(verbs:: streams:: model:: bounds::update_changes_the_weight bounds::every_removal_frees_capacity
    bounds::entry_expired_when_set bounds::entry_heavier_than_max_weight)
matched cache "${cache[@]}" "${valgrind[@]}" user_types::
matched rate_limit "${rate_limit[@]}"
matched memory cache::

address "$leaks" --lib --test cache --test memory --test rate_limit --no-run
address "$leaks" --lib -- --quiet
address "$leaks" --test cache -- --quiet "${cache[@]}"
address "$leaks" --test memory -- --quiet cache::
address "$leaks" --test rate_limit -- --quiet "${rate_limit[@]}"
# Some of these values always leak: one holds a stream of the cache that contains the value.
address 0 --test cache -- --quiet user_types::

step "valgrind"
memcheck="valgrind --quiet --error-exitcode=1 --leak-check=full"
memcheck+=" --show-leak-kinds=definite --errors-for-leak-kinds=definite"
! $memcheck "$target/leak" >/dev/null 2>&1 || fail "valgrind did not find a leak of 100 bytes"
PROPTEST_CASES=50 \
    CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="$memcheck" \
    cargo test --locked --workspace --all-features --test cache -- --quiet "${valgrind[@]}"

step "no invalid accesses and no leaks"
