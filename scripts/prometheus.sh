#!/usr/bin/env bash
# promtool, which checks the page of figures: on the path, or in target/promtool, from Debian's package prometheus, of
# which nothing else is taken. It takes no arguments, and does nothing where it is there.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "prometheus.sh: $*" >&2; exit 1; }

command -v promtool >/dev/null && exit
folder=target/promtool
[ -x "$folder/promtool" ] && exit
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
    fail "the tests of the figures need promtool, which comes with Prometheus: https://prometheus.io/download"
mkdir -p "$folder"
cd "$folder"
if ! apt-get download -q prometheus >/dev/null 2>&1; then
    apt-get update -q >&2 || true # A list that is out of date may still do.
    apt-get download -q prometheus >&2 || fail "Debian's package prometheus can't be had: apt-get download prometheus"
fi
dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x --strip-components=3 ./usr/bin/promtool ||
    fail "Debian's package prometheus has no promtool"
rm prometheus_*.deb
./promtool --version >/dev/null 2>&1 || fail "$folder/promtool can't be run"
