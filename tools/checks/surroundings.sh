#!/bin/sh
# Runs the tests that send signals, fork and execute in other surroundings: with nohup or in the background of a script,
# where SIGINT, SIGQUIT and SIGHUP are ignored; and with stdin closed. With --thorough those in Python too, and beside
# builds that occupy the processors also the tests of queues and of segments that many share.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh
thorough=${1:-}

# Runs the tests with the shell words $1, which start the command that follows them. Other arguments go to cargo test.
tests_started_by() {
    words=$1
    shift
    step sh -c "$words" sh cargo test --locked --workspace "$@"
    [ "$thorough" = --thorough ] || return 0
    if has_python_tests; then
        step sh -c "$words" sh python/check --only-tests -k "signal or fork or kill or stdin"
    else
        skip "pytest, started by $words" "environment of python/check"
    fi
}

set -- --test processes --test program -- exec:: fork::
# shellcheck disable=SC2016 # The started shell expands the words.
tests_started_by 'trap "" INT QUIT HUP; exec "$@"' "$@"
# shellcheck disable=SC2016
tests_started_by 'exec "$@" <&-' "$@"

[ "$thorough" = --thorough ] || exit 0

# Each build ends by itself once this file is gone, which happens as soon as the tests have ended, however they end.
builds=$STEPS.builds
mkdir "$builds"
touch "$builds/go-on"
for build in 1 2 3 4; do
    while [ -e "$builds/go-on" ]; do
        rm -rf "$builds/$build"
        cargo build --quiet --locked --release --package shmlimit --target-dir "$builds/$build" || :
    done >"$builds/log-$build" 2>&1 &
done
describe "beside four other builds"
# shellcheck disable=SC2016
tests_started_by 'exec "$@"' --test processes --test program --test queue --test keyed --test segments
rm "$builds/go-on"
wait
