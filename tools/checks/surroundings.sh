#!/bin/sh
# Runs the tests in other surroundings: with nohup or in the background of a script, where SIGINT, SIGQUIT and SIGHUP
# are ignored; with stdin closed; and next to builds that occupy the processors. With --thorough all tests, otherwise
# those that send signals, fork and execute.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh
thorough=${1:-}

# Runs the tests with the shell words $1, which start the command that follows them.
tests_started_by() {
    if [ "$thorough" = --thorough ] && has_python_tests; then
        beside sh -c "$1" sh python/check --only-tests
        step sh -c "$1" sh cargo test --locked --workspace
        gather
    elif [ "$thorough" = --thorough ]; then
        skip "pytest, started by $1" "environment of python/check"
        step sh -c "$1" sh cargo test --locked --workspace
    else
        step sh -c "$1" sh cargo test --locked --workspace --test processes --test program -- exec:: fork::
    fi
}

# shellcheck disable=SC2016 # The started shell expands the words.
tests_started_by 'trap "" INT QUIT HUP; exec "$@"'
# shellcheck disable=SC2016
tests_started_by 'exec "$@" <&-'

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
tests_started_by 'exec "$@"'
rm "$builds/go-on"
wait
