//! Compares the model of the store with a real server: random traces must get the same replies from both.
//!
//! The server runs the shipped script, except that the trace sets its clock, so that windows turn, leases expire and
//! the clock goes back without waiting.

use std::time::Duration;

use crate::requests::load_with_clock;
use crate::rules::{backlog, calendar, window};
use crate::scene::{Server, server_program};
use crate::seen::Seen;
use fastrand::Rng;
use redis::Connection;
use shmlimit::Window;
use shmlimit::declare::{Kind, Weekday};
use shmlimit::fleet::{LeaseRequest, LeasedLimit, LeasedRule};
use shmlimit_fleet::model::StoreModel;
use shmlimit_fleet::protocol::{LEASE_SCRIPT, add_arguments, read_answer, store_key};
use shmlimit_fleet::{Grant, StoreAnswer, Terms};

const STEPS: usize = 300;
const SEEDS: u64 = 12;
/// 2026-11-28T22:00:00Z, two days and two hours before a month ends.
const START: u64 = 1_795_903_200_000_000;

/// The hash of the script with the trace's clock.
struct Script {
    sha: String,
}

impl Script {
    fn load(connection: &mut Connection) -> Self {
        Self {
            sha: load_with_clock(connection, LEASE_SCRIPT),
        }
    }

    fn answer(
        &self,
        connection: &mut Connection,
        run: &str,
        utc: u64,
        terms: &Terms,
        request: &LeaseRequest,
    ) -> StoreAnswer {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.sha);
        add_arguments(&mut command, run, terms, request);
        command.arg(utc);
        let value = command.query(connection).expect("an answer");
        read_answer(&value).expect("an answer of the protocol")
    }
}

/// A well-behaved host: it spends no more than it holds, and only while its lease lasts.
struct Host {
    id: u64,
    sequence: u64,
    spent: u64,
    refunded: u64,
    ungranted: u64,
    held: u64,
    expiry: u64,
    /// The request that has not been answered yet.
    asked: Option<LeaseRequest>,
    demand: u64,
    grant_number: u64,
}

impl Host {
    fn spend(&mut self, now: u64, random: &mut Rng) -> u64 {
        if now >= self.expiry {
            self.held = 0;
        }
        let spent = random.u64(..self.held.min(self.demand) + 1);
        self.held -= spent;
        self.spent += spent;
        spent
    }

    fn ask(&mut self, key: &str, declared: &LeasedLimit, random: &mut Rng) -> LeaseRequest {
        if let Some(asked) = &self.asked {
            return asked.clone();
        }
        self.sequence += 1;
        let request = LeaseRequest {
            key: key.to_owned(),
            of_key: None,
            declared: declared.clone(),
            version: 0,
            host: self.id,
            sequence: self.sequence,
            spent: self.spent,
            refunded: self.refunded,
            ungranted: self.ungranted,
            // Now and then, the host returns a part.
            held: if random.u64(..4) == 0 {
                random.u64(..self.held + 1)
            } else {
                self.held
            },
            wanted: random.u64(..self.demand + 1),
            grant_number: self.grant_number,
        };
        self.held = request.held;
        self.asked = Some(request.clone());
        request
    }

    fn install(&mut self, sent: u64, grant: &Grant) {
        let asked = self.asked.take().expect("asked before");
        let since = self.spent - asked.spent;
        self.grant_number = grant.reply.grant_number;
        let since = since - (self.ungranted - asked.ungranted);
        self.held = (grant.kept + grant.reply.granted).saturating_sub(since);
        self.expiry = sent + u64::try_from(grant.reply.remaining.as_micros()).expect("short");
    }
}

fn rules() -> Vec<LeasedRule> {
    vec![
        backlog(1_000, 1, 3_000),
        backlog(10_007, 86_400, 50),
        window(5_000, 7),
        calendar(40_000, Window::Month, -60, Weekday::Monday),
        calendar(40_000, Window::Week, 330, Weekday::Sunday),
        calendar(9_000, Window::Day, 0, Weekday::Monday),
        LeasedRule::Concurrency { places: 40 },
    ]
}

/// The level and the outstanding units in the server.
fn accounts(connection: &mut Connection, key: &str) -> (u64, u64) {
    let account: Option<String> = redis::cmd("HGET")
        .arg(store_key(key))
        .arg("account")
        .query(connection)
        .expect("numbers");
    let account = account.unwrap_or_default();
    let number = |index| account.split(' ').nth(index).and_then(|word| word.parse().ok());
    (number(4).unwrap_or(0), number(6).unwrap_or(0))
}

/// Runs one trace. `is_rough` adds what an intact store never sees: other run ids, a clock that steps, other
/// declarations.
fn trace(
    connection: &mut Connection,
    script: &Script,
    rule: &LeasedRule,
    (seed, is_rough): (u64, bool),
    seen: &mut Seen,
) {
    let mut random = Rng::with_seed(seed);
    let mut version = 0;
    let mut declared = LeasedLimit {
        kind: Kind::Rate,
        unit: "1".to_owned(),
        rule: rule.clone(),
        lease: Duration::from_millis(500 + random.u64(..3_000)),
    };
    let key = format!("test/{seed}/{rule:?}/{is_rough}");
    let mut run = "1".to_owned();
    let mut now = START + random.u64(..200_000_000_000);
    let begun = now;
    let mut model = StoreModel::new();
    let mut admitted = 0;
    let mut hosts: Vec<Host> = (0..2 + random.u64(..6))
        .map(|id| {
            // Some hosts have a history that the store does not know, near the end of the numbers, so that these wrap
            // around. A sequence number above 1 tells the store that they existed before. A host that reports such a
            // history in its first request looks as if its numbers had fallen, and is granted nothing.
            let history = id.min(random.u64(..3)) * ((1 << 52) - 100);
            let is_known = history > 0 && !(is_rough && random.bool());
            Host {
                id: id + 1,
                sequence: u64::from(is_known),
                spent: history,
                refunded: 0,
                ungranted: 0,
                held: 0,
                expiry: 0,
                asked: None,
                demand: 1 << random.u64(..12),
                grant_number: 0,
            }
        })
        .collect();
    for step in 0..STEPS {
        let context = format!("seed {seed}, {rule:?}, step {step}");
        now += match random.u64(..20) {
            0 => random.u64(..40_000_000),
            1 => random.u64(..8_000_000),
            _ => random.u64(..200_000),
        };
        if is_rough {
            for host in &mut hosts {
                if random.u64(..20) == 0 {
                    host.refunded += random.u64(..host.demand);
                }
            }
            match random.u64(..60) {
                0 => now -= random.u64(..5_000_000),
                1 => run.push('1'),
                2 => version += 1,
                3 => {
                    declared.lease += Duration::from_millis(1);
                    version += random.u64(..2);
                }
                _ => {}
            }
        }
        // If the first host with an unknown history came after others had leases, the store would grant nothing for a
        // while and count more as used than there is, so such a host goes first.
        let number = match hosts.iter().position(|host| host.sequence > 0) {
            Some(known) if step == 0 => known,
            _ => random.usize(..hosts.len()),
        };
        let host = &mut hosts[number];
        admitted += host.spend(now, &mut random);
        if random.u64(..20) == 0 {
            // An outage policy admits what no store has granted.
            let units = random.u64(..8 * host.demand);
            host.spent += units;
            host.ungranted += units;
        }
        if step > 0 && random.u64(..200) == 0 {
            // The host dies, and another starts in its place.
            *host = Host {
                id: host.id + 1_000,
                sequence: 0,
                spent: 0,
                refunded: 0,
                ungranted: 0,
                held: 0,
                expiry: 0,
                asked: None,
                demand: host.demand,
                grant_number: 0,
            };
        }
        let is_repeat = host.asked.is_some();
        let mut request = host.ask(&key, &declared, &mut random);
        if is_rough && random.u64(..50) == 0 {
            request.sequence = request.sequence.saturating_sub(1 + random.u64(..2));
        } else if is_rough && random.u64(..50) == 0 {
            request.spent = request.spent.wrapping_sub(1_000_000);
        }
        if step > 0 && random.u64(..6) == 0 {
            continue; // lost on its way, and repeated later
        }
        let terms = Terms::new(&request.declared, version).expect("countable");
        let real = script.answer(connection, &run, now, &terms, &request);
        let modelled = model.answer(&run, now, &terms, &request);
        assert_eq!(real, modelled, "{context}: {request:?}");
        seen.note(&real, request.held, is_repeat);
        let (level, outstanding) = accounts(connection, &key);
        let (used, burst) = model.used_and_burst();
        if !is_rough {
            let period: u64 = terms
                .to_string()
                .split(' ')
                .nth(3)
                .and_then(|word| word.parse().ok())
                .expect("a number");
            assert_eq!(level.div_ceil(period) + outstanding, used, "{context}");
            assert!(used <= burst, "{context}: {used} of {burst}");
        }
        if let StoreAnswer::Granted(grant) = &real
            && random.u64(..6) != 0
            && host.asked.as_ref() == Some(&request)
        {
            host.install(now, grant);
        }
        if let StoreAnswer::Declared { .. } = &real {
            // The host behaves as if it had been deployed anew.
            host.asked = None;
        }
    }
    if let (
        &LeasedRule::Backlog {
            capacity,
            window,
            burst,
        },
        false,
    ) = (rule, is_rough)
    {
        let replenished = u128::from(now - begun) * 1_000 * u128::from(capacity) / window.as_nanos();
        assert!(
            u128::from(admitted) <= u128::from(burst) + replenished,
            "seed {seed}: {admitted} admitted"
        );
        assert!(admitted > 0, "seed {seed} shows nothing");
    }
}

fn traces(seeds: std::ops::Range<u64>, is_rough: bool) -> Option<Seen> {
    let program = server_program()?;
    let server = Server::start(&program);
    let mut connection = server.connection();
    let script = Script::load(&mut connection);
    let mut seen = Seen::default();
    for seed in seeds {
        for rule in rules() {
            trace(&mut connection, &script, &rule, (seed, is_rough), &mut seen);
        }
    }
    println!("{seen:?}");
    Some(seen)
}

#[test]
fn answers_what_the_script_answers_on_a_real_server() {
    let Some(seen) = traces(0..SEEDS, false) else {
        return;
    };
    for (what, count) in [
        ("grants", seen.granted),
        ("refusals", seen.refused),
        ("repeats", seen.repeated),
        ("lapses", seen.lapsed),
    ] {
        assert!(count > 100, "{count} {what}: {seen:?}");
    }
}

#[test]
fn answers_the_same_when_servers_clocks_and_declarations_change() {
    let Some(seen) = traces(1_000..1_000 + SEEDS, true) else {
        return;
    };
    for (what, count) in [
        ("quarantines", seen.quarantine),
        ("declarations", seen.declared),
        ("stale requests", seen.stale),
        ("falls", seen.fell),
    ] {
        assert!(count > 10, "{count} {what}: {seen:?}");
    }
}

/// The burst is half of what is replenished in a lease, so no host asks for its share of that all at once.
#[test]
fn hosts_that_want_without_end_are_granted_the_same_however_often_they_ask() {
    let declared = LeasedLimit {
        kind: Kind::Rate,
        unit: "1".to_owned(),
        rule: backlog(20_000, 1, 10_000),
        lease: Duration::from_secs(1),
    };
    let terms = Terms::new(&declared, 0).expect("countable");
    let mut store = StoreModel::new();
    let mut granted = [0_u64; 2];
    let mut sequences = [0_u64; 2];
    for turn in 0..160_u64 {
        let millis = 125 * turn;
        // The second host asks half as often, and always just after the first.
        for host in 0..=usize::from(turn.is_multiple_of(2)) {
            sequences[host] += 1;
            let request = LeaseRequest {
                key: "test/fair".to_owned(),
                of_key: None,
                declared: declared.clone(),
                version: 0,
                host: host as u64 + 1,
                sequence: sequences[host],
                // Grants are spent at once.
                spent: granted[host],
                refunded: 0,
                ungranted: 0,
                held: 0,
                wanted: 10_000,
                grant_number: 0,
            };
            match store.answer("1", START + millis * 1_000, &terms, &request) {
                StoreAnswer::Granted(grant) => granted[host] += grant.reply.granted,
                other => panic!("{other:?}"),
            }
        }
    }
    let sum = granted.iter().sum::<u64>();
    let jain = sum.pow(2) as f64 / (2 * granted.iter().map(|units| units.pow(2)).sum::<u64>()) as f64;
    assert!(jain >= 0.95, "{granted:?}: {jain}");
    assert!(sum >= 300_000, "{granted:?} of 400,000");
}
