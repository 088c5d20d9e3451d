#!/bin/sh
# A fleet of 1,000 hosts, simulated on clocks that are not real: engine, client and the store's rules are. Hosts are cut off
# and suspended, and the store fails over; what was admitted is held against the limit. With --thorough 10,000 hosts, for
# longer, and with more seeds, of which each reproduces its run.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh

case "${1:-}" in
--thorough) hosts=10000 seconds=60 seeds=10 ;;
*) hosts=1000 seconds=30 seeds=3 ;;
esac
describe "a fleet of $hosts hosts, $seeds times $seconds s"
step cargo run --locked --release --package shmlimit-fleet --example fleet_simulator -- \
    --hosts "$hosts" --seconds "$seconds" --seeds "$seeds"
if ! has redis-server && ! has valkey-server; then
    skip "hosts, processes and a real store" "redis-server"
fi
