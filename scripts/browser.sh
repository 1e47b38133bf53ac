#!/usr/bin/env bash
# Installs the tools of the browser tests: Debian's Chromium and its driver, and axe-core (MPL-2.0) from npm, in
# target/axe, which checks the accessibility of a page; and the servers of scripts/servers.sh. Takes no arguments, and does
# nothing if all are installed.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/servers.sh >/dev/null

fail() { echo "browser.sh: $*" >&2; exit 1; }

missing=()
command -v chromium >/dev/null || missing+=(chromium)
command -v chromedriver >/dev/null || missing+=(chromium-driver)
if [ ${#missing[@]} -gt 0 ]; then
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
        fail "the browser tests need ${missing[*]} (Debian: apt-get install ${missing[*]})"
    echo "installing ${missing[*]}" >&2
    apt-get update -q >&2 || true # An outdated package list may suffice.
    # Both, because a driver supports only the Chromium of its own version.
    apt-get install -q -y --no-install-recommends chromium chromium-driver >&2 ||
        fail "could not install Chromium: apt-get install chromium chromium-driver"
fi

axe=target/axe/axe.min.js version=4.14.1
checksum=29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c
has_checksum() { echo "$checksum  $axe" | sha256sum --check --status 2>/dev/null; }

if ! has_checksum; then
    if ! command -v npm >/dev/null; then
        [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || fail "needs npm (Debian: apt-get install npm)"
        echo "installing npm" >&2
        apt-get update -q >&2 || true
        apt-get install -q -y --no-install-recommends npm >&2 || fail "could not install npm: apt-get install npm"
    fi
    mkdir -p target/axe
    (cd target/axe && npm pack --silent "axe-core@$version" >/dev/null) ||
        fail "could not download axe-core $version from npm"
    tar -xzf "target/axe/axe-core-$version.tgz" -C target/axe --strip-components=1 package/axe.min.js ||
        fail "package axe-core $version contains no axe.min.js"
    rm "target/axe/axe-core-$version.tgz"
    has_checksum || fail "wrong checksum of $axe (axe-core $version)"
fi
