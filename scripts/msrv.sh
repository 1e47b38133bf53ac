#!/usr/bin/env bash
# Checks the crate with the oldest Rust that it supports: `rust-version` in Cargo.toml. rustup installs that version.
# Takes no arguments.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "msrv.sh: $*" >&2; exit 1; }

version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
[ -n "$version" ] || fail "Cargo.toml has no rust-version"
if ! cargo "+$version" --version >/dev/null 2>&1; then
    command -v rustup >/dev/null || fail "needs Rust $version: install rustup from https://rustup.rs"
    rustup toolchain install "$version" --profile minimal >&2 || fail "rustup could not install Rust $version"
fi
cargo "+$version" check --locked -p fleeting --all-features --target-dir target/msrv
