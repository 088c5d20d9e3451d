#!/bin/sh
# The pure parts under Miri, which finds undefined behaviour: rules, queue, tables, declarations, and the layout's codecs.
# Miri knows no file that is mapped and no robust mutex, so the rest is for the other tests.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh

if ! cargo +nightly miri --version >/dev/null 2>&1; then
    skip "the pure parts under Miri" "Miri for the nightly toolchain"
    exit
fi
