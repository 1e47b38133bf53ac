#!/usr/bin/env bash
# Checks the files of the published crate, with the oldest Rust that it supports: `rust-version` in Cargo.toml. rustup
# installs that version. Takes no arguments.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "msrv.sh: $*" >&2; exit 1; }

version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
[ -n "$version" ] || fail "Cargo.toml has no rust-version"
if ! cargo "+$version" --version >/dev/null 2>&1; then
    command -v rustup >/dev/null || fail "needs Rust $version: install rustup from https://rustup.rs"
    rustup toolchain install "$version" --profile minimal >&2 || fail "rustup could not install Rust $version"
fi

# Outside of the workspace, as at a user of the crate.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cargo package --locked -p fleeting --no-verify --allow-dirty --quiet --target-dir target/msrv
tar -xzf "$(ls -t target/msrv/package/fleeting-*.crate | head -1)" -C "$folder" --strip-components=1
for needed in CHANGELOG.md LICENSE-APACHE LICENSE-MIT README.md src/lib.rs; do
    [ -f "$folder/$needed" ] || fail "$needed is missing in the package"
done
tests=$(find "$folder/src" -regextype posix-extended \
    -regex '.*/(\w+_tests|fault_injection|faults|fuzzing|interleavings|shuttle_map|tests|trials)(\.rs)?')
[ -z "$tests" ] || fail "the package has tests: $tests"
# Readers of crates.io see the README without the repository.
links=$(grep -oE '\]\([^)#]+' "$folder/README.md" | cut -c3- | grep -v '^https://' || true)
[ -z "$links" ] || fail "README.md has links or pictures that crates.io cannot show: $links"
target=$PWD/target/msrv
cd "$folder"
cargo "+$version" check --locked --all-features --lib --target-dir "$target"
# The flag that cargo-fuzz sets for all crates of a program.
cargo "+$version" rustc --locked --all-features --lib --target-dir "$target" --profile check -- --cfg fuzzing
