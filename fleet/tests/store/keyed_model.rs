//! Compares the model of limits by key with a real server: random traces must get the same replies from both.
//!
//! The server runs the shipped script on the clock of the trace. What is gone according to the model is deleted.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use fastrand::Rng;
use redis::Connection;
use shmlimit::Window;
use shmlimit::declare::{Kind, Weekday};
use shmlimit::fleet::{LeaseRequest, LeasedKey, LeasedLimit, LeasedRule};
use shmlimit_fleet::model::KeyedStoreModel;
use shmlimit_fleet::protocol::{
    KEYED_SCRIPT, add_keyed_arguments, name_of_key, partition_key, partition_of, read_keyed_answers,
};
use shmlimit_fleet::{Grant, StoreAnswer, Terms};

use crate::requests::{keyed, load_with_clock, request};
use crate::rules::{backlog, calendar, window};
use crate::scene::{Server, server_program};
use crate::seen::Seen;

const STEPS: usize = 400;
const SEEDS: u64 = 12;
/// 2026-11-28T22:00:00Z, two days and two hours before a month ends.
const START: u64 = 1_795_903_200_000_000;
/// How many units of a key a host admits before it asks.
const UNLEASED: u64 = 1;
/// Two keys of one partition, and one of another.
const KEYS: [u128; 3] = [
    0x0123_4567_89ab_cdef_0123_4567_89ab_cd05,
    0xfedc_ba98_7654_3210_fedc_ba98_7654_3205,
    0xffff_ffff_ffff_ffff_ffff_ffff_ffff_ffff,
];

/// What a host knows about a key. It spends no more than it holds, and only while its lease lasts. If it holds nothing,
/// it admits one unit before it asks.
#[derive(Clone, Debug, Default)]
struct Row {
    sequence: u64,
    began: u64,
    spent: u64,
    refunded: u64,
    ungranted: u64,
    /// How much of what is spent was admitted before asking.
    unleased: u64,
    held: u64,
    expiry: u64,
    /// Until then, no unit is admitted without a lease.
    free_at: u64,
    /// For places: the number of the latest grant.
    grant_number: u64,
    asked: Option<LeaseRequest>,
}

#[derive(Debug)]
struct Host {
    id: u64,
    demand: u64,
    rows: [Row; KEYS.len()],
}

impl Host {
    fn new(id: u64, demand: u64) -> Self {
        Self {
            id,
            demand,
            rows: Default::default(),
        }
    }
}

impl Row {
    fn spend(&mut self, demand: u64, now: u64, random: &mut Rng) -> u64 {
        if now >= self.expiry {
            self.held = 0;
        }
        let leased = random.u64(..self.held.min(demand) + 1);
        self.held -= leased;
        let is_cold = self.held == 0 && leased == 0 && now >= self.free_at && self.unleased < UNLEASED;
        let unleased = u64::from(is_cold && random.bool());
        self.unleased += unleased;
        self.spent += leased + unleased;
        leased + unleased
    }

    fn ask(
        &mut self,
        (host, demand): (u64, u64),
        declared: &LeasedLimit,
        key: u128,
        now: u64,
        random: &mut Rng,
    ) {
        // An unanswered request is repeated, or made anew with what was spent since.
        if self.asked.is_some() && random.u64(..4) > 0 {
            return;
        }
        self.sequence = (self.sequence + 1).max(now);
        if self.began == 0 {
            self.began = self.sequence;
        }
        if self.asked.is_none() && random.u64(..4) == 0 {
            // Now and then, the host returns a part.
            self.held = random.u64(..self.held + 1);
        }
        self.asked = Some(LeaseRequest {
            key: String::new(),
            of_key: Some(LeasedKey {
                hash: key,
                began: self.began,
            }),
            declared: declared.clone(),
            version: 0,
            host,
            sequence: self.sequence,
            spent: self.spent,
            refunded: self.refunded,
            ungranted: self.ungranted,
            held: self.held,
            wanted: random.u64(..demand + 1),
            grant_number: self.grant_number,
        });
    }

    fn install(&mut self, sent: u64, grant: &Grant) {
        let asked = self.asked.take().expect("asked before");
        self.spent -= asked.spent;
        self.refunded -= asked.refunded;
        self.ungranted -= asked.ungranted;
        // What was spent of the lease after the request.
        let of_lease = (asked.held - self.held.min(asked.held)).min(self.spent);
        self.began = 0;
        self.unleased = self.unleased.min(self.spent - of_lease);
        self.held = (grant.kept + grant.reply.granted).saturating_sub(of_lease);
        self.expiry = sent + micros(grant.reply.remaining);
        self.grant_number = self.grant_number.max(grant.reply.grant_number);
        self.free_at = sent + micros(grant.reply.free_in);
    }
}

fn micros(of: Duration) -> u64 {
    u64::try_from(of.as_micros()).expect("short")
}

fn rules() -> Vec<LeasedRule> {
    vec![
        backlog(1_000, 1, 3_000),
        backlog(10_007, 86_400, 50),
        backlog(10, 60, 5),
        backlog(1, 3, 1),
        window(500, 7),
        calendar(4_000, Window::Month, -60, Weekday::Monday),
        calendar(4_000, Window::Week, 330, Weekday::Sunday),
        calendar(900, Window::Day, 0, Weekday::Monday),
        LeasedRule::Concurrency { places: 1 },
        LeasedRule::Concurrency { places: 7 },
        LeasedRule::Concurrency { places: 300 },
    ]
}

fn is_held(rule: &LeasedRule) -> bool {
    matches!(rule, LeasedRule::Concurrency { .. })
}

/// A server with the script, and its model.
struct Store<'a> {
    connection: &'a mut Connection,
    sha: &'a str,
    model: KeyedStoreModel,
    key: String,
    run: String,
}

impl Store<'_> {
    fn name(&self, key: u128) -> String {
        name_of_key(&self.key, key)
    }

    fn delete(&mut self, name: String) -> bool {
        let mut command = redis::cmd("DEL");
        let deleted: u64 = command.arg(name).query(self.connection).expect("an answer");
        deleted > 0
    }

    /// Deletes what the server would have dropped by now. Returns whether there was anything.
    fn drop_what_is_gone(&mut self, now: u64) -> bool {
        let mut is_gone = false;
        self.model.drop_gone(now);
        for hash in KEYS {
            if self.model.kept_for(LeasedKey { hash, began: 0 }, now).is_none() {
                is_gone |= self.delete(self.name(hash));
            }
        }
        is_gone
    }

    /// Loses everything.
    fn empty(&mut self) {
        for hash in KEYS {
            self.delete(self.name(hash));
            self.delete(partition_key(&self.key, partition_of(hash)));
        }
        self.model = KeyedStoreModel::new();
    }

    fn answer(
        &mut self,
        now: u64,
        terms: &Terms,
        requests: &[(LeasedKey, &LeaseRequest)],
    ) -> Vec<StoreAnswer> {
        let mut command = redis::cmd("EVALSHA");
        command.arg(self.sha);
        add_keyed_arguments(&mut command, &self.run, (&self.key, terms), requests);
        let value = command.arg(now).query(self.connection).expect("an answer");
        read_keyed_answers(&value, requests.len()).expect("answers of the protocol")
    }
}

/// What was admitted of each key.
#[derive(Default)]
struct Admitted {
    all: [u64; KEYS.len()],
    /// The numbers of grants of places, with the hosts that got them.
    grant_numbers: [BTreeMap<u64, u64>; KEYS.len()],
    in_windows: HashMap<(usize, u64), u64>,
    /// For a backlog: what was admitted and has not drained yet, and the most that this has ever been, in units
    /// multiplied by the nanoseconds of the window.
    level: [u128; KEYS.len()],
    most: [u128; KEYS.len()],
}

impl Admitted {
    fn pass(&mut self, rule: &LeasedRule, micros: u64) {
        if let LeasedRule::Backlog { capacity, .. } = rule {
            let drained = u128::from(micros) * 1_000 * u128::from(*capacity);
            for level in &mut self.level {
                *level = level.saturating_sub(drained);
            }
        }
    }

    fn add(&mut self, rule: &LeasedRule, key: usize, units: u64, now: u64) {
        self.all[key] += units;
        match rule {
            LeasedRule::Backlog { window, .. } => {
                self.level[key] += u128::from(units) * window.as_nanos();
                self.most[key] = self.most[key].max(self.level[key]);
            }
            LeasedRule::Window { window, .. } => {
                let number = now / micros(*window);
                *self.in_windows.entry((key, number)).or_default() += units;
            }
            _ => {}
        }
    }

    /// Notes that the store granted places. The same number is given again if its answer is lost.
    fn number(&mut self, rule: &LeasedRule, key: usize, answer: &StoreAnswer, host: u64) {
        if let StoreAnswer::Granted(grant) = answer
            && is_held(rule)
            && grant.reply.granted > 0
        {
            let (number, numbers) = (grant.reply.grant_number, &mut self.grant_numbers[key]);
            let latest = numbers.last_key_value().map_or(0, |(latest, _)| *latest);
            match numbers.get(&number) {
                Some(had) => assert_eq!(*had, host, "{grant:?}"),
                None => assert!(number > latest, "{number} after {latest}: {grant:?}"),
            }
            numbers.insert(number, host);
        }
    }

    /// Notes that the host has put into force what it was granted.
    fn lease_places(&mut self, rule: &LeasedRule, key: usize, granted: u64, (hosts, now): (&[Host], u64)) {
        let LeasedRule::Concurrency { places } = *rule else {
            return;
        };
        self.all[key] += granted;
        let rows = hosts.iter().map(|host| &host.rows[key]);
        let leased: u64 = rows.filter(|row| now < row.expiry).map(|row| row.held).sum();
        assert!(leased <= places, "{leased} of {places} are leased: {hosts:?}");
    }

    /// Checks that no stretch of time had more than there is, plus a unit for each host that ever existed.
    fn is_within(&self, rule: &LeasedRule, hosts: u64, context: &str) {
        for units in self.all {
            assert!(units > 0, "{context} shows nothing");
        }
        match *rule {
            LeasedRule::Backlog { window, burst, .. } => {
                let bound = u128::from(burst + hosts * UNLEASED) * window.as_nanos();
                for most in self.most {
                    assert!(most <= bound, "{context}: {most} of {bound}");
                }
            }
            LeasedRule::Window { capacity, .. } => {
                let bound = capacity + hosts * UNLEASED;
                for (of, units) in &self.in_windows {
                    assert!(*units <= bound, "{context}: {units} of {bound} in {of:?}");
                }
            }
            _ => {}
        }
    }
}

/// Runs one trace. `is_rough` adds what an intact store never sees: other run ids, a clock that steps, other
/// declarations, lost data.
fn trace(store: &mut Store<'_>, rule: &LeasedRule, (seed, is_rough): (u64, bool), seen: &mut Seen) {
    let mut random = Rng::with_seed(seed);
    let mut version = 0;
    let mut declared = LeasedLimit {
        kind: Kind::Rate,
        unit: "1".to_owned(),
        rule: rule.clone(),
        lease: Duration::from_millis(500 + random.u64(..3_000)),
    };
    let mut now = START + random.u64(..200_000_000_000);
    let mut admitted = Admitted::default();
    let mut hosts: Vec<Host> = (0..2 + random.u64(..5))
        .map(|id| Host::new(id + 1, 1 << random.u64(..10)))
        .collect();
    let mut ever = hosts.len() as u64;
    for step in 0..STEPS {
        let passed = match random.u64(..20) {
            0 => random.u64(..40_000_000),
            1 => random.u64(..8_000_000),
            _ => random.u64(..200_000),
        };
        now += passed;
        admitted.pass(rule, passed);
        if is_rough {
            match random.u64(..80) {
                0 => now -= random.u64(..5_000_000),
                1 => store.run.push('1'),
                2 => version += 1,
                3 => {
                    declared.lease += Duration::from_millis(1);
                    version += random.u64(..2);
                }
                4 => {
                    declared.rule = rules().swap_remove(random.usize(..rules().len()));
                    version += random.u64(..2);
                }
                5 => store.empty(),
                _ => {}
            }
        }
        if random.u64(..100) == 0 {
            // The host dies, and another starts in its place.
            let host = &mut hosts[random.usize(..ever.min(2) as usize)];
            *host = Host::new(host.id + 1_000, host.demand);
            ever += 1;
        }
        let partition = partition_of(KEYS[random.usize(..KEYS.len())]);
        let mut asking = Vec::new();
        for _ in 0..1 + random.usize(..4) {
            let (number, key) = (random.usize(..hosts.len()), random.usize(..KEYS.len()));
            if partition_of(KEYS[key]) != partition || asking.contains(&(number, key)) {
                continue;
            }
            let host = &mut hosts[number];
            let row = &mut host.rows[key];
            if is_held(rule) {
                if now >= row.expiry {
                    row.held = 0;
                }
            } else {
                let units = row.spend(host.demand, now, &mut random);
                admitted.add(rule, key, units, now);
            }
            if random.u64(..20) == 0 && !is_held(rule) {
                // An outage policy admits what no store has granted.
                let units = random.u64(..8 * host.demand);
                row.spent += units;
                row.ungranted += units;
            }
            if is_rough && random.u64(..20) == 0 && !is_held(rule) {
                row.refunded += random.u64(..host.demand);
            }
            row.ask((host.id, host.demand), &declared, KEYS[key], now, &mut random);
            asking.push((number, key));
        }
        // Some requests are lost on the way, and repeated later.
        asking.retain(|_| random.u64(..6) > 0);
        if asking.is_empty() {
            continue;
        }
        let mut requests: Vec<LeaseRequest> = asking
            .iter()
            .map(|&(number, key)| hosts[number].rows[key].asked.clone().expect("asked"))
            .collect();
        for request in &mut requests {
            if is_rough && random.u64(..50) == 0 {
                request.sequence -= 1 + random.u64(..300_000);
            } else if is_rough && random.u64(..15) == 0 {
                request.spent = request.spent.saturating_sub(100);
            }
        }
        let pairs: Vec<_> = requests
            .iter()
            .map(|request| (request.of_key.expect("a key"), request))
            .collect();
        let terms = Terms::new(&declared, version).expect("countable");
        seen.gone += usize::from(store.drop_what_is_gone(now));
        let real = store.answer(now, &terms, &pairs);
        for ((&(number, key), (of_key, request)), real) in asking.iter().zip(pairs).zip(real) {
            let modelled = store.model.answer(&store.run, now, &terms, of_key, request);
            assert_eq!(real, modelled, "seed {seed}, {rule:?}, step {step}: {request:?}");
            if !is_rough {
                admitted.number(rule, key, &real, hosts[number].id);
            }
            let row = &mut hosts[number].rows[key];
            let is_repeat = row.sequence < now;
            seen.note(&real, request.held, is_repeat);
            match &real {
                StoreAnswer::Granted(grant)
                    if random.u64(..6) != 0 && row.asked.as_ref() == Some(request) =>
                {
                    row.install(now, grant);
                    if row.held == 0 && row.spent == 0 && row.refunded == 0 && random.bool() {
                        // The row is evicted, after everything was given back.
                        *row = Row {
                            free_at: row.free_at,
                            ..Row::default()
                        };
                    }
                    if !is_rough {
                        admitted.lease_places(rule, key, grant.reply.granted, (hosts.as_slice(), now));
                    }
                }
                // The host behaves as if it had been deployed anew.
                StoreAnswer::Declared { .. } => *row = Row::default(),
                _ => {}
            }
        }
    }
    if !is_rough {
        admitted.is_within(rule, ever, &format!("seed {seed}, {rule:?}"));
    }
}

fn traces(seeds: std::ops::Range<u64>, is_rough: bool) -> Option<Seen> {
    let program = server_program()?;
    let server = Server::start(&program);
    let mut connection = server.connection();
    let sha = load_with_clock(&mut connection, KEYED_SCRIPT);
    let mut seen = Seen::default();
    for seed in seeds {
        for rule in rules() {
            let mut store = Store {
                connection: &mut connection,
                sha: &sha,
                model: KeyedStoreModel::new(),
                key: format!("test/{seed}/{rule:?}/{is_rough}"),
                run: "1".to_owned(),
            };
            trace(&mut store, &rule, (seed, is_rough), &mut seen);
        }
    }
    println!("{seen:?}");
    Some(seen)
}

fn holds(seen: &Seen, least: usize, counts: &[(&str, usize)]) {
    for (what, count) in counts {
        assert!(*count > least, "{count} {what}: {seen:?}");
    }
}

#[test]
fn answers_for_keys_what_the_script_answers_on_a_real_server() {
    let Some(seen) = traces(0..SEEDS, false) else {
        return;
    };
    let counts = [
        ("grants", seen.granted),
        ("refusals", seen.refused),
        ("repeats", seen.repeated),
        ("lapses", seen.lapsed),
        ("records that are gone", seen.gone),
    ];
    holds(&seen, 100, &counts);
}

#[test]
fn answers_the_same_for_keys_when_servers_clocks_and_declarations_change() {
    let Some(seen) = traces(1_000..1_000 + SEEDS, true) else {
        return;
    };
    let counts = [
        ("quarantines", seen.quarantine),
        ("declarations", seen.declared),
        ("stale requests", seen.stale),
        ("falls", seen.fell),
    ];
    holds(&seen, 10, &counts);
}

/// Hosts that spend at once what they are granted, each of which asks every so many steps for the same amount. Returns
/// how much each was granted and how often it was refused, after a first second that is not counted.
fn in_turn(rule: LeasedRule, hosts: &[(u64, u64)]) -> Vec<(u64, u64)> {
    const STEP: u64 = 10_000;
    let declared = LeasedLimit {
        kind: Kind::Calls,
        unit: "1".to_owned(),
        rule,
        lease: Duration::from_millis(400),
    };
    let terms = Terms::new(&declared, 0).expect("countable");
    let mut store = KeyedStoreModel::new();
    let mut spent = vec![0; hosts.len()];
    let mut served = vec![(0, 0); hosts.len()];
    for step in 0..1_100 {
        let now = START + step * STEP;
        for (host, (every, wanted)) in hosts.iter().enumerate() {
            if !(step + host as u64).is_multiple_of(*every) {
                continue;
            }
            let of_key = LeasedKey {
                hash: KEYS[0],
                began: now,
            };
            let request = LeaseRequest {
                spent: spent[host],
                wanted: *wanted,
                ..keyed(request(&declared, host as u64 + 1, now, 0), KEYS[0])
            };
            match store.answer("1", now, &terms, of_key, &request) {
                StoreAnswer::Granted(grant) => spent[host] = grant.reply.granted,
                other => panic!("{other:?}"),
            }
            if step >= 100 {
                served[host].0 += spent[host];
                served[host].1 += u64::from(spent[host] == 0);
            }
        }
    }
    served
}

fn ten_thousand_a_second() -> LeasedRule {
    backlog(10_000, 1, 1_000)
}

/// One host wants far more than the others.
#[test]
fn hosts_that_want_more_of_a_key_than_there_is_get_the_same_and_together_the_rate() {
    let served = in_turn(
        ten_thousand_a_second(),
        &[(5, 20_000), (5, 1_000), (5, 1_000), (5, 1_000)],
    );
    let granted: Vec<u64> = served.iter().map(|(units, _)| *units).collect();
    let sum: u64 = granted.iter().sum();
    let squares: u64 = granted.iter().map(|units| units.pow(2)).sum();
    let jain = sum.pow(2) as f64 / (4 * squares) as f64;
    assert!(jain >= 0.95, "{granted:?}: {jain}");
    assert!((99_000..=101_000).contains(&sum), "{granted:?}");
}

/// Beside hosts that take what they can, there is one that wants a unit five times a second.
#[test]
fn a_host_that_uses_a_busy_key_now_and_then_is_served() {
    let served = in_turn(ten_thousand_a_second(), &[(5, 20_000), (7, 20_000), (20, 1)]);
    assert_eq!(served[2], (50, 0), "{served:?}");
    let served = in_turn(window(1_000_000, 86_400), &[(5, 500), (7, 500), (20, 1)]);
    assert_eq!(served[2], (50, 0), "{served:?}");
}

/// Ten units were granted, four of them spent, and two leases have passed.
#[test]
fn what_ran_out_with_a_lease_is_charged_once_and_credited_to_one_report() {
    let declared = LeasedLimit {
        kind: Kind::Calls,
        unit: "1".to_owned(),
        rule: backlog(100, 1_000_000, 100),
        lease: Duration::from_secs(1),
    };
    let terms = Terms::new(&declared, 0).expect("countable");
    // How much is granted, how much the host keeps, and how much is left for all.
    let answers = |reports: &[(u64, u64)]| {
        let mut store = KeyedStoreModel::new();
        let mut answer = |now: u64, spent, held| {
            let request = LeaseRequest {
                spent,
                held,
                ..keyed(request(&declared, 1, now, 10), KEYS[0])
            };
            let of_key = request.of_key.expect("a key");
            match store.answer("1", now, &terms, of_key, &request) {
                StoreAnswer::Granted(grant) => (grant.reply.granted, grant.kept, grant.reply.available),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(answer(START, 0, 0), (10, 0, 90));
        let mut now = START + 2_000_000;
        let answered = reports.iter().map(|&(spent, held)| {
            now += 100_000;
            answer(now, spent, held)
        });
        answered.collect::<Vec<_>>()
    };
    // The ten units stay charged. Of the next lease, everything that was spent is charged.
    assert_eq!(answers(&[(4, 0), (10, 0)]), [(10, 0, 80), (10, 0, 70)]);
    // The host asked while it still held six, and spends two more before it learns that they are gone. It is granted
    // nothing until it has reported this.
    assert_eq!(
        answers(&[(4, 6), (2, 0), (10, 0)]),
        [(0, 0, 90), (10, 0, 80), (10, 0, 70)]
    );
}
