#!/bin/sh
# Runs the pure parts under Miri, which finds undefined behaviour: rules, queue, tables, declarations, and the layout's
# records and offsets. Miri supports neither robust mutexes nor mapped files, so the rest is left to the other tests.
# Random tests try few cases here. With --thorough all of this, otherwise tables and units.
#
# Then the locks, and everything that works without the lock, with several threads: Miri lets a load see any store that
# the memory model allows, not only those that an x86_64 processor would show. Each seed is another interleaving:
# SHMLIMIT_MIRI_SEEDS says how many are tried.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh

if ! cargo +nightly miri --version >/dev/null 2>&1; then
    skip "the pure parts under Miri" "Miri for the nightly toolchain"
    exit
fi

if [ "${1:-}" = --thorough ]; then
    seeds=${SHMLIMIT_MIRI_SEEDS:-64}
    set -- limit:: queue:: table:: api::declaration:: units:: shm::layout::
else
    seeds=${SHMLIMIT_MIRI_SEEDS:-4}
    set -- table:: units::
fi
# Isolation is off because tests read files. The models of the queue's protocol and of the exchange with a store, the
# simulations of adaptive limits, and the search for the most that a window admits do too much to be interpreted, and
# none of them has unsafe code underneath.
MIRIFLAGS="${MIRIFLAGS:-} -Zmiri-disable-isolation"
PROPTEST_CASES=2
export MIRIFLAGS PROPTEST_CASES
step cargo +nightly miri test --locked --lib -- "$@" --skip queue::tests::model --skip limit::tests::adaptive_tests \
    --skip limit::tests::lease::lease_model --skip limit::tests::window::window_bound_tests

describe "orders of memory under Miri"
step env MIRIFLAGS="$MIRIFLAGS -Zmiri-many-seeds=0..$seeds -Zmiri-preemption-rate=0.15" cargo +nightly miri test --locked --lib -- \
    a_reader_beside_a_writer what_threads_spend threads_exclude_each_other
