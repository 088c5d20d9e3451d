#!/bin/sh
# The licences of everything that is built, where it comes from, and what may not be among it: deny.toml says which. What
# is known against the versions that are used, where the database of advisories can be fetched.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh

if ! has cargo-deny; then
    skip "licences, sources and bans of dependencies" "cargo-deny (cargo install --locked cargo-deny)"
    exit
fi
deny="cargo deny --locked --workspace"
describe "licences, sources and bans of dependencies"
# shellcheck disable=SC2086 # Several arguments.
step $deny --log-level error check --hide-inclusion-graph licenses sources bans
if cargo deny --locked fetch db >/dev/null 2>&1; then
    describe "advisories about dependencies"
    # shellcheck disable=SC2086
    step $deny check advisories
else
    skip "advisories about dependencies" "database of advisories that can be fetched"
fi
