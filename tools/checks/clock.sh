#!/bin/sh
# Kills, at every instruction and at random, of processes that read the time from a counter which stops, jumps and runs at
# other rates: time may be wrong then by what is documented, and nothing else.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh
RUSTC_WORKSPACE_WRAPPER="$PWD/tools/checks/wrappers/faulty-counter"
SHMLIMIT_ONE_IN="${SHMLIMIT_ONE_IN:-20}"
SHMLIMIT_KILL_SECONDS="${SHMLIMIT_KILL_SECONDS:-30}"
export RUSTC_WORKSPACE_WRAPPER SHMLIMIT_ONE_IN SHMLIMIT_KILL_SECONDS

describe "killed at every instruction, by a faulty counter: 1 in $SHMLIMIT_ONE_IN"
step cargo run --locked --release --package killed_at_every_instruction
# Not chaos, which holds leases against a clock that is right: they run out early where the time jumps ahead.
describe "processes killed at random, by a faulty counter"
step cargo test --locked --package shmlimit --test random_kills
describe "processes that stop and fork, by a faulty counter"
step cargo test --locked --package shmlimit --test processes -- fork:: stopped_holder::
