#!/bin/sh
# The crash harness, which kills processes at every instruction; the proof that it can fail; and the model of the queue's
# protocol, as far as an optimised explorer gets. With --thorough nothing is left out, which takes hours.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh

# Without the journal a kill must leave torn states behind: a harness that finds none would prove nothing.
describe "killed at every instruction, without the journal: must find torn states"
step env RUSTC_WORKSPACE_WRAPPER="$PWD/tools/checks/without-journal" \
    cargo test --locked --release --test killed_at_every_instruction
if [ "${1:-}" = --thorough ]; then
    SHMLIMIT_THOROUGH=1
    export SHMLIMIT_THOROUGH
fi
step cargo test --locked --release --test killed_at_every_instruction
step cargo test --locked --release --lib queue::
