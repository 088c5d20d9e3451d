//! Segments, their refreshers and a real store: a fleet admits what was declared, whatever dies.

mod scene;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{env, thread};

use fastrand::Rng;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use scene::proxy::Proxy;
use scene::{PASSWORD, Server, cluster, patient, server_program, wait_for};
use shmlimit::declare::{FleetLease, Outage};
use shmlimit::snapshot::{SegmentReader, SegmentSnapshot};
use shmlimit::{
    Declaration, Keyed, Limit, LimitSet, Outcome, RefusalReason, Segment, SetDeclaration, Window,
};
use shmlimit_fleet::protocol::store_key;
use shmlimit_fleet::{Credentials, Refresher, StoreEvent, Timeouts};

const SECOND: Duration = Duration::from_secs(1);

/// A "host": a separate segment, with a thread that asks the store.
struct Host {
    _directory: tempfile::TempDir,
    segment: Segment,
    refresher: Option<Refresher>,
}

fn declaration(url: &str, limit: Limit) -> Declaration {
    Declaration::new()
        .fleet_url(url)
        .add_set(SetDeclaration::new("api").add_limit(limit))
}

impl Host {
    fn start(declaration: &Declaration) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("limits");
        let segment = Segment::create(path, declaration).expect("a segment");
        let mut host = Self {
            _directory: directory,
            segment,
            refresher: None,
        };
        host.start_refresher();
        host
    }

    fn start_refresher(&mut self) {
        self.start_refresher_with(patient());
    }

    fn start_refresher_with(&mut self, timeouts: Timeouts) {
        let credentials = Credentials::none().with_password(PASSWORD);
        let refresher = Refresher::start_with(&self.segment, credentials, timeouts, |_| {});
        self.refresher = Some(refresher.expect("a thread"));
    }

    fn set(&self) -> LimitSet {
        self.segment.set("api").expect("declared")
    }

    fn snapshot(&self) -> SegmentSnapshot {
        self.segment.snapshot().expect("a snapshot")
    }
}

/// Takes one unit, or says why not.
fn take(set: &LimitSet) -> Result<(), RefusalReason> {
    let request = set.request().with("units", 1).expect("declared");
    match request.try_acquire().expect("a decision") {
        Outcome::Admitted(_) => Ok(()),
        Outcome::Refused(refusal) => Err(refusal.reason()),
    }
}

fn units(capacity: u64, window: Duration, burst: u64, lease: Duration) -> Limit {
    Limit::rate("units", capacity, window)
        .burst(burst)
        .fleet(FleetLease::new("org/units").lease(lease))
}

/// What the segment has counted as admitted, for all processes.
fn admitted(snapshot: &SegmentSnapshot) -> u64 {
    snapshot.sets[0].limits[0].counts.admitted
}

/// Takes units until one is refused, at most `max`. Returns how many were admitted.
fn take_all(set: &LimitSet, max: u64) -> u64 {
    (0..max).take_while(|_| take(set).is_ok()).count() as u64
}

#[test]
fn two_hosts_spend_one_window_between_them() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let limit = Limit::budget("units", 20_000, Window::Month)
        .fleet(FleetLease::new("org/units").lease(Duration::from_millis(500)));
    let declaration = declaration(&server.url(), limit);
    let hosts = [Host::start(&declaration), Host::start(&declaration)];
    let sets = hosts.each_ref().map(Host::set);
    // A budget is debited afterwards, here by one unit.
    let mut debited = [0_u64; 2];
    wait_for("all to be spent", || {
        for (set, debited) in sets.iter().zip(&mut debited) {
            for _ in 0..100 {
                match set.request().try_acquire().expect("a decision") {
                    Outcome::Admitted(mut permit) => {
                        permit.settle([("units", 1)]).expect("settled");
                        *debited += 1;
                    }
                    Outcome::Refused(_) => break,
                }
            }
        }
        debited.iter().sum::<u64>() >= 20_000 * 98 / 100
    });
    let trips: u64 = hosts
        .iter()
        .filter_map(|host| host.refresher.as_ref())
        .map(|refresher| refresher.counts().round_trips)
        .sum();
    println!("{debited:?} in {trips} round trips");
    // At most one debit per running request goes beyond the budget: here, one on each host.
    assert!(debited.iter().sum::<u64>() <= 20_000 + 2, "{debited:?}");
    assert!(debited.iter().all(|&units| units > 2_000), "{debited:?}");
}

#[test]
fn admits_what_is_declared_over_both_hosts() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let limit = units(20_000, SECOND, 10_000, SECOND);
    let declaration = declaration(&server.url(), limit);
    let begun = Instant::now();
    let hosts = [Host::start(&declaration), Host::start(&declaration)];
    let sets = hosts.each_ref().map(Host::set);
    while begun.elapsed() < 4 * SECOND {
        for set in &sets {
            take_all(set, 1_000);
        }
        thread::yield_now();
    }
    let counts = hosts.each_ref().map(|host| admitted(&host.snapshot()));
    let bound = 10_000.0 + 20_000.0 * begun.elapsed().as_secs_f64();
    let sum = counts.iter().sum::<u64>() as f64;
    let trips: u64 = hosts
        .iter()
        .filter_map(|host| host.refresher.as_ref())
        .map(|refresher| refresher.counts().round_trips)
        .sum();
    println!("{counts:?} of {bound:.0} in {trips} round trips");
    assert!(sum <= bound, "{counts:?} of {bound}");
    assert!(sum >= bound / 4.0, "{counts:?} of {bound}");
}

#[test]
fn a_burst_of_a_second_suffices_for_the_rate_with_the_lease_that_follows_from_it() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let limit = Limit::rate("units", 1_000, SECOND)
        .burst(1_000)
        .fleet(FleetLease::new("org/units"));
    let host = Host::start(&declaration(&server.url(), limit));
    let set = host.set();
    // What is left of the burst is taken first, and then the rate is measured.
    let (settled, measured) = (3 * SECOND, 6 * SECOND);
    let begun = Instant::now();
    let mut before = 0;
    while begun.elapsed() < settled + measured {
        take_all(&set, 1_000);
        if begun.elapsed() < settled {
            before = admitted(&host.snapshot());
        }
        thread::sleep(Duration::from_millis(1));
    }
    let used = admitted(&host.snapshot()) - before;
    let lease = host.snapshot().sets[0].limits[0].lease.clone().expect("shared");
    println!("{used} of 6,000 in 6 s, answers in {:?}", lease.round_trip);
    assert_eq!(lease.length, Duration::from_millis(500));
    assert_eq!(lease.usable_percent, Some(100));
    // 99 % on a machine that does nothing else.
    assert!(used >= 4_500, "{used} of 6,000");
}

/// The variables that give a test's child its role: a worker by its segment, a host by its store.
const WORKER: &str = "SHMLIMIT_FLEET_TEST_SEGMENT";
const HOST: &str = "SHMLIMIT_FLEET_TEST_STORE";

/// The number in a variable, or a small default: eight hosts of 25 processes each need a whole machine.
fn number(variable: &str, otherwise: usize) -> usize {
    let said = env::var(variable).ok();
    said.map_or(otherwise, |said| said.parse().expect("a number"))
}

fn processes_of_a_host() -> usize {
    number("SHMLIMIT_FLEET_PROCESSES", 3)
}

/// This program, which runs only the test with this name until its input ends.
fn in_role(mut command: Command, role: &str) -> Command {
    command
        .args(["--exact", role, "--test-threads", "1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// In a test's child: takes units of a segment until it is killed.
#[test]
fn worker() {
    let Some(path) = env::var_os(WORKER) else { return };
    let segment = Segment::open(Path::new(&path)).expect("a segment");
    let credentials = Credentials::none().with_password(PASSWORD);
    let soon = Timeouts {
        connect: Duration::from_millis(300),
        answer: Duration::from_millis(300),
    };
    let _refresher = Refresher::start_with(&segment, credentials, soon, |_| {}).expect("a thread");
    let set = segment.set("api").expect("declared");
    // The parent closes the pipe at the end, even if it fails.
    let parent = thread::spawn(|| std::io::stdin().read(&mut [0]));
    while !parent.is_finished() {
        take_all(&set, 100);
        thread::yield_now();
    }
}

fn spawn_worker(path: &Path) -> Child {
    let mut command = in_role(Command::new(env::current_exe().expect("this program")), "worker");
    command.env(WORKER, path).spawn().expect("a process")
}

/// The workers of a host, which are killed when it ends, however that happens.
struct Workers(Vec<Child>);

impl Drop for Workers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// In a test's child: a host with its workers. Kills and replaces each worker whose number it reads.
#[test]
fn host() {
    let Some(url) = env::var_os(HOST) else { return };
    let path = PathBuf::from(env::var_os(WORKER).expect("a path"));
    let limit = units(20_000, SECOND, 10_000, Duration::from_millis(500));
    let declaration = declaration(url.to_str().expect("text"), limit);
    let _segment = Segment::create(&path, &declaration).expect("a segment");
    let mut workers = Workers((0..processes_of_a_host()).map(|_| spawn_worker(&path)).collect());
    for line in std::io::stdin().lines() {
        let index: usize = line.expect("a line").parse().expect("a number");
        let child = &mut workers.0[index];
        child.kill().expect("killed");
        child.wait().expect("reaped");
        *child = spawn_worker(&path);
    }
}

/// A host whose processes have their own boot-time clock, if the kernel permits a test to have one.
struct Machine {
    path: PathBuf,
    process: Child,
}

impl Machine {
    fn boot(path: PathBuf, url: &str, seconds_since_boot: usize) -> Self {
        let this = env::current_exe().expect("this program");
        let clock = ["--time", "--fork", "--kill-child", "--boottime"];
        let mut command = Command::new("unshare");
        command.args(clock).arg(seconds_since_boot.to_string());
        let can_shift = command.arg("true").stderr(Stdio::null()).status();
        let command = if can_shift.is_ok_and(|status| status.success()) {
            let mut command = Command::new("unshare");
            command.args(clock).arg(seconds_since_boot.to_string()).arg(this);
            command
        } else {
            println!("skipped: no time namespaces, so all hosts have one boot-time clock");
            Command::new(this)
        };
        let mut command = in_role(command, "host");
        let process = command.env(HOST, url).env(WORKER, &path).spawn();
        let machine = Self {
            path,
            process: process.expect("a process"),
        };
        wait_for("a host", || SegmentReader::open(&machine.path).is_ok());
        machine
    }

    fn replace_worker(&mut self, index: usize) {
        let input = self.process.stdin.as_mut().expect("a pipe");
        writeln!(input, "{index}").expect("a host that reads");
    }

    fn snapshot(&self) -> SegmentSnapshot {
        let reader = SegmentReader::open(&self.path).expect("a segment");
        reader.snapshot().expect("a snapshot")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

#[test]
fn admits_no_more_than_declared_while_processes_and_servers_die() {
    let Some(program) = server_program() else { return };
    let mut server = Server::start_durable(&program);
    let begun = Instant::now();
    let directory = tempfile::tempdir().expect("a directory");
    let mut hosts: Vec<Machine> = (0..number("SHMLIMIT_FLEET_HOSTS", 3))
        .map(|host| {
            let path = directory.path().join(host.to_string());
            Machine::boot(path, &server.url(), host * 100_000)
        })
        .collect();
    let mut random = Rng::with_seed(18);
    let sum = |hosts: &[Machine]| hosts.iter().map(|host| admitted(&host.snapshot())).sum::<u64>();
    let mut phases = Vec::new();
    for phase in 0..6 {
        let before = sum(&hosts);
        let pid = Pid::from_raw(server.pid());
        match phase {
            2 => kill(pid, Signal::SIGSTOP).expect("stopped"),
            4 => server.restart(),
            _ => {}
        }
        let phase_begun = Instant::now();
        while phase_begun.elapsed() < 2 * SECOND {
            let host = random.usize(..hosts.len());
            hosts[host].replace_worker(random.usize(..processes_of_a_host()));
            thread::sleep(Duration::from_millis(100));
        }
        if phase == 2 {
            kill(pid, Signal::SIGCONT).expect("continued");
        }
        phases.push(sum(&hosts) - before);
    }
    let snapshots: Vec<_> = hosts
        .iter()
        .filter_map(|host| host.snapshot().fleet)
        .map(|fleet| fleet.takeovers)
        .collect();
    let sum = sum(&hosts);
    let bound = 10_000.0 + 20_000.0 * begun.elapsed().as_secs_f64();
    println!("admitted {phases:?}, in all {sum} of {bound:.0}; takeovers {snapshots:?}");
    assert!(sum as f64 <= bound, "{phases:?} of {bound}");
    // The fleet works, and works again after each outage.
    assert!(phases[1] > 0 && phases[3] > 0 && phases[5] > 0, "{phases:?}");
    assert!(snapshots.iter().any(|&takeovers| takeovers > 0), "{snapshots:?}");
}

fn out(host: &Host) -> bool {
    let snapshot = host.snapshot();
    let lease = snapshot.sets[0].limits[0].lease.as_ref().expect("shared");
    lease.out_for.is_some()
}

fn left(host: &Host) -> u64 {
    let snapshot = host.snapshot();
    snapshot.sets[0].limits[0]
        .lease
        .as_ref()
        .map_or(0, |lease| lease.left)
}

/// A host whose store has just gone, with units of a lease left.
fn host_in_an_outage(server: &Server, proxy: &Proxy, outage: Outage) -> Host {
    let lease = FleetLease::new(format!("org/{outage:?}"))
        .lease(2 * SECOND)
        .outage(outage);
    let limit = Limit::rate("units", 1_000, SECOND).burst(1_000).fleet(lease);
    let declaration = declaration(&proxy.url(), limit);
    let mut host = Host::start(&declaration);
    drop(host.refresher.take());
    let soon = Timeouts {
        connect: Duration::from_millis(100),
        answer: Duration::from_millis(100),
    };
    host.start_refresher_with(soon);
    let set = host.set();
    wait_for("a lease", || take(&set).is_ok() && left(&host) > 10);
    assert!(server.log().contains("Ready"));
    proxy.set_down(true);
    // The host notices the outage when the lease is to be renewed.
    wait_for("the outage to be known", || {
        let is_out = out(&host);
        if !is_out && left(&host) > 20 {
            let _ = take(&set);
        }
        is_out
    });
    host
}

#[test]
fn deals_with_an_outage_as_is_declared() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let proxy = Proxy::start(server.port);

    let host = host_in_an_outage(&server, &proxy, Outage::Deny);
    assert_eq!(
        take(&host.set()),
        Err(RefusalReason::StoreOut),
        "{} left",
        left(&host)
    );
    proxy.set_down(false);
    wait_for("the store to be found again", || take(&host.set()).is_ok());
    drop(host);

    let host = host_in_an_outage(&server, &proxy, Outage::SpendOut);
    let set = host.set();
    let begun = Instant::now();
    wait_for("the end of the lease", || take(&set).is_err());
    // The lease has ended or is spent, and does not come back either way.
    while begun.elapsed() < 3 * SECOND {
        let _ = take(&set);
    }
    assert_eq!(take(&set), Err(RefusalReason::StoreOut));
    proxy.set_down(false);
    wait_for("the store to be found again", || take(&set).is_ok());
    drop(host);

    let host = host_in_an_outage(&server, &proxy, Outage::Safe);
    let set = host.set();
    let before = admitted(&host.snapshot());
    let begun = Instant::now();
    while begun.elapsed() < 5 * SECOND {
        take_all(&set, 100);
        thread::yield_now();
    }
    // As the only host in the store, its fair share is the whole rate.
    let share = admitted(&host.snapshot()) - before;
    let bound = 1_000.0 + 1_000.0 * (begun.elapsed() + 2 * SECOND).as_secs_f64();
    assert!(share > 1_000 && share as f64 <= bound, "{share} of {bound}");
    proxy.set_down(false);
    drop(host);

    let host = host_in_an_outage(&server, &proxy, Outage::Open);
    assert_eq!(take_all(&host.set(), 100_000), 100_000);
    proxy.set_down(false);
}

/// While the store is silent, taking leased units does not sleep because of it. This is measured by the kernel's count
/// of how often the thread gave up the processor.
#[test]
fn no_acquisition_waits_for_a_silent_store() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let proxy = Proxy::start(server.port);
    let limit = units(1_000_000, SECOND, 1_000_000, 60 * SECOND);
    let host = Host::start(&declaration(&proxy.url(), limit));
    let set = host.set();
    wait_for("a lease", || {
        let _ = take(&set);
        left(&host) > 20_000
    });
    proxy.set_silent(true);
    let switches = || {
        let usage = getrusage(UsageWho::RUSAGE_THREAD).expect("known");
        usage.voluntary_context_switches()
    };
    let before = switches();
    let taken = take_all(&set, 10_000);
    let slept = switches() - before;
    assert_eq!(taken, 10_000);
    // The lock is shared with the thread that waits for the store, but that does not hold it while it waits.
    println!("slept {slept} times in {taken} acquisitions");
    assert!(slept < 100, "{slept}");
    proxy.set_silent(false);
}

#[test]
fn a_slow_store_costs_no_more_than_units() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let proxy = Proxy::start(server.port);
    proxy.set_delay(Duration::from_millis(150));
    let limit = units(10_000, SECOND, 10_000, SECOND);
    let declaration = declaration(&proxy.url(), limit);
    let begun = Instant::now();
    let hosts = [Host::start(&declaration), Host::start(&declaration)];
    let sets = hosts.each_ref().map(Host::set);
    while begun.elapsed() < 4 * SECOND {
        for set in &sets {
            take_all(set, 100);
        }
        thread::yield_now();
    }
    let sum: u64 = hosts.iter().map(|host| admitted(&host.snapshot())).sum();
    let bound = 10_000.0 + 10_000.0 * begun.elapsed().as_secs_f64();
    println!("{sum} of {bound:.0}");
    assert!(sum as f64 <= bound && sum > 1_000, "{sum} of {bound}");
}

#[test]
fn a_process_without_the_password_leaves_duty_to_one_that_has_it() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let limit = units(1_000, SECOND, 1_000, SECOND);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits");
    let segment = Segment::create(path, &declaration(&server.url(), limit)).expect("a segment");
    let start =
        |credentials| Refresher::start_with(&segment, credentials, patient(), |_| {}).expect("a thread");
    let without = start(Credentials::none());
    wait_for("the denial", || {
        without.problem().is_some_and(|problem| problem.is_denial())
    });
    let with = start(Credentials::none().with_password(PASSWORD));
    wait_for("a lease", || take(&segment.set("api").expect("declared")).is_ok());
    assert!(with.counts().round_trips > 0, "{:?}", with.counts());
}

#[test]
fn shares_places_and_reclaims_those_of_a_host_that_is_cut_off() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let proxy = Proxy::start(server.port);
    let limit = Limit::concurrency("units", 10)
        .fleet(FleetLease::new("org/places").lease(Duration::from_millis(500)));
    let mut first = Host::start(&declaration(&proxy.url(), limit.clone()));
    drop(first.refresher.take());
    let soon = Timeouts {
        connect: Duration::from_millis(100),
        answer: Duration::from_millis(100),
    };
    first.start_refresher_with(soon);
    let second = Host::start(&declaration(&server.url(), limit));
    let (first_set, second_set) = (first.set(), second.set());
    let mut permits = Vec::new();
    let take = |set: &LimitSet| match set.request().try_acquire().expect("a decision") {
        Outcome::Admitted(permit) => Some(permit.into_owned()),
        Outcome::Refused(_) => None,
    };
    wait_for("ten places", || {
        permits.extend(take(&first_set));
        permits.len() == 10
    });
    for _ in 0..50 {
        assert!(take(&second_set).is_none(), "an eleventh place");
    }
    assert!(permits.iter().all(|permit| !permit.reclaimed()));
    // The host can no longer renew anything: one lease later, its places are free, and its permits say so.
    proxy.set_down(true);
    wait_for("places of the host that is cut off", || {
        take(&second_set).is_some()
    });
    wait_for("the first host to know", || {
        permits.iter().all(|permit| permit.reclaimed())
    });
}

/// A host that shares a limit and has its first lease, and the lines in which it reports what happens to the store.
struct Teller {
    _directory: tempfile::TempDir,
    segment: Segment,
    set: LimitSet,
    refresher: Refresher,
    lines: mpsc::Receiver<String>,
}

impl Teller {
    fn start(url: &str, is_of_interest: fn(&StoreEvent<'_>) -> bool) -> Self {
        let limit = units(1_000, SECOND, 1_000, SECOND);
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("limits");
        let segment = Segment::create(path, &declaration(url, limit)).expect("a segment");
        let (told, lines) = mpsc::channel();
        let credentials = Credentials::none().with_password(PASSWORD);
        let tell = move |event: &StoreEvent<'_>| {
            if is_of_interest(event) {
                // The test may be over, and nobody listens.
                let _ = told.send(event.to_string());
            }
        };
        let refresher = Refresher::start_with(&segment, credentials, patient(), tell).expect("a thread");
        let set = segment.set("api").expect("declared");
        wait_for("a lease", || take(&set).is_ok());
        Self {
            _directory: directory,
            segment,
            set,
            refresher,
            lines,
        }
    }

    /// Ends the host. Returns what it has reported.
    fn lines(self) -> Vec<String> {
        self.refresher.stop();
        self.lines.iter().collect()
    }
}

#[test]
fn tells_of_an_outage_once_when_it_begins_and_once_when_it_ends() {
    let Some(program) = server_program() else { return };
    let mut server = Server::start(&program);
    let host = Teller::start(&server.url(), |_| true);
    server.kill();
    wait_for("several failures", || {
        let _ = take(&host.set);
        host.refresher.counts().failures > 3
    });
    server.restart();
    wait_for("the store to be found again", || {
        let _ = take(&host.set);
        host.refresher.problem().is_none()
    });
    let lines = host.lines();
    assert!(
        matches!(&lines[..], [begun, ended]
            if begun.contains("no leases come from the store: ") && ended.contains("answers again")),
        "{lines:?}"
    );
    assert!(!lines.concat().contains(PASSWORD));
}

#[test]
fn tells_once_of_a_store_that_may_evict_what_it_counts() {
    let Some(program) = server_program() else { return };
    for (bound, policy, is_told) in [
        ("100mb", "noeviction", false),
        ("0", "allkeys-lru", false),
        ("100mb", "volatile-ttl", true),
    ] {
        let mut server = Server::start_with(
            &program,
            &[
                "--requirepass",
                PASSWORD,
                "--maxmemory",
                bound,
                "--maxmemory-policy",
                policy,
            ],
        );
        let host = Teller::start(&server.url(), |event| {
            matches!(event, StoreEvent::MayEvict { .. })
        });
        // On the second connection, this has been reported already.
        server.restart();
        let before = host.refresher.counts().round_trips;
        wait_for("another connection", || {
            let _ = take(&host.set);
            host.refresher.counts().round_trips > before + 1
        });
        let lines = host.lines();
        assert_eq!(lines.len(), usize::from(is_told), "{bound} {policy}: {lines:?}");
        assert!(lines.iter().all(|line| line.contains(policy)), "{lines:?}");
    }
}

/// Any server of a cluster may evict. `doctor` learns of it from the segment.
#[test]
fn tells_once_of_a_cluster_that_may_evict_what_it_counts() {
    let Some(program) = server_program() else { return };
    let servers = cluster::start(&program);
    for (name, value) in [("maxmemory", "100mb"), ("maxmemory-policy", "allkeys-lfu")] {
        let mut command = redis::cmd("CONFIG");
        command.arg("SET").arg(name).arg(value);
        command.query::<()>(&mut servers[0].connection()).expect("set");
    }
    let host = Teller::start(&cluster::url(&servers[..1]), |event| {
        matches!(event, StoreEvent::MayEvict { .. })
    });
    let evicts = || {
        let snapshot = host.segment.snapshot().expect("a snapshot");
        snapshot.fleet.expect("declared").evicts
    };
    wait_for("the segment to say so", || {
        let _ = take(&host.set);
        evicts()
    });
    let lines = host.lines();
    assert!(
        matches!(&lines[..], [line] if line.contains("allkeys-lfu")),
        "{lines:?}"
    );
}

/// Two hosts share a limit in a cluster. The server that keeps it is killed, and its replica takes over.
fn gets_on_with_the_replica_of_a_cluster(has_password: bool) {
    const RATE: u64 = 1_000;
    const MOST_STEPS: u64 = 30;
    let Some(program) = server_program() else { return };
    let mut servers = cluster::start(&program);
    let key = (0..)
        .map(|number| format!("org/{number}"))
        .find(|key| cluster::index_of(&servers, &store_key(key)) == 1)
        .expect("some key");
    let replica = cluster::add_replica(&program, &servers[1]);
    let mut of_replica = replica.connection();
    if !has_password {
        cluster::remove_passwords(servers.iter().chain([&replica]));
    }
    let lease = FleetLease::new(key).lease(SECOND / 2);
    let limit = Limit::rate("units", RATE, SECOND).burst(RATE).fleet(lease);
    let declaration = declaration(&cluster::url(&servers[..1]), limit);
    let begun = Instant::now();
    let is_over = AtomicBool::new(false);
    let hosts: Vec<_> = (0..2)
        .map(|_| {
            let directory = tempfile::tempdir().expect("a directory");
            let segment = Segment::create(directory.path().join("limits"), &declaration).expect("a segment");
            let credentials = if has_password {
                Credentials::none().with_password(PASSWORD)
            } else {
                Credentials::none()
            };
            let refresher = Refresher::start_with(&segment, credentials, Timeouts::default(), |_| {});
            (segment, refresher.expect("a thread"), directory)
        })
        .collect();
    let each = || {
        hosts
            .iter()
            .map(|(segment, ..)| admitted(&segment.snapshot().expect("a snapshot")))
    };
    let is_served_since = |before: &[u64]| each().zip(before).all(|(now, before)| now > before + 50);
    thread::scope(|scope| {
        for (segment, ..) in &hosts {
            let (set, is_over) = (segment.set("api").expect("declared"), &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    take_all(&set, 5);
                    thread::sleep(Duration::from_millis(1));
                }
            });
        }
        let _end = OnDrop(&is_over);
        wait_for("leases", || is_served_since(&[0, 0]));
        servers[1].kill();
        wait_for("the replica to take over", || {
            let command = redis::cmd("ROLE");
            let role: Vec<redis::Value> = command.query(&mut of_replica).unwrap_or_default();
            role.first() == Some(&redis::Value::BulkString(b"master".to_vec()))
        });
        let failures_of = |(segment, ..): &(Segment, Refresher, _)| {
            let snapshot = segment.snapshot().expect("a snapshot");
            let lease = snapshot.sets[0].limits[0].lease.as_ref().expect("shared");
            lease.counts.failures
        };
        let failures = || hosts.iter().map(failures_of).max();
        let failed = failures();
        let before: Vec<_> = each().collect();
        wait_for("leases of the replica", || is_served_since(&before));
        let steps = failures().zip(failed).map(|(now, before)| now - before);
        assert!(steps < Some(MOST_STEPS), "{steps:?}");
        let (sum, bound) = (
            each().sum::<u64>(),
            RATE as f64 * (1.0 + begun.elapsed().as_secs_f64()),
        );
        println!("admitted {sum} of {bound:.0}; attempts that failed once it had taken over: {steps:?}");
        assert!(sum as f64 <= bound, "{sum} of {bound}");
    });
}

/// Ends whatever waits for this, however the test ends.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn gets_on_with_the_replica_of_a_cluster_with_a_password() {
    gets_on_with_the_replica_of_a_cluster(true);
}

#[test]
fn gets_on_with_the_replica_of_a_cluster_without_a_password() {
    gets_on_with_the_replica_of_a_cluster(false);
}

/// Takes one unit of a key.
fn takes(set: &LimitSet, key: &str) -> bool {
    let request = set.request().for_key(key).expect("a key");
    request.try_acquire().expect("a decision").is_admitted()
}

/// Three hosts and many keys, one of which is busy: each key has its own limit on all hosts together, whichever host
/// its requests go to.
#[test]
fn each_key_has_its_own_limit_on_all_hosts() {
    const HOSTS: usize = 3;
    const CAPACITY: u64 = 600;
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let limit = Limit::calls("calls", CAPACITY, Duration::from_secs(60))
        .burst(20)
        .fleet(FleetLease::new("org/tenants").lease(SECOND).unleased(1));
    let set = SetDeclaration::new("api")
        .keyed(Keyed::new(1000))
        .add_limit(limit);
    let declaration = Declaration::new().fleet_url(server.url()).add_set(set);
    let hosts: [Host; HOSTS] = std::array::from_fn(|_| Host::start(&declaration));
    let sets = hosts.each_ref().map(Host::set);
    // The first unit of a key on a host needs no answer from the store.
    for key in 0..100 {
        assert!(takes(&sets[key % HOSTS], &key.to_string()), "key {key}");
    }
    let begun = Instant::now();
    let mut admitted = 0;
    while begun.elapsed() < 4 * SECOND {
        for set in &sets {
            admitted += u64::from(takes(set, "busy"));
        }
    }
    let elapsed = begun.elapsed();
    let came_back = (elapsed.as_secs_f64() * CAPACITY as f64 / 60.0).ceil() as u64;
    let most = 20 + came_back + HOSTS as u64;
    println!("{admitted} admitted of at most {most}");
    assert!(admitted <= most, "{admitted} of {most}");
    assert!(admitted >= most / 2, "{admitted} of {most}");
    // The other keys are not affected by that, and the store knows none of their names.
    assert!((0..100).all(|key| takes(&sets[(key + 1) % HOSTS], &key.to_string())));
    let lease = |host: &Host| host.snapshot().sets[0].limits[0].lease.clone().expect("shared");
    for host in &hosts {
        wait_for("everything to be reported", || lease(host).keys == Some(0));
        assert_eq!(lease(host).problem, None);
    }
}

#[test]
fn a_key_is_asked_for_while_the_store_goes_and_comes() {
    let Some(program) = server_program() else { return };
    let mut server = Server::start(&program);
    let limit = Limit::calls("calls", 600_000, Duration::from_secs(60))
        .fleet(FleetLease::new("org/tenants").lease(SECOND).outage(Outage::Open));
    let set = SetDeclaration::new("api")
        .keyed(Keyed::new(1000))
        .add_limit(limit);
    let host = Host::start(&Declaration::new().fleet_url(server.url()).add_set(set));
    let set = host.set();
    wait_for("a lease", || takes(&set, "a") && takes(&set, "a"));
    server.kill();
    let lease = || host.snapshot().sets[0].limits[0].lease.clone().expect("shared");
    wait_for("the outage to be known", || {
        takes(&set, "a");
        lease().problem.is_some()
    });
    assert!((0..100).all(|_| takes(&set, "a")), "it goes on");
    // A new key follows the outage policy from its first request on.
    assert!((0..100).all(|_| takes(&set, "b")));
    server.restart();
    wait_for("the store to be found again", || {
        takes(&set, "a");
        lease().problem.is_none()
    });
    wait_for("everything to be reported", || lease().keys == Some(0));
}
