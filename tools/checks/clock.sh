#!/bin/sh
# Kills processes, at every instruction and at random, that read the time from a counter that stops, jumps and runs at
# other rates: time may then be wrong by the documented amount, and nothing else may be wrong.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh
RUSTC_WORKSPACE_WRAPPER="$PWD/tools/checks/wrappers/faulty-counter"
SHMLIMIT_KILL_SECONDS="${SHMLIMIT_KILL_SECONDS:-30}"
export RUSTC_WORKSPACE_WRAPPER SHMLIMIT_KILL_SECONDS

crash_harness "killed at every instruction, by a faulty counter" "${SHMLIMIT_ONE_IN:-20}"
# Not chaos, which compares leases with a correct clock: they run out early if the time jumps ahead.
describe "processes killed at random, by a faulty counter"
step cargo test --locked --package shmlimit --test random_kills
describe "processes that stop and fork, by a faulty counter"
step cargo test --locked --package shmlimit --test processes -- fork:: stopped_holder::
