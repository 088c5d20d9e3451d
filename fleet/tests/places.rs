//! Places of single keys on several hosts, with a real store and processes that are killed: no more places of a key are
//! held than there are, and those of the dead come back.
//!
//! Holders write down when they had a place: from when it was theirs until they last saw that it still was. The
//! kernel's clock is the same for all of them.

mod scene;

use std::collections::HashMap;
use std::env;
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use nix::sys::signal::{Signal, kill};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use scene::{PASSWORD, Server, server_program, wait_for};
use shmlimit::declare::FleetLease;
use shmlimit::{Declaration, Keyed, Limit, Permit, Segment, SetDeclaration};
use shmlimit_fleet::{Credentials, Refresher, Timeouts};

/// The variable that gives a test's child its role: the segment of its host.
const SEGMENT: &str = "SHMLIMIT_PLACES_TEST_SEGMENT";
/// How long the child holds each place, in milliseconds.
const HOLDS: &str = "SHMLIMIT_PLACES_TEST_HOLDS";
const LEASE: Duration = Duration::from_millis(600);
const KEYS: usize = 3;
const PLACES: u64 = 2;
const HOSTS: usize = 3;
const PROCESSES: usize = 3;

fn declaration(url: &str, places: u64) -> Declaration {
    let limit = Limit::concurrency("jobs", places).fleet(FleetLease::new("org/jobs").lease(LEASE));
    let set = SetDeclaration::new("api").keyed(Keyed::new(100)).add_limit(limit);
    Declaration::new().fleet_url(url).add_set(set)
}

fn refresher(segment: &Segment) -> Refresher {
    let credentials = Credentials::none().with_password(PASSWORD);
    let soon = Timeouts {
        connect: Duration::from_millis(300),
        answer: Duration::from_millis(300),
    };
    Refresher::start_with(segment, credentials, soon, |_| {}).expect("a thread")
}

fn now() -> u128 {
    let now: Duration = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("a clock").into();
    now.as_nanos()
}

/// In a test's child: takes places of keys and holds them for a while, until it is killed.
#[test]
fn holder() {
    let Some(path) = env::var_os(SEGMENT) else { return };
    let path = PathBuf::from(path);
    let holds: u64 = env::var(HOLDS).expect("a time").parse().expect("a number");
    let segment = Segment::open(&path).expect("a segment");
    let _refresher = refresher(&segment);
    let set = segment.set("api").expect("declared");
    let log = format!("{}.{}.log", path.display(), std::process::id());
    let mut log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .expect("a file");
    let mut random = Rng::with_seed(u64::from(std::process::id()));
    // The parent closes the pipe at the end, even if it fails.
    let parent = thread::spawn(|| std::io::stdin().read(&mut [0]));
    while !parent.is_finished() {
        let key = random.usize(..KEYS);
        let request = set.request().for_key(key.to_string()).expect("a key");
        let outcome = request.acquire(LEASE).expect("a decision");
        let Ok(permit) = outcome.into_result() else {
            continue;
        };
        // Some hold their place for longer than the store is stopped.
        let holds = if random.u64(..4) == 0 { 50 * holds } else { holds };
        hold(&permit, &mut log, key, Duration::from_millis(random.u64(..holds)));
    }
}

fn hold(permit: &Permit<'_>, log: &mut fs::File, key: usize, time: Duration) {
    let number = permit.fleet_fencing_number().expect("a number");
    let begun = Instant::now();
    let mut since = 0;
    loop {
        let instant = now();
        if permit.reclaimed() {
            return;
        }
        if since == 0 {
            since = instant;
        }
        writeln!(log, "{key} {number} {since} {instant}").expect("written");
        if begun.elapsed() >= time {
            return;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// The holders of a host, which are killed when it ends, however that happens.
struct Holders {
    path: PathBuf,
    holds: Duration,
    children: Vec<Child>,
}

impl Holders {
    fn start(path: PathBuf, declaration: &Declaration, count: usize, holds: Duration) -> Self {
        Segment::create(&path, declaration).expect("a segment");
        let mut holders = Self {
            path,
            holds,
            children: Vec::new(),
        };
        holders.children = (0..count).map(|_| holders.spawn()).collect();
        holders
    }

    fn spawn(&self) -> Child {
        Command::new(env::current_exe().expect("this program"))
            .args(["--exact", "holder", "--test-threads", "1"])
            .env(SEGMENT, &self.path)
            .env(HOLDS, self.holds.as_millis().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a process")
    }

    fn kill_one(&mut self, index: usize) {
        self.children[index].kill().expect("killed");
        self.children[index].wait().expect("reaped");
        self.children[index] = self.spawn();
    }

    fn kill_all(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Holders {
    fn drop(&mut self) {
        self.kill_all();
    }
}

/// A time during which somebody had a place.
#[derive(Clone, Copy, Debug)]
struct Hold {
    key: usize,
    number: u64,
    since: u128,
    until: u128,
}

/// What all holders have written down in a directory.
fn holds_in(directory: &Path) -> Vec<Hold> {
    let mut holds = HashMap::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "log") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("text");
        // If a holder was killed, its last line may be incomplete.
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            let words: Vec<u128> = line
                .split_whitespace()
                .map(|word| word.parse().expect("a number"))
                .collect();
            let [key, number, since, until] = words[..] else {
                panic!("{line}")
            };
            let hold = Hold {
                key: usize::try_from(key).expect("small"),
                number: u64::try_from(number).expect("a word"),
                since,
                until,
            };
            holds.insert((path.clone(), since), hold);
        }
    }
    holds.into_values().collect()
}

/// The most places of any one key that were held at the same instant.
fn most_at_once(holds: &[Hold]) -> usize {
    let of_key = |key| {
        let holds: Vec<_> = holds.iter().filter(|hold| hold.key == key).collect();
        let at = |instant| {
            let held = holds
                .iter()
                .filter(|hold| (hold.since..=hold.until).contains(&instant));
            held.count()
        };
        holds.iter().map(|hold| at(hold.since)).max().unwrap_or(0)
    };
    (0..KEYS).map(of_key).max().unwrap_or(0)
}

/// Holders are killed with SIGKILL all the time, whether they have duty or not; later all of one host, for good. The
/// store is stopped for longer than a lease, and is killed and started again.
#[test]
fn no_key_has_more_places_held_than_there_are_while_processes_and_the_store_die() {
    let Some(program) = server_program() else { return };
    let mut server = Server::start_durable(&program);
    let directory = tempfile::tempdir().expect("a directory");
    let declared = declaration(&server.url(), PLACES);
    let mut hosts: Vec<Holders> = (0..HOSTS)
        .map(|host| {
            let path = directory.path().join(host.to_string());
            Holders::start(path, &declared, PROCESSES, Duration::from_millis(120))
        })
        .collect();
    let mut random = Rng::with_seed(38);
    let mut phases = Vec::new();
    for phase in 0..6 {
        let pid = Pid::from_raw(server.pid());
        match phase {
            1 => hosts[0].kill_all(),
            2 => kill(pid, Signal::SIGSTOP).expect("stopped"),
            4 => server.restart(),
            _ => {}
        }
        let since = now();
        let begun = Instant::now();
        while begun.elapsed() < 4 * LEASE {
            if phase != 2 {
                let host = random.usize(1..HOSTS);
                hosts[host].kill_one(random.usize(..PROCESSES));
            }
            thread::sleep(Duration::from_millis(150));
        }
        if phase == 2 {
            kill(pid, Signal::SIGCONT).expect("continued");
        }
        phases.push((since, now()));
    }
    drop(hosts);
    let holds = holds_in(directory.path());
    let in_phases: Vec<usize> = phases
        .iter()
        .map(|(from, to)| {
            holds
                .iter()
                .filter(|hold| (*from..*to).contains(&hold.since))
                .count()
        })
        .collect();
    let most = most_at_once(&holds);
    println!("{in_phases:?} holds, at most {most} of a key at once");
    assert!(most as u64 <= PLACES, "{most} of {PLACES}");
    // The fleet works, without one host and after each outage.
    assert!(
        [0, 1, 3, 5].iter().all(|phase| in_phases[*phase] > 0),
        "{in_phases:?}"
    );
}

/// The only process of a host is killed while it holds the only place of a key.
#[test]
fn the_place_of_a_dead_host_comes_back_when_its_lease_is_over() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let directory = tempfile::tempdir().expect("a directory");
    let declared = declaration(&server.url(), 1);
    let path = directory.path().join("dies");
    let mut dies = Holders::start(path, &declared, 1, Duration::from_secs(3_600));
    let held = || holds_in(directory.path()).first().copied();
    wait_for("a place to be held", || held().is_some());
    let key = held().expect("a hold").key.to_string();
    let segment = Segment::create(directory.path().join("lives"), &declared).expect("a segment");
    let _refresher = refresher(&segment);
    let set = segment.set("api").expect("declared");
    let request = set.request().for_key(&key).expect("a key");
    let outcome = request.acquire(2 * LEASE).expect("a decision");
    assert!(!outcome.is_admitted(), "the other host has it");
    dies.kill_all();
    let killed = Instant::now();
    let mut permit = None;
    wait_for("the place", || {
        let outcome = request.acquire(LEASE).expect("a decision");
        permit = outcome.into_result().ok();
        permit.is_some()
    });
    println!(
        "had {:?} after the holder was killed, leases of {LEASE:?}",
        killed.elapsed()
    );
    let number = permit.and_then(|permit| permit.fleet_fencing_number());
    let before = held().expect("a hold").number;
    assert!(
        number.is_some_and(|number| number > before),
        "{number:?} after {before}"
    );
}
