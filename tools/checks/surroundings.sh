#!/bin/sh
# The tests as they may be started: with nohup or in the background of a script, where SIGINT, SIGQUIT and SIGHUP are
# ignored; with stdin closed; and beside builds that take the processors. With --thorough all of them, otherwise those
# that send signals, fork and execute.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh
thorough=${1:-}

# Runs the tests by the shell's words $1, which start what follows them.
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

# shellcheck disable=SC2016 # The started shell puts the words in.
tests_started_by 'trap "" INT QUIT HUP; exec "$@"'
# shellcheck disable=SC2016
tests_started_by 'exec "$@" <&-'

[ "$thorough" = --thorough ] || exit 0

# Each build ends by itself once this file is gone, which it is as soon as the tests have ended, however they did.
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
