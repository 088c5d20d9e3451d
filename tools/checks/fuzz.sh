#!/bin/sh
# Lints the fuzz target and, with --thorough, runs it for an hour, or SHMLIMIT_FUZZ_SECONDS. Its earlier finds stay in
# fuzz/corpus. The test mutated_segments always does the same without coverage guidance.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh

if [ "${1:-}" != --thorough ]; then
    # Uses the workspace's target directory, so that common dependencies are not built again. Nothing is linked here, so
    # libFuzzer is not needed.
    describe "the fuzz target, linted"
    step env CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}" CUSTOM_LIBFUZZER_PATH=/nonexistent/libfuzzer.a \
        cargo clippy --locked --manifest-path fuzz/Cargo.toml -- -D warnings
elif has c++; then
    step fuzz/run.sh -max_total_time="${SHMLIMIT_FUZZ_SECONDS:-3600}"
else
    skip "the fuzz target" "C++ compiler"
fi
