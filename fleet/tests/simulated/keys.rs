//! Keys that hosts share, each with its own limit, and the store, which keeps a record for each.

use std::time::Duration;

use fastrand::Rng;
use shmlimit::declare::FleetLease;
use shmlimit::fleet::Duty;
use shmlimit::{Algorithm, Declaration, Keyed, Limit, LimitSet, Segment, SetDeclaration, VirtualClock};
use shmlimit_fleet::Exchange;
use shmlimit_fleet::model::KeyedStoreModel;

use super::fleet::{STEP, segment_on_duty};

const SECOND: Duration = Duration::from_secs(1);
const HOSTS: u64 = 5;
const KEYS: usize = 40;
const UNLEASED: u64 = 1;

/// The wall clock when a test begins: the first instant of a minute.
const START: Duration = Duration::from_secs(1_795_478_400);

struct Host {
    _directory: tempfile::TempDir,
    _segment: Segment,
    duty: Duty,
    exchange: Exchange,
    set: LimitSet,
}

impl Host {
    fn new(limit: Limit, clock: &VirtualClock, seed: u64) -> Self {
        let set = SetDeclaration::new("api").keyed(Keyed::new(200)).add_limit(limit);
        let declaration = Declaration::new().fleet_url("redis://127.0.0.1").add_set(set);
        let (directory, segment, duty) = segment_on_duty(&declaration, clock);
        Self {
            _directory: directory,
            duty,
            exchange: Exchange::new(seed),
            set: segment.set("api").expect("declared"),
            _segment: segment,
        }
    }

    fn is_admitted(&self, key: usize) -> bool {
        let request = self.set.request().for_key(key.to_string()).expect("a key");
        request.check().expect("a decision").is_admitted()
    }

    fn exchange(&mut self, store: &mut KeyedStoreModel, utc: u64) {
        let asked = self.duty.ask().expect("works");
        let (pipeline, problems) = self.exchange.pipeline(&self.duty, asked);
        assert_eq!(problems, []);
        let requests = pipeline.requests().iter();
        let answers = requests.map(|(request, terms)| {
            let key = request.of_key.expect("of a key");
            Ok(store.answer("1", utc, terms, key, request))
        });
        let answers = Ok(answers.collect());
        self.exchange.settle(&self.duty, &pipeline, answers);
    }
}

/// Lets time pass while all hosts want units of keys, mostly of the first ones. Returns how many of each key were
/// admitted in each second.
fn admitted_in_each_second(limit: &Limit, seconds: usize, seed: u64) -> Vec<[u64; KEYS]> {
    let clock = VirtualClock::new(START);
    let mut store = KeyedStoreModel::new();
    let mut hosts: Vec<Host> = (0..HOSTS)
        .map(|seed| Host::new(limit.clone(), &clock, seed))
        .collect();
    let mut random = Rng::with_seed(seed);
    let mut now = START;
    let mut admitted = Vec::new();
    for _ in 0..seconds {
        let mut of_second = [0; KEYS];
        for _ in 0..SECOND.as_nanos() / STEP.as_nanos() {
            for host in &mut hosts {
                for _ in 0..4 {
                    // Half of the requests are for the first key, a quarter for the second, and so on.
                    let key = (random.u64(1..).trailing_zeros() as usize).min(KEYS - 1);
                    of_second[key] += u64::from(host.is_admitted(key));
                }
                host.exchange(&mut store, u64::try_from(now.as_micros()).expect("in range"));
            }
            now += STEP;
            clock.advance_to(now);
        }
        admitted.push(of_second);
    }
    admitted
}

fn shared() -> FleetLease {
    FleetLease::new("org/keys")
        .lease(SECOND)
        .unleased(UNLEASED)
        .cold_wait(Duration::ZERO)
}

#[test]
fn no_key_has_more_than_its_rate_and_what_hosts_admit_unleased() {
    let (rate, burst) = (50, 100);
    let limit = Limit::calls("limit", rate, SECOND).burst(burst).fleet(shared());
    let seconds = 20;
    let admitted = admitted_in_each_second(&limit, seconds, 7);
    for key in 0..KEYS {
        let of_key = |seconds: &[[u64; KEYS]]| seconds.iter().map(|second| second[key]).sum::<u64>();
        for begin in 0..seconds {
            for end in begin + 1..=seconds {
                let most = burst + rate * (end - begin) as u64 + HOSTS * UNLEASED;
                let count = of_key(&admitted[begin..end]);
                assert!(
                    count <= most,
                    "key {key}: {count} of {most} from second {begin} to {end}"
                );
            }
        }
    }
    // The first key is wanted ten times as often as it may be used.
    let first: u64 = admitted.iter().map(|second| second[0]).sum();
    assert!(first >= rate * seconds as u64 * 9 / 10, "{first}");
}

#[test]
fn no_key_has_more_in_a_window_than_its_capacity_and_what_hosts_admit_unleased() {
    let (capacity, window) = (60, 5);
    let limit = Limit::calls("limit", capacity, SECOND * window)
        .algorithm(Algorithm::FixedWindow)
        .fleet(shared());
    let admitted = admitted_in_each_second(&limit, 20, 11);
    for (number, of_window) in admitted.chunks(window as usize).enumerate() {
        for key in 0..KEYS {
            let count: u64 = of_window.iter().map(|second| second[key]).sum();
            let most = capacity + HOSTS * UNLEASED;
            assert!(count <= most, "key {key}: {count} of {most} in window {number}");
        }
        // The first key is nearly used up.
        let first: u64 = of_window.iter().map(|second| second[0]).sum();
        assert!(first >= capacity * 8 / 10, "{first} in window {number}");
    }
}
