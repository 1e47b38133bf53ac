#!/usr/bin/env bash
# Runs the tests that reach the crate's only `unsafe` code (src/engine/shard/table.rs), on Linux x86_64, under
#   1. AddressSanitizer and LeakSanitizer, on nightly: invalid accesses, and memory that is unreachable at exit
#   2. valgrind's memcheck, on stable: the same without instrumented code, and reads of uninitialized memory
#   scripts/sanitize.sh [address|valgrind]      both, if none is named
# 1 runs the unit tests, built in target/asan; 2 runs the binaries that ./test.sh has built. The fuzz targets
# (scripts/fuzz.sh) run with AddressSanitizer, too: `verbs` reaches all of that code by random calls.
# Reports have the names of functions; for lines: CARGO_PROFILE_DEV_DEBUG=line-tables-only scripts/sanitize.sh
# The script sets:
#   RUSTFLAGS                                      -Zsanitizer=address for 1, and few dependencies (--cfg lean)
#   ASAN_OPTIONS                                   detect_leaks=1 if the system lets LeakSanitizer work
#   CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER   the runner of the test binaries: valgrind
#   PROPTEST_CASES                                 few random sequences: each is 20 times slower under valgrind
#   FLEETING_TEST_PATIENCE                         20 times as long for tests that watch for a deadlock
# A leak is unreachable memory. Memory that statics and thread-locals of tokio, parking_lot or std still point to at exit
# is reachable, so no list of exceptions is needed.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$*"; }
fail() { echo "sanitize.sh: $*" >&2; exit 1; }

[ "$(uname -sm)" = "Linux x86_64" ] || fail "needs Linux on x86_64, but this is $(uname -sm)"
command -v cc >/dev/null || fail "needs a C compiler (Debian: apt-get install build-essential)"
tools=("${@:-address}")
[ $# != 0 ] || tools+=(valgrind)
target=target/asan
mkdir -p "$target"
unset CARGO_ENCODED_RUSTFLAGS # It would take precedence over RUSTFLAGS.

# Builds a program that leaks: if its leak is not found, the result "no leaks" means nothing.
build_leak() {
    cat >"$target/leak.rs" <<'RUST'
fn main() {
    let leak = || std::mem::forget(std::hint::black_box(vec![0_u8; 100]));
    std::thread::spawn(leak).join().unwrap();
}
RUST
    rustc "$@" "$target/leak.rs" -o "$target/leak"
}

with_address_sanitizer() {
    cargo +nightly --version >/dev/null 2>&1 || fail "needs nightly Rust: rustup toolchain install nightly"
    build_leak +nightly -Zsanitizer=address ||
        fail "this nightly cannot build for AddressSanitizer: rustup update nightly"
    local leaks=1 report
    if report=$(ASAN_OPTIONS=detect_leaks=1 "$target/leak" 2>&1); then
        fail "LeakSanitizer did not find a leak of 100 bytes"
    elif [[ $report != *"detected memory leaks"* ]]; then
        # For example under ptrace, and in containers that forbid it.
        leaks=0
        echo "LeakSanitizer does not work here, only valgrind checks for leaks: ${report##*$'\n'}"
    fi
    step "AddressSanitizer, detect_leaks=$leaks"
    RUSTFLAGS="-Zsanitizer=address --cfg lean" ASAN_OPTIONS="detect_leaks=$leaks" PROPTEST_CASES=300 \
        cargo +nightly test --locked -p fleeting --target x86_64-unknown-linux-gnu --target-dir "$target" \
        --lib -- --quiet
}

with_valgrind() {
    if ! command -v valgrind >/dev/null; then
        [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
            fail "needs valgrind (Debian: apt-get install valgrind)"
        step "installing valgrind"
        apt-get update -q || true # An outdated package list may suffice.
        apt-get install -q -y valgrind || fail "could not install valgrind: apt-get install valgrind"
    fi
    step "valgrind"
    build_leak
    ! $memcheck $leak_check "$target/leak" >/dev/null 2>&1 || fail "valgrind did not find a leak of 100 bytes"
    memcheck "$leak_check" cache verbs:: streams:: model:: bounds::update_changes_the_weight \
        bounds::every_removal_frees_capacity bounds::entry_expired_when_set bounds::entry_heavier_than_max_weight
    memcheck "$leak_check" rate_limit checks:: peek_refund_reset::
    # A value whose destructor or comparison panics may leak.
    memcheck --leak-check=no cache user_types::panics::panic_of_hash user_types::panics::panic_of_drop \
        user_types::reentrant::panic_of
}

memcheck="valgrind --quiet --error-exitcode=1"
leak_check="--leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite"
# Runs the tests of a binary that a filter matches, under memcheck with these options.
memcheck() {
    local options=$1 binary=$2 filter tests
    tests=$(cargo test --locked --workspace --all-features --test "$binary" -- --list)
    # A filter that matches no test would pass without a check, for example after a test was renamed.
    for filter in "${@:3}"; do
        grep -q "^[a-z_:]*$filter.*: test$" <<<"$tests" || fail "no test of $binary matches $filter"
    done
    FLEETING_TEST_PATIENCE=20 PROPTEST_CASES=20 \
        CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="$memcheck $options" \
        cargo test --locked --workspace --all-features --test "$binary" -- --quiet "${@:3}"
}

for tool in "${tools[@]}"; do
    case $tool in
        address) with_address_sanitizer ;;
        valgrind) with_valgrind ;;
        *) fail "no tool '$tool': address or valgrind" ;;
    esac
done
step "no invalid accesses and no leaks"
