#!/bin/sh
# A fleet of 300 hosts on simulated clocks, with the real engine, client and store rules. Hosts are cut off and
# suspended, and the store fails over; the admissions are compared with the limit. With --thorough, 10,000 hosts, for
# longer and with more seeds, each of which reproduces its run. Only that is worth an optimised build of the client.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh

if [ "${1:-}" = --thorough ]; then
    describe "a fleet of 10000 hosts, 10 times 60 s"
    step cargo run --locked --release --package shmlimit-fleet --example fleet_simulator -- \
        --hosts 10000 --seconds 60 --seeds 10
else
    # With --workspace, as for the tests, so that nothing is built again.
    describe "the simulator"
    step cargo build --locked --workspace --examples
    describe "a fleet of 300 hosts, 3 times 30 s"
    step "${CARGO_TARGET_DIR:-target}/debug/examples/fleet_simulator" --hosts 300 --seconds 30 --seeds 3
    describe "100 quiet hosts: a rate, and places that are held for long"
    step "${CARGO_TARGET_DIR:-target}/debug/examples/fleet_simulator" --hosts 100 --seconds 120 --quiet 5
    step "${CARGO_TARGET_DIR:-target}/debug/examples/fleet_simulator" --hosts 100 --seconds 300 --quiet 20 --hold 60
    describe "2000 keys of 10 hosts, 2 times 20 s"
    step "${CARGO_TARGET_DIR:-target}/debug/examples/fleet_simulator" --keys 2000 --hosts 10 --seconds 20 --requests 300 \
        --seeds 2
fi
if ! has redis-server && ! has valkey-server; then
    skip "hosts, processes and a real store" "redis-server"
elif [ "${1:-}" = --thorough ]; then
    describe "eight hosts of 25 processes each, which are killed, and a real store"
    step env SHMLIMIT_FLEET_HOSTS=8 SHMLIMIT_FLEET_PROCESSES=25 cargo test --locked --package shmlimit-fleet --test hosts \
        -- --exact --nocapture admits_no_more_than_declared_while_processes_and_servers_die
fi
