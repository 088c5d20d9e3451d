#!/bin/sh
# The crash harness, which kills processes at every instruction, and the proof that it can fail. Of each operation's
# crash states it tries a sample, which changes from commit to commit; SHMLIMIT_ONE_IN=1 tries all states that the
# harness tries by default. With --thorough no state of the segment is left out, and it takes hours: only the many
# instructions between two changes are still sampled, and that sample, too, changes from commit to commit.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh

# Without the journal, kills must leave torn states behind: a harness that finds none would prove nothing. A sample might
# miss those of an operation.
describe "killed at every instruction, without the journal: must find torn states"
step env -u SHMLIMIT_ONE_IN -u SHMLIMIT_PHASE SHMLIMIT_WITHOUT_JOURNAL=1 \
    cargo run --locked --release --package killed_at_every_instruction

if [ "${1:-}" = --thorough ]; then
    crash_harness "killed at every instruction" everything
else
    crash_harness "killed at every instruction" "${SHMLIMIT_ONE_IN:-20}"
fi
