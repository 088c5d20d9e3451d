#!/bin/sh
# Runs tests on segments with slot locks instead of robust mutexes: those with processes that die, stop, wait and fork.
# With --thorough, all tests of the library that can run like this, and the crash harness with nothing left out.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh
SHMLIMIT_TEST_LOCK=slot
export SHMLIMIT_TEST_LOCK

if [ "${1:-}" = --thorough ]; then
    describe "slot locks: all tests of the library"
    step cargo test --locked --package shmlimit --tests
    describe "slot locks: killed at every instruction, nothing left out"
    step env SHMLIMIT_THOROUGH=1 cargo run --locked --release --package killed_at_every_instruction
    describe "slot locks: 100,000 random kills in two PID namespaces"
    step env SHMLIMIT_KILL_SECONDS=500 cargo test --locked --package shmlimit --test random_kills -- namespaces
else
    # With --workspace, as for the step that runs all tests, so that nothing is built again.
    describe "slot locks: chaos"
    step cargo test --locked --workspace --test chaos
    describe "slot locks: processes that die, stop, wait and fork"
    step cargo test --locked --workspace --test keyed --test processes --test queue --test segments -- \
        attachments:: fork:: giving_back:: processes:: stopped_holder:: waves::
fi
