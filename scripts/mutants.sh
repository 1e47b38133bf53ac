#!/usr/bin/env bash
# Changes the code of the core in small ways, one at a time, and runs the tests that should notice it (cargo-mutants).
#   scripts/mutants.sh [shard=0/23] [room...]    the rooms: rate_limit timeout_dict sets cache engine (all by default)
# `0/23` takes every 23rd change, beginning with the first: a sample of 300 of all rooms, about 15 seconds each on two
# cores. `0/1` takes all, in more than a day. Changes that no test noticed are printed, and stay in
# target/mutants/<room>/mutants.out. Such a change in a decision becomes a test, or the code goes.
# These tests have the default features and `serde`: changes of code behind other features are listed as missed.
# If cargo-nextest is installed, the tests of a change end at the first that fails.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "mutants.sh: $*" >&2; exit 1; }

shard=${1:-0/23}
[[ $shard =~ ^[0-9]+/[1-9][0-9]*$ ]] || fail "the shard must be like 0/23, got '$shard'"
rooms=("${@:2}")
[ ${#rooms[@]} != 0 ] || rooms=(rate_limit timeout_dict sets cache engine)
cargo mutants --version >/dev/null 2>&1 || cargo install cargo-mutants --locked ||
    fail "could not install cargo-mutants: cargo install cargo-mutants --locked"

tool=cargo
cargo nextest --version >/dev/null 2>&1 && tool=nextest
# The copy of the tree is built again for each change.
export CARGO_INCREMENTAL=1
for room in "${rooms[@]}"; do
    [ -d "src/$room" ] || fail "no room '$room' in src"
    # With the unit tests. The tests of the cache are those of the engine.
    tests=$room
    [ "$room" = engine ] && tests=cache
    options=(
        # Metrics, log texts, and the programs that shuttle explores are tested elsewhere.
        --file "src/$room/**" --exclude '**/metrics*' --exclude '**/metrics/**' --exclude '**/interleavings*'
        --exclude '**/interleavings/**' --exclude '**/tests.rs' --exclude '**/tests/**'
        --exclude-re 'Debug|fmt::Display'
        --shard "$shard" --sharding round-robin --features serde --test-tool "$tool" --baseline skip
        --timeout 200 --build-timeout 300 --no-times -C=--locked -C=--lib "-C=--test=$tests"
    )
    status=0
    mkdir -p "target/mutants/$room"
    cargo mutants --package fleeting --output "target/mutants/$room" "${options[@]}" || status=$?
    # 2: some were missed; 3: some tests did not end in time.
    [[ $status == [023] ]] || fail "cargo-mutants failed on $room with status $status"
done
