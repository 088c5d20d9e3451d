#!/bin/sh
# The crash harness, which kills processes at every instruction, and the proof that it can fail. Of each operation's
# crash states it tries a sample, which changes from commit to commit; SHMLIMIT_ONE_IN=1 tries all states that the
# harness tries by default. With --thorough no state of the segment is left out, and it takes hours: only the many
# instructions between two changes are still sampled, and that sample, too, changes from commit to commit.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh

# harness WHAT_IT_SHOWS COMMAND...
harness() {
    describe "$1"
    shift
    step "$@" cargo run --locked --release --package killed_at_every_instruction
}

# Without the journal, kills must leave torn states behind: a harness that finds none would prove nothing. A sample might
# miss those of an operation.
harness "killed at every instruction, without the journal: must find torn states" \
    env -u SHMLIMIT_ONE_IN -u SHMLIMIT_PHASE SHMLIMIT_WITHOUT_JOURNAL=1

if [ "${1:-}" = --thorough ]; then
    phase=$(phase_of 16)
    harness "killed at every instruction, no state left out, phase $phase" \
        env SHMLIMIT_THOROUGH=1 SHMLIMIT_PHASE="$phase"
else
    one_in=${SHMLIMIT_ONE_IN:-20}
    phase=$(phase_of "$one_in")
    harness "killed at every instruction: 1 in $one_in, phase $phase" \
        env SHMLIMIT_ONE_IN="$one_in" SHMLIMIT_PHASE="$phase"
fi
