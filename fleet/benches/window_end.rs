//! What happens when a window ends, which it does on all hosts at the same instant: how often hosts ask the store, how
//! long requests wait, and how many are refused.
//!
//! `cargo bench --package shmlimit-fleet --bench window_end`, on an idle machine that has redis-server or valkey-server.

#[path = "../tests/scene/mod.rs"]
mod scene;

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use scene::{PASSWORD, Server, patient, server_program};
use shmlimit::declare::FleetLease;
use shmlimit::{Algorithm, Declaration, Limit, Outcome, RefusalReason, Segment, SetDeclaration};
use shmlimit_fleet::{Credentials, Refresher};

const WINDOW: Duration = Duration::from_secs(4);
const WINDOWS: u32 = 4;
/// Time between two requests of a host.
const PAUSE: Duration = Duration::from_millis(2);
/// The length of a part of the window, in which everything is counted together.
const PART: Duration = Duration::from_millis(250);
const PARTS: usize = (WINDOW.as_millis() / PART.as_millis()) as usize;

/// What happened in one part of all windows.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    asked: u64,
    admitted: u64,
    /// Because the window was used up.
    used_up: u64,
    /// Because nothing was leased, although units were left.
    unleased: u64,
    waited: Duration,
    longest: Duration,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.asked += other.asked;
        self.admitted += other.admitted;
        self.used_up += other.used_up;
        self.unleased += other.unleased;
        self.waited += other.waited;
        self.longest = self.longest.max(other.longest);
    }
}

/// The current part of the window.
fn part() -> usize {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let in_window = now.as_millis() % WINDOW.as_millis();
    (in_window / PART.as_millis()) as usize
}

/// Takes units of a host until `end`. Returns the counts of each part, and the most round trips in any second.
fn use_host(segment: &Segment, refresher: &Refresher, end: Instant) -> (Vec<Counts>, u64) {
    let set = segment.set("api").expect("declared");
    let mut parts = vec![Counts::default(); PARTS];
    let mut trips = refresher.counts().round_trips;
    // When each of the latest round trips was noticed.
    let mut latest: Vec<Instant> = Vec::new();
    let mut most = 0;
    while Instant::now() < end {
        let begun = Instant::now();
        let outcome = set.request().try_acquire().expect("a decision");
        let waited = begun.elapsed();
        let counts = &mut parts[part()];
        match outcome {
            Outcome::Admitted(_) => counts.admitted += 1,
            Outcome::Refused(refusal) if refusal.reason() == RefusalReason::Lease => counts.used_up += 1,
            Outcome::Refused(_) => counts.unleased += 1,
        }
        counts.waited += waited;
        counts.longest = counts.longest.max(waited);
        let now = refresher.counts().round_trips;
        counts.asked += now - trips;
        for _ in trips..now {
            latest.push(begun);
        }
        trips = now;
        latest.retain(|at| begun.duration_since(*at) < Duration::from_secs(1));
        most = most.max(latest.len() as u64);
        thread::sleep(PAUSE);
    }
    (parts, most)
}

/// Lets so many hosts use so many percent of a window.
fn run(server: &Server, hosts: u64, percent: u64) {
    let per_window = WINDOW.as_millis() as u64 / PAUSE.as_millis() as u64;
    let capacity = hosts * per_window * 100 / percent;
    let limit = Limit::calls("calls", capacity, WINDOW)
        .algorithm(Algorithm::FixedWindow)
        .fleet(FleetLease::new(format!("bench/{hosts}/{percent}")));
    let declaration = Declaration::new()
        .participants(2)
        .fleet_url(server.url())
        .add_set(SetDeclaration::new("api").add_limit(limit));
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let all: Vec<(Segment, Refresher)> = (0..hosts)
        .map(|host| {
            let path = directory.path().join(host.to_string());
            let segment = Segment::create(path, &declaration).expect("a segment");
            let credentials = Credentials::none().with_password(PASSWORD);
            let refresher = Refresher::start_with(&segment, credentials, patient(), |_| {});
            (segment, refresher.expect("a thread"))
        })
        .collect();
    let end = Instant::now() + WINDOW * WINDOWS;
    let sum = Mutex::new((vec![Counts::default(); PARTS], 0_u64));
    thread::scope(|scope| {
        for (segment, refresher) in &all {
            scope.spawn(|| {
                let (parts, most) = use_host(segment, refresher, end);
                let mut sum = sum.lock().expect("no thread panics");
                for (sum, counts) in sum.0.iter_mut().zip(parts) {
                    sum.add(counts);
                }
                sum.1 = sum.1.max(most);
            });
        }
    });
    let (parts, most) = sum.into_inner().expect("no thread panics");
    println!("\n{hosts} hosts want {percent} % of windows of {WINDOW:?}, {WINDOWS} windows:\n");
    println!(
        "| ms of the window | questions per host | admitted | refused, used up | refused, not leased | mean, µs | longest, ms |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|");
    // The end of the window, and then its beginning.
    let order = (PARTS - 4..PARTS).chain(0..4);
    for index in order {
        let counts = parts[index];
        let requests = counts.admitted + counts.used_up + counts.unleased;
        println!(
            "| {} to {} | {:.1} | {} | {} | {} | {} | {:.1} |",
            index as u128 * PART.as_millis(),
            (index as u128 + 1) * PART.as_millis(),
            counts.asked as f64 / hosts as f64 / f64::from(WINDOWS),
            counts.admitted,
            counts.used_up,
            counts.unleased,
            counts.waited.as_micros() / u128::from(requests.max(1)),
            counts.longest.as_secs_f64() * 1e3,
        );
    }
    println!("\nThe most questions of one host in any second: {most}, of at most 20.");
}

fn main() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    for (hosts, percent) in [(20, 50), (20, 200), (100, 50)] {
        run(&server, hosts, percent);
    }
}
