#!/usr/bin/env bash
# Checks the files of the published crate, and that it builds from them alone. Takes no arguments.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "package.sh: $*" >&2; exit 1; }

files=$(cargo package --locked -p fleeting --list --allow-dirty)
for needed in CHANGELOG.md LICENSE-APACHE LICENSE-MIT README.md src/lib.rs src/guide/recipes.md; do
    grep -qx "$needed" <<<"$files" || fail "$needed is missing in the package"
done
! grep -E '(^|/)(\w+_tests|fault_injection|faults|interleavings|tests|trials)(/|\.rs$)' <<<"$files" ||
    fail "the files above are tests, which the package does not need"
# Links of the README and of Cargo.toml must lead somewhere: crates.io shows both.
if grep -nE '^(homepage|repository) *=' Cargo.toml; then fail "Cargo.toml has a link that does not exist yet"; fi
cargo package --locked -p fleeting --all-features --allow-dirty --target-dir target/package
