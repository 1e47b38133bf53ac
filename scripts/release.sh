#!/usr/bin/env bash
# Publishes the crate, after checks that cannot be made later.
#   scripts/release.sh            publishes the version in Cargo.toml
#   scripts/release.sh --check    prints what keeps it from being published, and builds the package
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
    "" | --check) ;;
    *) echo "release.sh: unknown argument $1" >&2; exit 2 ;;
esac

missing=()
value() { sed -n '/^\[workspace.metadata.release\]/,/^\[package\]/s/^'"$1"' = "\(.*\)"$/\1/p' Cargo.toml; }
for name in repository security-contact; do
    [ -n "$(value "$name")" ] || missing+=("$name is empty in [workspace.metadata.release] of Cargo.toml")
done
grep -qxF "repository = \"$(value repository)\"" <(sed -n '/^\[package\]/,/^\[features\]/p' Cargo.toml) ||
    missing+=("[package] of Cargo.toml has not the same repository")
version=$(cargo pkgid -p fleeting | sed 's/.*[#@]//')
grep -qE "^## \[$version\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md ||
    missing+=("CHANGELOG.md has no date for $version")
[ -z "$(git status --porcelain 2>/dev/null)" ] || missing+=("the working tree has changes")

if [ "${1:-}" = --check ]; then
    cargo package --locked -p fleeting --no-verify --allow-dirty --quiet --target-dir target/release-check
    [ ${#missing[@]} = 0 ] || printf 'not published while: %s\n' "${missing[@]}"
    exit
fi
if [ ${#missing[@]} -gt 0 ]; then
    printf 'release.sh: %s\n' "${missing[@]}" >&2
    exit 1
fi
./test.sh
cargo publish --locked -p fleeting
