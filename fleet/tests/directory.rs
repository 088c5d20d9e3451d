//! A segment that is a directory is a single host to the store: one process asks for all of its files, over one
//! connection.

mod scene;

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use scene::{PASSWORD, Server, patient, server_program, wait_for};
use shmlimit::declare::FleetLease;
use shmlimit::snapshot::{SegmentReader, SegmentSnapshot};
use shmlimit::{
    Algorithm, Declaration, Limit, LimitSet, OpenOptions, Removal, Segment, SetDeclaration, Window,
};
use shmlimit_fleet::{Credentials, Exchange, Refresher, Timeouts};

const SECOND: Duration = Duration::from_secs(1);
const RATE: u64 = 2_000;
const BURST: u64 = 1_000;

/// The variables that make a test's child a worker: its segment, its store, and the sets that it declares.
const SEGMENT: &str = "SHMLIMIT_FLEET_TEST_SEGMENT";
const STORE: &str = "SHMLIMIT_FLEET_TEST_STORE";
const SETS: &str = "SHMLIMIT_FLEET_TEST_SETS";

fn declaring<'a>(url: &str, sets: impl IntoIterator<Item = &'a str>) -> Declaration {
    let set = |name| {
        let lease = FleetLease::new(format!("org/{name}")).lease(Duration::from_millis(500));
        let limit = Limit::rate("units", RATE, SECOND).burst(BURST).fleet(lease);
        SetDeclaration::new(name).add_limit(limit)
    };
    let declaration = Declaration::new().version(1).fleet_url(url);
    sets.into_iter()
        .fold(declaration, |all, name| all.add_set(set(name)))
}

fn credentials() -> Credentials {
    Credentials::none().with_password(PASSWORD)
}

fn ask_for(segment: &Segment) -> Refresher {
    Refresher::start_with(segment, credentials(), patient(), |_| {}).expect("a thread")
}

fn take(set: &LimitSet) -> bool {
    take_some(set, 1)
}

fn take_some(set: &LimitSet, units: u64) -> bool {
    let request = set.request().with("units", units).expect("declared");
    request.try_acquire().expect("a decision").is_admitted()
}

/// In a test's child: takes units of each of its sets until its input ends.
#[test]
fn worker() {
    let Some(path) = env::var_os(SEGMENT) else { return };
    let [url, names] = [STORE, SETS].map(|variable| env::var(variable).expect("set"));
    let segment = if names.is_empty() {
        Segment::open(&path)
    } else {
        Segment::open_or_create(&path, &declaring(&url, names.split(',')))
    };
    let segment = segment.expect("a segment");
    let soon = Timeouts {
        connect: Duration::from_millis(300),
        answer: Duration::from_millis(300),
    };
    let _refresher = Refresher::start_with(&segment, credentials(), soon, |_| {}).expect("a thread");
    let sets: Vec<LimitSet> = segment.sets().collect();
    // The parent closes the pipe at the end, even if it fails.
    let parent = thread::spawn(|| std::io::stdin().read(&mut [0]));
    while !parent.is_finished() {
        for set in &sets {
            // A set may have been removed, which does not affect the others.
            let request = set.request().with("units", 1).expect("declared");
            let _ = request.try_acquire();
        }
        thread::yield_now();
    }
}

/// A worker that is killed at the end, however the test ends.
struct Worker(Child);

impl Worker {
    fn spawn(path: &Path, url: &str, sets: &str) -> Self {
        let this = env::current_exe().expect("this program");
        let child = Command::new(this)
            .args(["--exact", "worker", "--test-threads", "1"])
            .envs([(STORE, url), (SETS, sets)])
            .env(SEGMENT, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.expect("a process"))
    }

    fn pid(&self) -> u64 {
        u64::from(self.0.id())
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.0.id()).expect("a process id");
        kill(Pid::from_raw(pid), signal).expect("its own child");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn look(path: &Path) -> SegmentSnapshot {
    let reader = SegmentReader::open(path).expect("a segment");
    reader.snapshot().expect("a snapshot")
}

/// The live processes that ask for the sets, or `None` if a set has none.
fn askers(snapshot: &SegmentSnapshot) -> Option<BTreeSet<u64>> {
    let pids = snapshot.sets.iter().map(|set| {
        let duty = set.fleet.as_ref()?.duty.as_ref()?;
        duty.pid.filter(|_| duty.alive)
    });
    pids.collect()
}

/// Waits until one process asks for all sets, and returns it.
fn asker(path: &Path, except: Option<u64>) -> u64 {
    let mut asker = 0;
    wait_for("one process to ask for all sets", || {
        let askers = askers(&look(path)).unwrap_or_default();
        asker = askers.first().copied().unwrap_or(0);
        askers.len() == 1 && Some(asker) != except
    });
    asker
}

fn admitted(snapshot: &SegmentSnapshot, set: &str) -> u64 {
    let set = snapshot.sets.iter().find(|it| it.name == set);
    set.map_or(0, |set| set.limits[0].counts.admitted)
}

/// Waits until each set has admitted something more.
fn wait_for_units(path: &Path) {
    let before = look(path);
    wait_for("units of each set", || {
        let now = look(path);
        let sets = before.sets.iter();
        sets.map(|set| &set.name)
            .all(|name| admitted(&now, name) > admitted(&before, name) + 10)
    });
}

/// The connections to the server, except for the test's own.
fn connections(server: &Server) -> usize {
    let list: String = redis::cmd("CLIENT")
        .arg("LIST")
        .query(&mut server.connection())
        .expect("a list");
    let own = "cmd=client";
    list.lines().filter(|line| !line.contains(own)).count()
}

/// The numbers of the hosts that the store knows for a limit.
fn hosts(server: &Server, limit: &str) -> BTreeSet<String> {
    let fields: Vec<String> = redis::cmd("HKEYS")
        .arg(format!("shmlimit:{{{limit}}}"))
        .query(&mut server.connection())
        .expect("the fields");
    let hosts = fields.iter().filter_map(|field| field.strip_prefix("host:"));
    hosts.map(|host| format!("{host:0>16}")).collect()
}

fn place() -> (tempfile::TempDir, std::path::PathBuf) {
    let root = tempfile::tempdir().expect("a directory");
    let path = root.path().join("app.limits.d");
    (root, path)
}

#[test]
fn one_process_asks_for_all_files_and_another_takes_all_of_them_over() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let (_root, path) = place();
    let begun = Instant::now();
    // All of them start at once, and find no files there.
    let names: Vec<String> = ('a'..='j').map(String::from).collect();
    let sets = names.join(",");
    let mut workers: Vec<Worker> = (0..8)
        .map(|_| Worker::spawn(&path, &server.url(), &sets))
        .collect();
    wait_for("the files", || {
        let reader = SegmentReader::open(&path);
        let snapshot = reader.and_then(|reader| reader.snapshot());
        snapshot.is_ok_and(|all| all.sets.len() == names.len())
    });
    let mut former = None;
    for kills in 0..=3 {
        let asking = asker(&path, former);
        wait_for_units(&path);
        wait_for("one connection", || connections(&server) == 1);
        let snapshot = look(&path);
        assert_eq!(askers(&snapshot), Some(BTreeSet::from([asking])));
        assert_eq!(snapshot.fleet.expect("declared").takeovers, kills);
        let position = workers.iter().position(|worker| worker.pid() == asking);
        let worker = workers.swap_remove(position.expect("one of them"));
        worker.signal(Signal::SIGKILL);
        former = Some(asking);
    }
    let segment = Segment::open(&path).expect("a segment");
    let number = format!("{:08x}", segment.fleet().host() >> 32);
    for set in &names {
        let known = hosts(&server, &format!("org/{set}"));
        assert_eq!(known.len(), 1, "{known:?}");
        assert!(
            known.iter().all(|host| host.starts_with(&number)),
            "{known:?}, {number}"
        );
    }
    drop(workers);
    let elapsed = begun.elapsed().as_secs_f64();
    let snapshot = look(&path);
    for set in &names {
        let most = BURST as f64 + RATE as f64 * elapsed;
        let count = admitted(&snapshot, set);
        println!("{set}: {count} of {most:.0}");
        assert!(count as f64 <= most, "{set}: {count} of {most}");
    }
}

#[test]
fn a_process_that_is_stopped_is_replaced_for_all_files() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let (_root, path) = place();
    let workers: Vec<Worker> = (0..3)
        .map(|_| Worker::spawn(&path, &server.url(), "a,b,c"))
        .collect();
    wait_for("the files", || SegmentReader::open(&path).is_ok());
    let first = asker(&path, None);
    wait_for_units(&path);
    let stopped = workers.iter().find(|worker| worker.pid() == first);
    let stopped = stopped.expect("one of them");
    stopped.signal(Signal::SIGSTOP);
    asker(&path, Some(first));
    wait_for_units(&path);
    // What the stopped process had asked or was told before that has no effect any more.
    stopped.signal(Signal::SIGCONT);
    wait_for_units(&path);
    assert_eq!(askers(&look(&path)).map(|askers| askers.len()), Some(1));
}

#[test]
fn sets_that_come_and_go_get_their_leases_without_a_restart() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let (_root, path) = place();
    let former = Worker::spawn(&path, &server.url(), "a,b");
    wait_for("the files", || SegmentReader::open(&path).is_ok());
    assert_eq!(asker(&path, None), former.pid());
    wait_for_units(&path);

    // A process of the next release declares one more set, which only it can ask for.
    let next = Worker::spawn(&path, &server.url(), "a,b,c");
    wait_for("the next release", || {
        askers(&look(&path)) == Some(BTreeSet::from([former.pid(), next.pid()]))
    });
    wait_for_units(&path);
    assert_eq!(connections(&server), 2);

    // The former release ends, and the next one asks for everything.
    drop(former);
    assert_eq!(asker(&path, None), next.pid());
    wait_for_units(&path);
    wait_for("one connection", || connections(&server) == 1);

    // A set is removed, which does not affect the others, and comes back.
    OpenOptions::new()
        .remove(path.join("b"), Removal::Forced)
        .expect("removed");
    wait_for_units(&path);
    let again = Worker::spawn(&path, &server.url(), "b,c");
    wait_for("the set", || look(&path).sets.len() == 3);
    wait_for_units(&path);
    drop(again);
    assert_eq!(
        asker(&path, None),
        next.pid(),
        "it goes on with what is there now"
    );
}

#[test]
fn a_process_that_opened_everything_there_is_asks_for_what_comes() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let (_root, path) = place();
    let url = server.url();
    let first = Segment::create(&path, &declaring(&url, ["a"])).expect("a segment");
    let asking = Worker::spawn(&path, &url, "");
    assert_eq!(asker(&path, None), asking.pid());
    // This process itself asks for nothing.
    let both = Segment::open_or_create(&path, &declaring(&url, ["a", "b"])).expect("a segment");
    let of_next = both.set("b").expect("declared");
    wait_for("the new set to be asked for", || take(&of_next));
    assert_eq!(asker(&path, None), asking.pid());
    OpenOptions::new()
        .remove(path.join("a"), Removal::Forced)
        .expect("removed");
    let again = Segment::open_or_create(&path, &declaring(&url, ["a"])).expect("a segment");
    let of_first = again.set("a").expect("declared");
    wait_for("the set that was made again to be asked for", || take(&of_first));
    assert_eq!(connections(&server), 1);
    drop(first);
}

/// The set's first request has the same number as the first one before it was removed.
#[test]
fn a_set_that_is_made_again_is_not_granted_the_same_units_again() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let (_root, path) = place();
    let lease = FleetLease::new("org/month")
        .lease(60 * SECOND)
        .cold_wait(Duration::ZERO);
    let limit = Limit::calls("units", 100, Window::Month)
        .algorithm(Algorithm::FixedWindow)
        .fleet(lease);
    let declaration = Declaration::new()
        .fleet_url(server.url())
        .add_set(SetDeclaration::new("month").add_limit(limit));
    let mut units = 0;
    for _ in 0..3 {
        let segment = Segment::create(&path, &declaration).expect("a segment");
        let set = segment.set("month").expect("declared");
        // As many units as are handed out at once.
        if !take_some(&set, 50) {
            // Makes one exchange, like a process that is killed right after it.
            let duty = segment.fleet().try_take_duty().expect("works").expect("free");
            let mut exchange = Exchange::new(1);
            let (pipeline, _) = exchange.pipeline(&duty, duty.ask().expect("works"));
            let answers = server.client().ask(pipeline.requests());
            let problems = exchange.settle(&duty, &pipeline, answers);
            assert!(problems.iter().all(Option::is_none), "{problems:?}");
        }
        if take_some(&set, 50) {
            units += 50;
        }
        Segment::remove(&path, Removal::Forced).expect("removed");
    }
    assert_eq!(units, 50, "half of what is left at once, and then too little");
}

/// While processes of two releases name different stores, each limit is asked for at its own store.
#[test]
fn files_that_name_different_stores_are_asked_for_there() {
    let Some(program) = server_program() else { return };
    let servers = [Server::start(&program), Server::start(&program)];
    let (_root, path) = place();
    for (server, set) in servers.iter().zip(["a", "b"]) {
        Segment::create(path.join(""), &declaring(&server.url(), [set])).expect("a segment");
    }
    let segment = Segment::open(&path).expect("a segment");
    assert_eq!(
        segment.fleet().stores().expect("read"),
        servers.each_ref().map(Server::url)
    );
    let _refresher = ask_for(&segment);
    for (server, set) in servers.iter().zip(["a", "b"]) {
        let units = segment.set(set).expect("declared");
        wait_for("a unit", || take(&units));
        assert_eq!(hosts(server, &format!("org/{set}")).len(), 1);
    }
    assert!(hosts(&servers[0], "org/b").is_empty());
}
