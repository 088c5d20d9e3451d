#!/bin/sh
# The fuzz target: ten seconds, with --thorough an hour. What it found before stays in fuzz/corpus.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh

# The target directory of the workspace, so that procedural macros are not built again.
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
export CARGO_TARGET_DIR

if ! has c++; then
    skip "the fuzz target (the test mutated_segments does the same without guidance)" "C++ compiler"
elif [ "${1:-}" = --thorough ]; then
    step fuzz/run.sh -max_total_time=3600
else
    step fuzz/run.sh -max_total_time=10
fi
