#!/bin/sh
# Checks what must hold in any state, with generated declarations and operations: in one process on a virtual clock, and
# in processes that are killed and stopped. Three minutes of each, or SHMLIMIT_GENERATED_SECONDS. Prints a seed for each
# failure, which SHMLIMIT_SEED repeats.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh
SHMLIMIT_GENERATED_SECONDS="${SHMLIMIT_GENERATED_SECONDS:-180}"
# A given seed is the only one tried.
if [ -z "${SHMLIMIT_SEED:-}" ]; then export SHMLIMIT_GENERATED_SECONDS; fi

for test in no_verb_breaks_an_invariant_of_any_declaration \
    among::processes_that_are_killed_leave_every_invariant_to_the_others; do
    describe "generated for $SHMLIMIT_GENERATED_SECONDS s: $test"
    step cargo test --locked --workspace --test generated -- --nocapture --exact "$test"
done
