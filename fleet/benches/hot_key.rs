//! A key that three hosts use as fast as they can: leased, and asked for in the store with a script for each request.
//!
//! `cargo bench --package shmlimit-fleet --bench hot_key`, on an idle machine that has redis-server or valkey-server.

#[path = "../tests/scene/mod.rs"]
mod scene;

use std::sync::Barrier;
use std::time::{Duration, Instant};
use std::{fs, thread};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use redis::Script;
use scene::{PASSWORD, Server, patient, server_program, wait_for};
use shmlimit::declare::FleetLease;
use shmlimit::{Declaration, Keyed, Limit, LimitSet, Segment, SetDeclaration};
use shmlimit_fleet::{Credentials, Refresher};
use tempfile::TempDir;

const HOSTS: usize = 3;
const ROUNDS: usize = 7;
/// How long each variant runs per round.
const TURN: Duration = Duration::from_secs(1);
const SECOND: Duration = Duration::from_secs(1);
const KEY: &str = "acme";

/// More per second than can be asked for.
const CAPACITY: u64 = 1 << 40;

const ASKED_EACH_TIME: &str = include_str!("asked_each_time.lua");

/// A host: a segment of its own, with a thread that asks the store.
struct Host {
    set: LimitSet,
    refresher: Refresher,
    _directory: TempDir,
}

impl Host {
    fn start(server: &Server) -> Self {
        let limit = Limit::calls("calls", CAPACITY, SECOND).fleet(FleetLease::new("bench/tenants"));
        let set = SetDeclaration::new("tenants")
            .keyed(Keyed::new(1000))
            .add_limit(limit);
        let declaration = Declaration::new().fleet_url(server.url()).add_set(set);
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let segment = Segment::create(directory.path().join("limits"), &declaration).expect("a segment");
        let credentials = Credentials::none().with_password(PASSWORD);
        Self {
            set: segment.set("tenants").expect("declared"),
            refresher: Refresher::start_with(&segment, credentials, patient(), |_| {}).expect("a thread"),
            _directory: directory,
        }
    }

    fn take(&self) -> bool {
        let request = self.set.request().for_key(KEY).expect("a key");
        request.check().expect("a decision").is_admitted()
    }
}

/// What all hosts together have done.
#[derive(Clone, Copy, Default)]
struct Done {
    admitted: u64,
    refused: u64,
    /// The processor time of hosts and server.
    processor: Duration,
}

/// The processor time of this process and of a server.
fn processor_time(server: &Server) -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("the usage of this process");
    let own = [usage.user_time(), usage.system_time()].map(|time| time.num_microseconds());
    let stat = fs::read_to_string(format!("/proc/{}/stat", server.pid())).expect("the server's state");
    let (_, rest) = stat.rsplit_once(") ").expect("a name in brackets");
    // User and system time, in hundredths of a second.
    let ticks = rest
        .split(' ')
        .skip(11)
        .take(2)
        .map(|word| word.parse::<u64>().expect("a number"));
    let own = u64::try_from(own.iter().sum::<i64>()).expect("time passes");
    Duration::from_micros(own) + Duration::from_millis(10 * ticks.sum::<u64>())
}

/// Lets each host take for one turn.
fn turn(server: &Server, takers: &mut [impl FnMut() -> bool + Send]) -> Done {
    let start = Barrier::new(takers.len());
    let before = processor_time(server);
    let [admitted, refused] = thread::scope(|scope| {
        let running: Vec<_> = takers
            .iter_mut()
            .map(|take| {
                scope.spawn(|| {
                    start.wait();
                    let (begun, mut counts) = (Instant::now(), [0_u64; 2]);
                    while begun.elapsed() < TURN {
                        for _ in 0..16 {
                            counts[usize::from(!take())] += 1;
                        }
                    }
                    counts
                })
            })
            .collect();
        let counts = running.into_iter().map(|it| it.join().expect("a turn"));
        counts.fold([0; 2], |all, of_host| [all[0] + of_host[0], all[1] + of_host[1]])
    });
    Done {
        admitted,
        refused,
        processor: processor_time(server) - before,
    }
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn main() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let hosts: [Host; HOSTS] = std::array::from_fn(|_| Host::start(&server));
    for host in &hosts {
        wait_for("a lease", || (0..1000).all(|_| host.take()));
    }
    let requests = hosts
        .each_ref()
        .map(|host| host.set.request().for_key(KEY).expect("a key"));
    let mut kept = requests
        .each_ref()
        .map(|request| || request.check().expect("a decision").is_admitted());
    let mut built = hosts.each_ref().map(|host| || host.take());
    let mut connections = [(); HOSTS].map(|()| server.connection());
    let script = Script::new(ASKED_EACH_TIME);
    let mut asked = connections.each_mut().map(|connection| {
        let script = &script;
        move || {
            let answer: i64 = script
                .key("asked:acme")
                .arg(1)
                .arg(60_000_000)
                .invoke(connection)
                .expect("an answer");
            answer == 1
        }
    });
    let round_trips = || {
        hosts
            .iter()
            .map(|host| host.refresher.counts().round_trips)
            .sum::<u64>()
    };
    let mut done = [const { Vec::new() }; 3];
    let mut trips = 0;
    for _ in 0..ROUNDS {
        let before = round_trips();
        done[0].push(turn(&server, &mut kept));
        done[1].push(turn(&server, &mut built));
        trips += round_trips() - before;
        done[2].push(turn(&server, &mut asked));
    }
    let of_leased = || done[0].iter().chain(&done[1]);
    let all: u64 = of_leased().map(|turn| turn.admitted + turn.refused).sum();
    let refused: u64 = of_leased().map(|turn| turn.refused).sum();
    println!("{ROUNDS} interleaved rounds of {TURN:?}, {HOSTS} hosts, one key, medians.\n");
    let [kept, built, asked] = done.map(|turns| {
        let a_second = |time: fn(&Done) -> Duration| {
            let rates = turns
                .iter()
                .map(|turn| turn.admitted as f64 / time(turn).as_secs_f64());
            median(rates.collect())
        };
        [a_second(|_| TURN), a_second(|turn| turn.processor)]
    });
    println!("| admissions of {HOSTS} hosts | a second | a second of processor time, the store's included |");
    println!("|---|---:|---:|");
    for (what, [a_second, of_processor]) in [
        ("leased by key, with a request that is kept", kept),
        ("leased by key, with a request that is built each time", built),
        ("in the store, one EVALSHA each", asked),
    ] {
        println!("| {what} | {a_second:.0} | {of_processor:.0} |");
    }
    println!("\nLeased: {refused} refused of {all}, {trips} calls.");
    println!("\n| what | aim | measured |");
    println!("|---|---:|---:|");
    for (index, what) in ["a second", "a second of processor time"].iter().enumerate() {
        let [kept, built] = [kept, built].map(|leased| leased[index] / asked[index]);
        println!(
            "| leased beside EVALSHA, admissions {what} | 200x or more | {kept:.0}x; built {built:.0}x |"
        );
    }
}
