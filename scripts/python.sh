#!/usr/bin/env bash
# The Python package dirq, beside which the directory queues are tested, in a venv of its own: target/dirq-venv.
# It takes no arguments, and does nothing where all is there.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "python.sh: $*" >&2; exit 1; }

venv=target/dirq-venv version=1.8
has_dirq() { "$venv/bin/python" -c "import dirq; assert dirq.VERSION == '$version'" 2>/dev/null; }

has_dirq && exit
command -v python3 >/dev/null || fail "it needs Python 3 (Debian: apt-get install python3 python3-venv)"
mkdir -p target
python3 -m venv --clear "$venv" || fail "python3 can't make a venv (Debian: apt-get install python3-venv)"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "dirq==$version" ||
    fail "dirq $version can't be installed from PyPI"
has_dirq || fail "dirq $version is installed and can't be imported"
