#!/usr/bin/env bash
# Fuzzes on nightly with AddressSanitizer: the methods of the cache, compared with its oracle, each reader of foreign
# bytes (fields of proxies, snapshots, files of directory queues, keys, values and replies of servers), and the arguments
# of scripts, on a Redis server that this script starts.
#   scripts/fuzz.sh [seconds=10] [target...]    for each target; two run at a time
# The long form, before a release and after a change of a format or a script: scripts/fuzz.sh 600.
# The inputs in fuzz/seeds begin. The corpus and the failing inputs stay in target/fuzz, and the next run continues from
# there. After a long run, the inputs that reach new code belong into fuzz/seeds, in less than 500 KB for all targets:
#   target/fuzz/<host>/release/<target> -merge=1 -max_len=512 fuzz/seeds/<target> target/fuzz/corpus/<target>
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "fuzz.sh: $*" >&2; exit 1; }

seconds=${1:-10}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || fail "seconds must be a whole number above 0, got '$seconds'"
targets=("${@:2}")
[ ${#targets[@]} != 0 ] || targets=($(sed -n 's/^name = "\([a-z_]*\)"$/\1/p' fuzz/Cargo.toml))
command -v c++ >/dev/null || fail "needs a C++ compiler (Debian: apt-get install build-essential)"
cargo +nightly --version >/dev/null 2>&1 || fail "needs nightly Rust: rustup toolchain install nightly"
cargo +nightly fuzz --version >/dev/null 2>&1 || cargo install cargo-fuzz --locked ||
    fail "could not install cargo-fuzz: cargo install cargo-fuzz --locked"

found=$PWD/target/fuzz/found/
mkdir -p "$found"
# Checks of the stack would cost a fifth of the speed, and no `unsafe` code touches the stack.
export ASAN_OPTIONS=detect_stack_use_after_return=0

# For `src/redis/fuzzing.rs`. cargo-fuzz adds its own flags.
export RUSTFLAGS="--cfg fleeting_fuzzing ${RUSTFLAGS:-}"
# Optimizing them takes longer than a short run of all targets saves.
profile=release option=--release
[ "$seconds" -ge 60 ] || profile=debug option=--dev
cargo +nightly fuzz build "$option" --target-dir target/fuzz || fail "the fuzz targets do not build"
programs=target/fuzz/$(rustc +nightly -vV | sed -n 's/^host: //p')/$profile

# Starts a server without persistence, which ends with the subshell of the caller.
start_server() {
    command -v redis-server >/dev/null && command -v redis-cli >/dev/null || scripts/servers.sh >/dev/null ||
        fail "needs redis-server and redis-cli (Debian: apt-get install redis-server)"
    folder=$(mktemp -d)
    export FLEETING_FUZZ_REDIS=$folder/socket
    redis-server --port 0 --unixsocket "$FLEETING_FUZZ_REDIS" --dir "$folder" --save "" --appendonly no \
        --loglevel warning >"$folder/log" 2>&1 &
    server=$!
    trap 'kill "$server" 2>/dev/null; wait "$server" || true; rm -r "$folder"' EXIT
    for _ in {1..600}; do
        redis-cli -s "$FLEETING_FUZZ_REDIS" ping >/dev/null 2>&1 && return
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    cat "$folder/log" >&2
    fail "redis-server did not start"
}

# Runs a target. The programs are called directly, because `cargo fuzz run` waits for the lock of the build.
run() {
    local target=$1 corpus=target/fuzz/corpus/$1 log=target/fuzz/$1.log directories
    mkdir -p "$corpus"
    [ "$target" != scripts ] || start_server
    directories=("$corpus")
    [ ! -d "fuzz/seeds/$target" ] || directories+=("fuzz/seeds/$target")
    if "$programs/$target" "${directories[@]}" -max_total_time="$seconds" -timeout=120 -len_control=0 \
        -max_len=512 -artifact_prefix="$found$target-" -print_final_stats=1 >"$log" 2>&1; then
        sed -n "s/^stat::number_of_executed_units: */$target: inputs: /p" "$log"
    else
        tail -50 "$log" >&2
        fail "an input of $target failed; reproduce it with: $programs/$target" \
            "$(find "$found" -name "$target-*" -printf '%T@ %p\n' | sort -n | tail -1 | cut -d' ' -f2)"
    fi
}

failed=
running=0
for target in "${targets[@]}"; do
    [ "$running" -lt 2 ] || { wait -n || failed=yes; running=$((running - 1)); }
    run "$target" &
    running=$((running + 1))
done
while [ "$running" -gt 0 ]; do
    wait -n || failed=yes
    running=$((running - 1))
done
[ -z "$failed" ] || fail "a target failed, see above"
