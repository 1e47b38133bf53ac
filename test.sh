#!/usr/bin/env bash
# Runs checks: the groups that are named, or all of them.
#   ./test.sh [group...]
#     core           formatting, clippy and the tests of the default features; needs only Rust
#     features       clippy with all features, and with each alone
#     axum           rate limits as a tower layer, and the dashboard
#     redis          feature `redis` on Redis, then on Valkey                        (installs both)
#     dirq           directory queues, compared with Python's                        (installs a Python package)
#     metrics        exported metrics, alert rules and the Grafana dashboard         (installs Redis and promtool)
#     examples       the examples                                                    (installs Redis)
#     browser        the dashboard in Chromium                                       (installs Chromium and axe-core)
#     docs           examples of the documentation, links, and the rules of its language
#     interleavings  all schedules of small concurrent programs, by shuttle
#     models         all states of models of the protocols between processes
#     sanitize       AddressSanitizer, LeakSanitizer and valgrind                    (Linux x86_64; installs valgrind)
#     fuzz           random calls, foreign bytes, arguments of scripts on Redis      (nightly; installs cargo-fuzz, Redis)
#     msrv           the files of the published crate, with the oldest supported Rust (rustup installs it)
#     deny           licenses and sources of all dependencies                        (installs cargo-deny, which takes minutes)
#     semver         the public API compared with the last release                   (installs cargo-semver-checks)
# `all` is every group except `semver`, `sanitize` and `fuzz`; `deny` and `msrv` only if cargo-deny and that Rust are
# installed. `.ci/run` and the nightly workflow run `sanitize` and `fuzz`, too.
#
# A longer run: PROPTEST_CASES=20000 SHUTTLE_ITERATIONS=100000 FLEETING_STRESS_SECONDS=60 FUZZ_SECONDS=600 \
#     FLEETING_DIRQ_SECONDS=7200 FLEETING_HISTORY_SECONDS=300 FLEETING_MODEL_SIZE=large \
#     FLEETING_ORACLE_SEQUENCES=10000 FLEETING_DIFFERENTIAL_SEQUENCES=100 ./test.sh
# The end is a summary: the steps with their times, and the checks that were left out, with the reason.
# On a busy machine: FLEETING_TEST_PATIENCE=4 ./test.sh allows servers and other processes four times as long.
set -euo pipefail
cd "$(dirname "$0")"

# Files of this run: times of steps, skipped checks, and output of groups in the background.
logs=$(mktemp -d)
current_step=
step_began=0
step_began_processor=0
step() {
    end_step
    printf '\n== %s\n' "$*"
    current_step=$* step_began=$SECONDS
    processor_seconds
    step_began_processor=$used
}
# Records the times of the current step, in the shell or subshell that began it.
end_step() {
    [ -n "$current_step" ] || return 0
    processor_seconds
    printf '%6d s %6d s  %s\n' $((SECONDS - step_began)) $((used - step_began_processor)) "$current_step${1:-}" \
        >>"$logs/steps"
    current_step=
}
# Sets `used` to the processor time of all commands that this shell has run.
processor_seconds() {
    local file=$logs/times.$BASHPID
    times >"$file"
    used=$(awk -F '[ms ]' 'NR == 2 { print int(60 * ($1 + $4) + $2 + $5) }' "$file")
}
# Records a check that is left out.
skip() {
    echo "skipped: $*"
    echo "$*" >>"$logs/skipped"
}
# Prints the steps with their times and the checks that were left out, also if a step failed.
summary() {
    local status=$?
    # Each group in the background has a process group, with its compilers and tests.
    kill -- $(cat "$logs"/*.pid 2>/dev/null | sed 's/^/-/') 2>/dev/null || true
    if [ "$status" = 0 ]; then end_step; else end_step " (FAILED)"; fi
    if [ -s "$logs/steps" ]; then
        printf '\n== summary, %d s (time and processor time of each step)\n' "$SECONDS"
        cat "$logs/steps"
        [ ! -s "$logs/skipped" ] || sort -u "$logs/skipped" | sed 's/^/   not run  /'
        [ "$status" != 0 ] || echo "all checks passed"
    fi
    rm -rf "$logs"
}
trap summary EXIT
fail() { echo "test.sh: $*" >&2; exit 1; }

command -v cargo >/dev/null || fail "needs cargo: install Rust from https://rustup.rs"
[ "${OS:-}" = Windows_NT ] || command -v cc >/dev/null || fail "needs a C compiler (Debian: apt-get install build-essential)"
cargo fmt --version >/dev/null 2>&1 || fail "needs rustfmt: rustup component add rustfmt"
cargo clippy --version >/dev/null 2>&1 || fail "needs clippy: rustup component add clippy"

processors=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
export RUSTDOCFLAGS="-D warnings"
# Every target is built only once here, so incremental compilation would not pay off.
export CARGO_INCREMENTAL=0
# Tests add what they leave out, because this machine lacks something that cannot be installed.
export FLEETING_SKIPPED=$logs/skipped
# More threads than processors, because many tests wait for servers, disks and other processes.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * processors))}

# The same packages and features everywhere, so that all groups share one build.
everything=(--locked --workspace --all-features)
# The crate alone, with few dependencies, built apart so that it does not replace the build with all features.
lean() { RUSTFLAGS="--cfg lean ${RUSTFLAGS:-}" cargo "$1" --locked -p fleeting --target-dir target/core "${@:2}"; }

formatting() {
    step "formatting"
    cargo fmt --all --check
}

core() {
    formatting
    step "clippy, default features"
    lean clippy --lib --tests -- -D warnings
    step "tests, default features"
    # A part of the random cases: the tests with all features run all.
    PROPTEST_CASES=${PROPTEST_CASES:-64} FLEETING_STRESS_SECONDS=${FLEETING_STRESS_SECONDS:-1} \
        FLEETING_HISTORY_SECONDS=${FLEETING_HISTORY_SECONDS:-3} lean test --lib --tests
}

features() {
    all_features
    each_feature
}

all_features() {
    step "clippy, all features"
    cargo clippy "${everything[@]}" --all-targets -- -D warnings
}

each_feature() {
    step "clippy with each feature alone"
    # In a folder of its own: the tests of the examples call cargo, and would wait for the lock of the other one.
    local alone=(--locked -p fleeting --no-default-features --target-dir target/features)
    cargo clippy "${alone[@]}" -- -D warnings
    local feature
    for feature in $(awk '/^\[features\]/ {on=1; next} /^\[/ {on=0} on && /^[a-z]/ {print $1}' Cargo.toml); do
        [ "$feature" = default ] && continue
        echo "feature $feature"
        cargo clippy "${alone[@]}" --features "$feature" -- -D warnings
    done
}

axum() {
    step "tests of feature axum and of the dashboard"
    cargo test "${everything[@]}" --test axum
}

redis() {
    scripts/servers.sh >/dev/null
    on_servers
}

canonical_keys() {
    step "keys, with all features of serde_json"
    cargo test --manifest-path tests/serde_json_features/Cargo.toml --target-dir target/serde_json_features
}

on_servers() {
    step "tests of feature redis, on Redis"
    cargo test "${everything[@]}" --test redis
    on_valkey
    canonical_keys
}

on_valkey() {
    step "tests of feature redis, on Valkey"
    local valkey
    valkey=$(scripts/servers.sh)
    skip "tests of TLS on Valkey: this Valkey is built without TLS"
    skip "tests of the client alone and of dropped calls on Valkey: they are the same as on Redis"
    local alike=(
        # Only the client: no server answers, or it answers to plain commands.
        behind_proxy hostile_server network runtimes
        # Calls that are dropped, and processes that are killed: the server runs the same scripts without them.
        cancellation claims_history events_history loads_history near_history reservations::history fleet
    )
    FLEETING_REDIS_SERVER=$valkey cargo test "${everything[@]}" --test redis -- --skip over_tls \
        $(printf -- '--skip %s:: ' "${alike[@]}")
}

dirq() {
    step "tests of feature dirq"
    scripts/python.sh
    cargo test "${everything[@]}" --test dirq
}

metrics() {
    step "tests of feature metrics, the alert rules and the Grafana dashboard"
    scripts/servers.sh >/dev/null
    scripts/prometheus.sh
    cargo test "${everything[@]}" --test metrics
}

examples() {
    scripts/servers.sh >/dev/null
    scripts/python.sh
    cargo build "${everything[@]}" --examples
    run_examples
}

run_examples() {
    step "tests of the examples"
    cargo test "${everything[@]}" --test examples --example tower_sessions
}

browser() {
    step "tests of the dashboard in a browser"
    scripts/browser.sh
    cargo test "${everything[@]}" --test browser
}

docs() {
    step "language of the documentation"
    cargo test "${everything[@]}" --test words --test architecture --test documents
    documentation
}

documentation() {
    step "examples and links of the documentation"
    scripts/release.sh --check
    cargo test "${everything[@]}" --doc
    cargo doc --locked -p fleeting --all-features --no-deps
}

interleavings() {
    step "interleavings"
    # Optimized, because the tests would run for longer than the compiler.
    RUSTFLAGS="--cfg shuttle --cfg lean" CARGO_PROFILE_DEV_OPT_LEVEL=1 \
        cargo test --locked -p fleeting --lib --target-dir target/shuttle interleavings
}

models() {
    step "models of the protocols"
    cargo test --locked -p fleeting-models
}

sanitize() {
    step "memory errors and leaks"
    scripts/sanitize.sh
}

fuzz() {
    step "fuzzing"
    scripts/fuzz.sh "${FUZZ_SECONDS:-5}"
}

msrv() {
    step "published crate, with the oldest supported Rust"
    scripts/msrv.sh
}

deny() {
    step "licenses and sources of dependencies"
    scripts/deny.sh
}

semver() {
    step "public API compared with the last release"
    scripts/semver.sh
}

# start <name> <nice> <group...>: runs groups in the background. `finish` waits for them, and prints their output if one
# failed.
start() {
    set -m
    (
        set -e
        renice -n "$2" -p "$BASHPID" >/dev/null
        # The step of the shell goes on without this subshell.
        current_step=
        trap 'if [ $? = 0 ]; then end_step; else end_step " (FAILED)"; fi' EXIT
        for group in "${@:3}"; do "$group"; done
    ) >"$logs/$1.log" 2>&1 &
    set +m
    echo $! >"$logs/$1.pid"
}
finish() {
    # Before `wait` adds the processor time of the background to that of this shell.
    end_step
    local passed=true
    wait "$(cat "$logs/$1.pid")" || passed=false
    rm "$logs/$1.pid"
    $passed || { cat "$logs/$1.log" >&2; fail "$1: failed, see above"; }
    grep -E '^(test result|== )' "$logs/$1.log" || true
}

tools() {
    step "tools for the tests: redis-server, Valkey, the Python package dirq, promtool, Chromium, axe-core"
    scripts/servers.sh >/dev/null
    scripts/python.sh
    scripts/prometheus.sh
    scripts/browser.sh
}

all() {
    start tools 10 tools
    formatting
    if cargo deny --version >/dev/null 2>&1; then deny; else skip "./test.sh deny: cargo-deny is not installed"; fi
    all_features
    step "building all tests and examples"
    cargo test "${everything[@]}" --no-run
    finish tools
    # Many tests wait for servers, timers and processes. The others run during that, and what has to be compiled gets the
    # rest of the time.
    start servers 0 on_servers
    local compiling=(documentation interleavings each_feature)
    local oldest
    oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    if cargo "+$oldest" --version >/dev/null 2>&1; then
        compiling+=(msrv)
    else
        skip "./test.sh msrv: Rust $oldest is not installed"
    fi
    start builds 10 "${compiling[@]}"
    step "tests"
    local targets=(--lib) file
    for file in tests/*.rs tests/*/main.rs; do
        file=${file#tests/} file=${file%/main.rs} file=${file%.rs}
        [[ $file = examples || $file = redis ]] || targets+=(--test "$file")
    done
    cargo test "${everything[@]}" --no-fail-fast "${targets[@]}"
    run_examples
    browser
    finish servers
    finish builds
    skip "./test.sh semver: needs the last release"
    skip "./test.sh sanitize fuzz: not a part of it, because they take minutes"
}

groups=$(sed -n 's/^#     \([a-z]*\) .*/\1/p' "$0")
for group in "${@:-all}"; do
    [ "$group" = all ] || grep -qx "$group" <<<"$groups" || fail "no group '$group'; the groups are" $groups all
done
for group in "${@:-all}"; do "$group"; done
case " ${*:-all} " in
    *" all "*) ;;
    *) for group in $groups; do [[ " $* " == *" $group "* ]] || skip "./test.sh $group: not named"; done >/dev/null ;;
esac
