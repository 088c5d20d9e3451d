#!/bin/sh
# The fuzz target: linted, with --thorough run for an hour. What it found before stays in fuzz/corpus. Without the guidance of
# coverage the test mutated_segments does the same, each time.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh

if [ "${1:-}" != --thorough ]; then
    # The target directory of the workspace, so that what both depend on is not built again; and nothing of libFuzzer, which
    # nothing is linked with here.
    describe "the fuzz target, linted"
    step env CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}" CUSTOM_LIBFUZZER_PATH=/nonexistent/libfuzzer.a \
        cargo clippy --locked --manifest-path fuzz/Cargo.toml -- -D warnings
elif has c++; then
    step fuzz/run.sh -max_total_time=3600
else
    skip "the fuzz target" "C++ compiler"
fi
