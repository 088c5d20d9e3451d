#!/bin/sh
# Puts small mistakes into the rules, the engine and the journal, one at a time, and expects a test to fail for each.
# All of them would take days; a shard of them takes about an hour. Which one is tried follows from the commit, or from
# SHMLIMIT_PHASE. A mistake that no test finds makes it fail.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh

if ! has cargo-mutants; then
    skip "mutants of rules, engine and journal" "cargo-mutants (cargo install --locked cargo-mutants)"
    exit
fi

# The tests of rules are many and arithmetic, so optimising them saves more than it costs. They need no debug
# information.
export CARGO_PROFILE_TEST_OPT_LEVEL=1 CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_PROFILE_TEST_DEBUG=0 CARGO_PROFILE_DEV_DEBUG=0
output="${CARGO_TARGET_DIR:-target}/mutants"

# Mutants that are equivalent; docs/trust.md says why. Operands without a common bit give the same result with | and ^.
same_by_either='replace \| with \^ in (load_wide|Mark::wide|Journal<.*>::mark|Transaction<.*>::store|RowReferences::with_(head|tail|pins)|TicketPlace<.*>::set_definition|RuledShard<.*>::limits_of_networks)$'
changes_nothing='replace > with >= in Transaction<.*>::raise$|replace fence_before_change with \(\)$'

# mutants NAME FILES ONE_IN TARGETS [TEST_ARGUMENTS...]: TARGETS are what cargo builds for each mutant.
mutants() {
    name=$1 files=$2 one_in=$3 targets=$4
    shift 4
    mkdir -p "$output/$name"
    describe "mutants of $files: one in $one_in"
    # Assigned in turns, so that a shard has mutants of all files.
    # shellcheck disable=SC2046 # One argument for each word of targets.
    step cargo mutants --package shmlimit --file "$files" --sharding round-robin \
        --shard "$(phase_of "$one_in")/$one_in" \
        --output "$output/$name" --timeout 600 --no-times --cap-lints true \
        --exclude-re "$same_by_either" --exclude-re "$changes_nothing" \
        --cargo-arg=--locked $(printf -- '--cargo-arg=%s ' $targets) -- "$@"
}

mutants rules 'src/limit/**/*.rs' 20 --lib limit::
mutants journal src/shm/lock/journal/mod.rs 3 --lib shm::lock::journal::
engine_tests='changes credit decisions keyed processes queue segments telemetry tiers time'
# shellcheck disable=SC2086 # One argument for each name.
mutants engine 'src/engine/**/*.rs' 50 "--lib $(printf -- '--test %s ' $engine_tests)" \
    -- --skip limit:: --skip queue:: --skip api::declaration:: \
    --skip checkpoints:: --skip creation_race:: --skip fairness:: --skip oracle:: --skip probes:: --skip processes:: \
    --skip rate_bound:: --skip rollouts:: --skip waves::
