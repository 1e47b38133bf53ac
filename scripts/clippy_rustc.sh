#!/bin/sh
# Compiler that reports clippy's lints, as errors. With RUSTC_WORKSPACE_WRAPPER set to this script, one build serves both
# clippy and the tests: a check by `cargo clippy` would analyse all packages and their dependencies a second time.
exec clippy-driver "$@" -D warnings
