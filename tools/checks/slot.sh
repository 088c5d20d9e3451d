#!/bin/sh
# The tests with segments whose locks are slot locks, in place of robust mutexes. With --thorough all tests of the library that
# can be run so and the crash harness with nothing left out; otherwise those of processes that die, stop, wait and fork,
# and a sample of the crash harness.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh
SHMLIMIT_TEST_LOCK=slot
export SHMLIMIT_TEST_LOCK

if [ "${1:-}" = --thorough ]; then
    describe "slot locks: all tests of the library"
    step cargo test --locked --package shmlimit --tests
    describe "slot locks: killed at every instruction, nothing left out"
    step env SHMLIMIT_THOROUGH=1 \
        cargo test --locked --release --package killed_at_every_instruction --test killed_at_every_instruction
    describe "slot locks: 100,000 random kills in two PID namespaces"
    step env SHMLIMIT_KILL_SECONDS=500 cargo test --locked --package shmlimit --test random_kills -- namespaces
else
    describe "slot locks: processes that die, stop, wait and fork"
    step cargo test --locked --package shmlimit --test cold_start --test fork --test futures --test giving_back \
        --test keyed_processes --test no_polling --test random_kills --test stopped_holder --test waves
    one_in=${SHMLIMIT_ONE_IN:-48}
    phase=${SHMLIMIT_PHASE:-$((0x$(git rev-parse --short=4 HEAD 2>/dev/null || echo 0) % one_in))}
    describe "slot locks: killed at every instruction: 1 in $one_in, phase $phase"
    step env SHMLIMIT_ONE_IN="$one_in" SHMLIMIT_PHASE="$phase" \
        cargo test --locked --release --package killed_at_every_instruction --test killed_at_every_instruction
fi
