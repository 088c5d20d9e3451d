//! What limits by key cost the store: its processor time for a key, by the number of keys in a call and of hosts that
//! use each key, compared with a limit that all requests share; and the memory that keys take.
//!
//! `cargo bench --package shmlimit-fleet --bench keyed`, on an idle machine that has redis-server or valkey-server.

#[path = "../tests/scene/mod.rs"]
mod scene;

use std::time::Duration;

use scene::{Server, server_program};
use shmlimit::declare::Kind;
use shmlimit::fleet::{LeaseRequest, LeasedKey, LeasedLimit, LeasedRule};
use shmlimit_fleet::{StoreAnswer, StoreClient, Terms};

/// Calls for each figure, which is the median of this many rounds.
const CALLS: u64 = 2_000;
const ROUNDS: usize = 9;
/// Keys of one partition that are asked for in turn.
const KEYS: u64 = 1_024;
const STORED: u128 = 100_000;

fn declared(rule: LeasedRule) -> LeasedLimit {
    LeasedLimit {
        kind: Kind::Calls,
        unit: "1".to_owned(),
        rule,
        lease: Duration::from_secs(10),
    }
}

/// Asks as hosts with steady use do: they report what they had, and want as much again.
struct Asking<'a> {
    client: &'a mut StoreClient,
    limit: &'a LeasedLimit,
    terms: Terms,
    sequence: u64,
}

impl Asking<'_> {
    fn request(&mut self, key: &str, of_key: Option<u128>, host: u64) -> (LeaseRequest, Terms) {
        self.sequence += 1;
        let sequence = self.sequence;
        let request = LeaseRequest {
            key: key.to_owned(),
            of_key: of_key.map(|hash| LeasedKey {
                hash,
                began: sequence,
            }),
            declared: self.limit.clone(),
            version: 0,
            host: 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(host + 1),
            sequence,
            spent: 4,
            refunded: 0,
            ungranted: 0,
            held: 0,
            wanted: 4,
            grant_number: 0,
        };
        (request, self.terms.clone())
    }

    fn send(&mut self, requests: &[(LeaseRequest, Terms)]) {
        for answer in self.client.ask(requests).expect("answers") {
            assert!(matches!(answer, Ok(StoreAnswer::Granted(_))), "{answer:?}");
        }
    }
}

/// The microseconds that the server takes for one call of a script.
fn time_of_a_call(connection: &mut redis::Connection, mut run: impl FnMut(u64)) -> f64 {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let () = redis::cmd("CONFIG")
                .arg("RESETSTAT")
                .query(connection)
                .expect("reset");
            (0..CALLS).for_each(&mut run);
            let text: String = redis::cmd("INFO")
                .arg("commandstats")
                .query(connection)
                .expect("figures");
            let (_, rest) = text.split_once("cmdstat_evalsha:").expect("calls");
            let (_, rest) = rest.split_once("usec_per_call=").expect("a time");
            rest.split(',')
                .next()
                .and_then(|time| time.parse().ok())
                .expect("a number")
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[ROUNDS / 2]
}

fn main() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let mut client = server.client();
    let mut connection = server.connection();
    let backlog = declared(LeasedRule::Backlog {
        capacity: 1_000,
        window: Duration::from_secs(1),
        burst: 1_000,
    });
    let window = declared(LeasedRule::Window {
        capacity: 1_000_000_000,
        window: Duration::from_secs(86_400),
    });
    println!("| processor time of the store, us | a call | a key |");
    println!("|---|---:|---:|");
    for (what, limit) in [("backlog", &backlog), ("window", &window)] {
        let mut asking = Asking {
            client: &mut client,
            limit,
            terms: Terms::new(limit, 0).expect("countable"),
            sequence: 1_795_903_200_000_000,
        };
        for hosts in [1, 3, 10] {
            let key = format!("bench/{what}/{hosts}");
            let mut shared = asking.sequence;
            let alone = time_of_a_call(&mut connection, |call| {
                let (mut request, terms) = asking.request(&key, None, call % hosts);
                shared += 1;
                request.sequence = shared;
                asking.send(&[(request, terms)]);
            });
            println!("| {what}, {hosts} hosts, all requests share it | {alone:.1} | {alone:.1} |");
            for keys in [1, 8, 64] {
                let key = format!("bench/{what}/{hosts}/{keys}");
                let time = time_of_a_call(&mut connection, |call| {
                    let requests: Vec<_> = (0..keys)
                        .map(|number| {
                            let number = (call * keys + number) % KEYS;
                            let hash = u128::from(number) << 6 | 5;
                            asking.request(&key, Some(hash), (call * keys / KEYS) % hosts)
                        })
                        .collect();
                    asking.send(&requests);
                });
                println!(
                    "| {what}, {hosts} hosts a key, {keys} keys in a call | {time:.1} | {:.1} |",
                    time / keys as f64
                );
            }
        }
    }

    // With a window, the store keeps all keys.
    let memory = |connection: &mut redis::Connection| -> u64 {
        let text: String = redis::cmd("INFO")
            .arg("memory")
            .query(connection)
            .expect("figures");
        let (_, rest) = text.split_once("used_memory:").expect("a number");
        rest.lines()
            .next()
            .and_then(|line| line.trim().parse().ok())
            .expect("a number")
    };
    println!("\n| {STORED} keys | MB | bytes a key |");
    println!("|---|---:|---:|");
    for hosts in [1, 3] {
        let () = redis::cmd("FLUSHALL").query(&mut connection).expect("emptied");
        let mut asking = Asking {
            client: &mut client,
            limit: &window,
            terms: Terms::new(&window, 0).expect("countable"),
            sequence: 1_795_903_200_000_000,
        };
        let before = memory(&mut connection);
        for host in 0..hosts {
            for first in (0..STORED).step_by(4_000) {
                let requests: Vec<_> = (first..first + 4_000)
                    .map(|number| {
                        let hash = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
                        asking.request("org/tenants", Some(hash), host)
                    })
                    .collect();
                asking.send(&requests);
            }
        }
        let used = memory(&mut connection) - before;
        println!(
            "| leased to {hosts} hosts each | {:.1} | {:.0} |",
            used as f64 / 1e6,
            used as f64 / STORED as f64
        );
    }
}
