#!/bin/sh
# The tests with segments whose locks are the C library's robust mutexes, in place of slot locks: those of processes that
# die, stop, wait and fork, and a sample of the crash harness. With --thorough all tests of the library, and the whole
# crash harness for hours, or the sample that SHMLIMIT_ONE_IN names.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh
SHMLIMIT_TEST_LOCK=robust
export SHMLIMIT_TEST_LOCK

if [ "${1:-}" = --thorough ]; then
    describe "robust mutexes: all tests of the library"
    step cargo test --locked --package shmlimit --tests
    one_in=${SHMLIMIT_ONE_IN:-everything}
else
    describe "robust mutexes: chaos"
    step cargo test --locked --workspace --test chaos
    describe "robust mutexes: processes that die, stop, wait and fork"
    step cargo test --locked --workspace --test keyed --test processes --test queue --test segments -- \
        attachments:: fork:: giving_back:: processes:: stopped_holder:: waves::
    one_in=${SHMLIMIT_ONE_IN:-100}
fi
crash_harness "robust mutexes: killed at every instruction" "$one_in"
