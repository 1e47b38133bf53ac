#!/usr/bin/env bash
# Installs promtool, which checks the exported metrics, in target/promtool if it is not on the path. It comes from
# Debian's package prometheus; nothing else of that package is used. Takes no arguments, and does nothing if promtool is
# installed.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "prometheus.sh: $*" >&2; exit 1; }

command -v promtool >/dev/null && exit
folder=target/promtool
[ -x "$folder/promtool" ] && exit
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
    fail "the metrics tests need promtool, which is part of Prometheus: https://prometheus.io/download"
mkdir -p "$folder"
cd "$folder"
if ! apt-get download -q prometheus >/dev/null 2>&1; then
    apt-get update -q >&2 || true # An outdated package list may suffice.
    apt-get download -q prometheus >&2 || fail "could not download Debian's package prometheus: apt-get download prometheus"
fi
dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x --strip-components=3 ./usr/bin/promtool ||
    fail "Debian's package prometheus contains no promtool"
rm prometheus_*.deb
./promtool --version >/dev/null 2>&1 || fail "could not run $folder/promtool"
