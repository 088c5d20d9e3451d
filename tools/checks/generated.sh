#!/bin/sh
# Generated declarations under generated operations, with one process on a virtual clock and with processes that are killed
# and stopped, and what must hold in any state: three minutes of each, or SHMLIMIT_GENERATED_SECONDS; with --thorough half
# an hour of each. Prints a seed for what fails, which SHMLIMIT_SEED repeats.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh
usual=180
if [ "${1:-}" = --thorough ]; then usual=1800; fi
SHMLIMIT_GENERATED_SECONDS="${SHMLIMIT_GENERATED_SECONDS:-$usual}"
# A seed alone is tried alone.
if [ -z "${SHMLIMIT_SEED:-}" ]; then export SHMLIMIT_GENERATED_SECONDS; fi

for test in no_verb_breaks_an_invariant_of_any_declaration \
    among::processes_that_are_killed_leave_every_invariant_to_the_others; do
    describe "generated for $SHMLIMIT_GENERATED_SECONDS s: $test"
    step cargo test --locked --package shmlimit --test generated -- --nocapture --exact "$test"
done
