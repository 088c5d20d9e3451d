#!/bin/sh
# Runs the tests at dates other than today: limits count in windows, some of which follow the calendar, and no verdict
# may depend on when in them a test happens to run. Some of what depends on the wall clock is run at two dates, all of it
# with --thorough at twelve, and every test at dates that are given: tools/checks/dates.sh 2028-02-29T23:59:50Z. Each
# program starts at the date, so those at the end of a day see the next one begin.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh

if [ "$(uname -s)-$(ldd --version 2>&1 | head -n 1 | grep -c -i glibc)" != Linux-1 ]; then
    skip "tests at other dates" "C library that can be preloaded on"
    exit
fi
if ! has cc; then
    skip "tests at other dates" "C compiler"
    exit
fi

at_date=$PWD/tools/checks/wrappers/at-date
runner="CARGO_TARGET_$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')_RUNNER"

# tests_at DATE CARGO_ARGUMENTS...
tests_at() {
    date=$1
    shift
    describe "at $date: cargo test $*"
    step env "$runner=$at_date $date" cargo test --locked "$@"
}

# The ends of a month, a leap day and a year; the beginning and end of summer time in Europe and America; the beginnings
# of windows of a minute, an hour and a week; the clock of a board without a battery; the instants when seconds outgrow
# 31 and 32 bits, and nanoseconds 63; and when a cell of a sliding window counter is nearly over.
twelve="2026-11-22T17:40:00Z 2026-01-31T23:59:50Z 2028-02-29T23:59:50Z 2026-12-31T23:59:50Z
    2027-03-28T00:59:50Z 2027-10-31T00:59:50Z 2027-03-14T06:59:50Z
    2026-06-14T23:59:59Z 1970-01-01T01:00:00Z
    2038-01-19T03:14:00Z 2106-02-07T06:28:00Z 2262-04-11T23:47:00Z"
if [ "${1:-}" = "" ]; then
    for date in 2026-11-22T17:40:00Z 2028-02-29T23:59:55Z; do
        tests_at "$date" --workspace --test credit --test segments --test time --test program -- \
            batches:: cold_start:: rate_bound:: verbs::
    done
    exit
fi
if [ "$1" = --thorough ]; then
    for date in $twelve; do
        tests_at "$date" --workspace --test credit --test decisions --test keyed --test segments --test time
    done
    exit
fi
for date in "$@"; do
    tests_at "$date" --workspace
    if [ "${date%%-*}" = 2262 ]; then
        # CPython counts nanoseconds in 63 bits, and pytest fails when they overflow.
        skip "at $date: pytest" "clock of CPython that goes on beyond 2262-04-11 23:47:16"
    elif has_python_tests; then
        describe "at $date: pytest"
        step env SHMLIMIT_TEST_RUNNER="$at_date $date" python/check --only-tests
    else
        skip "at $date: pytest" "environment of python/check"
    fi
done
