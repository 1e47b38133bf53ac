#!/usr/bin/env bash
# What the tests in a browser need: Debian's Chromium and its driver, and axe-core (MPL-2.0) from npm, in target/axe,
# which finds what keeps people from using a page. It takes no arguments, and does nothing where all is there.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "browser.sh: $*" >&2; exit 1; }

missing=()
command -v chromium >/dev/null || missing+=(chromium)
command -v chromedriver >/dev/null || missing+=(chromium-driver)
if [ ${#missing[@]} -gt 0 ]; then
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
        fail "the tests in a browser need ${missing[*]} (Debian: apt-get install ${missing[*]})"
    echo "installing ${missing[*]}" >&2
    apt-get update -q >&2 || true # A list that is out of date may still do.
    # Both, since a driver drives only the Chromium of its own version.
    apt-get install -q -y --no-install-recommends chromium chromium-driver >&2 ||
        fail "Chromium can't be installed: apt-get install chromium chromium-driver"
fi

axe=target/axe/axe.min.js version=4.14.1
checksum=29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c
is_right() { echo "$checksum  $axe" | sha256sum --check --status 2>/dev/null; }

if ! is_right; then
    if ! command -v npm >/dev/null; then
        [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || fail "it needs npm (Debian: apt-get install npm)"
        echo "installing npm" >&2
        apt-get update -q >&2 || true
        apt-get install -q -y --no-install-recommends npm >&2 || fail "npm can't be installed: apt-get install npm"
    fi
    mkdir -p target/axe
    (cd target/axe && npm pack --silent "axe-core@$version" >/dev/null) ||
        fail "axe-core $version can't be had from npm"
    tar -xzf "target/axe/axe-core-$version.tgz" -C target/axe --strip-components=1 package/axe.min.js ||
        fail "the package axe-core $version has no axe.min.js"
    rm "target/axe/axe-core-$version.tgz"
    is_right || fail "$axe is not the file that it should be (axe-core $version)"
fi
