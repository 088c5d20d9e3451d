#!/bin/sh
# Puts small mistakes into the rules, the engine and the journal, one at a time, and expects a test to fail for each. All
# of them take days; one in so many takes an hour or so. SHARD says which: SHARD=7 tools/checks/mutants.sh. A mistake that no
# test finds makes it fail.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh

if ! has cargo-mutants; then
    skip "mutants of rules, engine and journal" "cargo-mutants (cargo install --locked cargo-mutants)"
    exit
fi

# The tests of rules are many and arithmetic: optimised, they cost less than building them does.
export CARGO_PROFILE_TEST_OPT_LEVEL=1 CARGO_PROFILE_DEV_OPT_LEVEL=1
shard=${SHARD:-0}
output="${CARGO_TARGET_DIR:-target}/mutants"

# mutants NAME FILES ONE_IN CARGO_TEST_ARGUMENTS...
mutants() {
    name=$1 files=$2 one_in=$3
    shift 3
    mkdir -p "$output/$name"
    describe "mutants of $files: one in $one_in"
    step cargo mutants --package shmlimit --file "$files" --shard "$((shard % one_in))/$one_in" \
        --output "$output/$name" --timeout 600 --no-times --cap-lints true -- --locked "$@"
}

mutants rules 'src/limit/**/*.rs' 20 --lib limit::
mutants journal src/shm/journal.rs 3 --lib shm::
mutants engine 'src/engine/*.rs' 50 --test acquire --test check --test credit --test fork --test futures --test keyed \
    --test keyed_oracle --test keyed_rows --test live_changes --test reserve --test stopped_holder --test waiting
