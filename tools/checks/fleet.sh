#!/bin/sh
# A fleet of 300 hosts, simulated on clocks that are not real: engine, client and the store's rules are. Hosts are cut off
# and suspended, and the store fails over; what was admitted is held against the limit. With --thorough 10,000 hosts, for
# longer, and with more seeds, of which each reproduces its run. Only that is worth an optimised build of the client.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh

case "${1:-}" in
--thorough) profile=release hosts=10000 seconds=60 seeds=10 ;;
*) profile=dev hosts=300 seconds=30 seeds=3 ;;
esac
describe "a fleet of $hosts hosts, $seeds times $seconds s"
step cargo run --locked --profile "$profile" --package shmlimit-fleet --example fleet_simulator -- \
    --hosts "$hosts" --seconds "$seconds" --seeds "$seeds"
if ! has redis-server && ! has valkey-server; then
    skip "hosts, processes and a real store" "redis-server"
elif [ "${1:-}" = --thorough ]; then
    describe "eight hosts of 25 processes each, which are killed, and a real store"
    step env SHMLIMIT_FLEET_HOSTS=8 SHMLIMIT_FLEET_PROCESSES=25 cargo test --locked --package shmlimit-fleet --test hosts \
        -- --exact --nocapture admits_no_more_than_declared_while_processes_and_servers_die
fi
