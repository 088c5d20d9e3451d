//! The cost of a decision on a limit that hosts share, compared with the same limit on one host, with a store that is
//! asked for each decision, and with the store gone.
//!
//! `cargo bench --package shmlimit-fleet --bench leased`, on an idle machine that has redis-server or valkey-server.

#[path = "../tests/scene/mod.rs"]
mod scene;

use std::hint::black_box;
use std::time::{Duration, Instant};

use redis::Script;
use scene::{PASSWORD, Server, patient, server_program};
use shmlimit::declare::FleetLease;
use shmlimit::{Declaration, Limit, Request, Segment, SetDeclaration};
use shmlimit_fleet::{Credentials, Refresher};

const ROUNDS: usize = 21;
/// How long each variant runs per round.
const TURN: Duration = Duration::from_millis(50);
/// Single decisions that are timed, with the store and without.
const TIMED: usize = 1_000_000;

/// More per second than can be asked for.
const CAPACITY: u64 = 1 << 40;
const SECOND: Duration = Duration::from_secs(1);
/// Longer than the benchmark runs without the store.
const LEASE: Duration = Duration::from_secs(60);

const ASKED_EACH_TIME: &str = include_str!("asked_each_time.lua");

fn limit() -> Limit {
    Limit::calls("calls", CAPACITY, SECOND)
}

fn check(request: &Request<'_>) -> bool {
    let checked = black_box(request).check();
    checked.expect("a decision").is_admitted()
}

/// Nanoseconds per run, averaged over one turn.
fn time_of_one(mut run: impl FnMut() -> bool) -> f64 {
    let (begun, mut times) = (Instant::now(), 0_u64);
    while begun.elapsed() < TURN {
        for _ in 0..64 {
            assert!(run(), "refused");
        }
        times += 64;
    }
    begun.elapsed().as_nanos() as f64 / times as f64
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// The 99th and the 99.9th percentile of single decisions in nanoseconds, including the cost of reading the clock.
fn percentiles(request: &Request<'_>) -> [u128; 2] {
    let mut taken: Vec<u128> = (0..TIMED)
        .map(|_| {
            let begun = Instant::now();
            assert!(check(request), "refused");
            begun.elapsed().as_nanos()
        })
        .collect();
    taken.sort_unstable();
    [TIMED * 99 / 100, TIMED * 999 / 1000].map(|index| taken[index])
}

fn main() {
    let Some(program) = server_program() else { return };
    let mut server = Server::start(&program);
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let open = |name: &str, declaration: Declaration| {
        let segment = Segment::create(directory.path().join(name), &declaration).expect("a segment");
        let set = segment.set("api").expect("declared");
        (segment, set)
    };
    let api = |limit| SetDeclaration::new("api").add_limit(limit);
    let (_own, own) = open("own", Declaration::new().add_set(api(limit())));
    let of_own = own.request();
    let shared = limit().fleet(FleetLease::new("bench/calls").lease(LEASE));
    let shared = Declaration::new().fleet_url(server.url()).add_set(api(shared));
    let (segment, leased) = open("leased", shared);
    let of_leased = leased.request();
    let credentials = Credentials::none().with_password(PASSWORD);
    let refresher = Refresher::start_with(&segment, credentials, patient(), |_| {}).expect("a thread");
    scene::wait_for("a lease", || check(&of_leased));

    let url = format!("redis://:{PASSWORD}@127.0.0.1:{}/", server.port);
    let client = redis::Client::open(url).expect("a URL");
    let mut connection = client.get_connection().expect("a connection");
    let script = Script::new(ASKED_EACH_TIME);
    let mut ask = || {
        let answer: i64 = script
            .key("asked")
            .arg(1)
            .arg(60_000_000)
            .invoke(&mut connection)
            .expect("an answer");
        answer == 1
    };

    let mut times = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        times[0].push(time_of_one(|| check(&of_own)));
        times[1].push(time_of_one(|| check(&of_leased)));
        times[2].push(time_of_one(&mut ask));
    }
    let [own_time, leased_time, asked_time] = times.map(median);
    println!("{ROUNDS} interleaved rounds of {TURN:?}, medians.\n");
    println!("| a check of one limit | ns | beside the leased one |");
    println!("|---|---:|---:|");
    for (what, time) in [
        ("of this host alone", own_time),
        ("leased from a store", leased_time),
        ("in the store, one EVALSHA each", asked_time),
    ] {
        println!("| {what} | {time:.1} | {:.2} |", time / leased_time);
    }

    let with_store = percentiles(&of_leased);
    server.kill();
    scene::wait_for("the store to be missed", || refresher.problem().is_some());
    let without = percentiles(&of_leased);
    println!("\n{TIMED} single checks of the leased limit, with the clock read before and after.\n");
    println!("| | 99th percentile, ns | 99.9th |");
    println!("|---|---:|---:|");
    for (when, [p99, p999]) in [("with the store", with_store), ("while it is gone", without)] {
        println!("| {when} | {p99} | {p999} |");
    }

    println!("\n| what | aim | measured |");
    println!("|---|---:|---:|");
    println!(
        "| leased beside the same limit of one host | 1.1x or less | {:.2}x |",
        leased_time / own_time
    );
    println!(
        "| EVALSHA beside leased | 300x or more | {:.0}x |",
        asked_time / leased_time
    );
    println!(
        "| 99th percentile without the store beside with it | 1x | {:.2}x |",
        without[0] as f64 / with_store[0] as f64
    );
}
