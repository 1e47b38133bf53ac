#!/usr/bin/env bash
# Installs the Python package dirq, with which the directory queues are tested, in its own venv target/dirq-venv.
# Takes no arguments, and does nothing if it is installed.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "python.sh: $*" >&2; exit 1; }

venv=target/dirq-venv version=1.8
has_dirq() { "$venv/bin/python" -c "import dirq; assert dirq.VERSION == '$version'" 2>/dev/null; }

has_dirq && exit
command -v python3 >/dev/null || fail "needs Python 3 (Debian: apt-get install python3 python3-venv)"
mkdir -p target
python3 -m venv --clear "$venv" || fail "python3 could not create a venv (Debian: apt-get install python3-venv)"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "dirq==$version" ||
    fail "could not install dirq $version from PyPI"
has_dirq || fail "dirq $version is installed, but cannot be imported"
