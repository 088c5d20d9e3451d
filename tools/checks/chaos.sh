#!/bin/sh
# Processes that do everything at once, and are killed, stopped and continued at random: three minutes with each kind of
# lock, or SHMLIMIT_CHAOS_SECONDS. Prints its random seed, which SHMLIMIT_CHAOS_SEED repeats.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh
SHMLIMIT_CHAOS_SECONDS="${SHMLIMIT_CHAOS_SECONDS:-180}"
export SHMLIMIT_CHAOS_SECONDS

for lock in slot robust; do
    describe "chaos for $SHMLIMIT_CHAOS_SECONDS s, with $lock locks"
    step env SHMLIMIT_TEST_LOCK=$lock cargo test --locked --workspace --test chaos -- --nocapture
done
