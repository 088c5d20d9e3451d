//! The recipes of docs/rollouts.md, each carried out by four workers under load: none of them makes a request fail, and
//! the limits hold.

use std::convert::Infallible;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::scene;
use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, Response};
use shmlimit::declare::{Align, OnMismatch};
use shmlimit::layer::{Demand, LimitLayer};
use shmlimit::{Algorithm, Limit, OpenOptions, Segment, SetDeclaration};
use tower::{Layer, ServiceExt, service_fn};

const HOUR: Duration = Duration::from_secs(3600);
const WORKERS: usize = 4;

/// Requests that each worker works on at once: together, more than the limit on those in flight.
const TASKS: usize = 2;
const IN_FLIGHT: u64 = 3;

/// How long to wait for a place in flight: it is free in a moment, but never if the calls of the hour are used up.
const WAIT: Duration = Duration::from_secs(5);

/// What all processes of a test share.
const TO_SEND: usize = 0;
const SERVED: usize = 1;
const REFUSED: usize = 2;
const FAILED: usize = 3;
const WORKING: usize = 4;
const MAX_WORKING: usize = 5;
const LEAVING: usize = 6;
const SERVED_BY: usize = LEAVING + 2 * WORKERS;
const WORDS: usize = SERVED_BY + 2 * WORKERS;

type Status = Pin<Box<dyn Future<Output = u16>>>;

/// Sends one request. Returns the status.
type Ask<'a> = Box<dyn Fn() -> Status + 'a>;

/// A window that starts with its first use: an hour of the clock might end in the middle of a test.
fn of_the_hour(name: &str, capacity: u64) -> Limit {
    Limit::calls(name, capacity, HOUR)
        .algorithm(Algorithm::FixedWindow)
        .align(Align::FirstUse)
}

fn requests(capacity: u64) -> Limit {
    of_the_hour("requests", capacity)
}

fn api(limits: impl IntoIterator<Item = Limit>) -> SetDeclaration {
    let in_flight = Limit::concurrency("in_flight", IN_FLIGHT);
    let set = SetDeclaration::new("api").add_limit(in_flight);
    limits.into_iter().fold(set, SetDeclaration::add_limit)
}

fn open(path: &Path, version: u64, set: SetDeclaration) -> Segment {
    let declaration = scene::declaration().version(version).add_set(set);
    let options = OpenOptions::new().on_mismatch(OnMismatch::Apply);
    options.open_or_create(path, &declaration).expect("a segment")
}

fn layer(segment: &Segment) -> LimitLayer<Demand> {
    let set = segment.sets().next().expect("one is declared");
    LimitLayer::new(Demand::new(set.request()).expect("no rates")).wait(WAIT)
}

/// The work of a request, which takes a moment.
async fn work(words: &[AtomicU64]) -> Result<Response<Full<Bytes>>, Infallible> {
    let working = words[WORKING].fetch_add(1, Ordering::SeqCst) + 1;
    words[MAX_WORKING].fetch_max(working, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(2)).await;
    words[WORKING].fetch_sub(1, Ordering::SeqCst);
    Ok(Response::new(Full::from("done")))
}

/// Requests pass the limits of one segment.
fn behind(segment: &Segment, words: &'static [AtomicU64]) -> Ask<'static> {
    let service = layer(segment).layer(service_fn(move |_: Request<()>| work(words)));
    Box::new(move || {
        let service = service.clone();
        Box::pin(async move {
            let Ok(response) = service.oneshot(Request::new(())).await;
            response.status().as_u16()
        })
    })
}

/// Requests pass the limits of two segments, those of the outer one first.
fn behind_both(outer: &Segment, inner: &Segment, words: &'static [AtomicU64]) -> Ask<'static> {
    let service = layer(inner).layer(service_fn(move |_: Request<()>| work(words)));
    let service = layer(outer).layer(service);
    Box::new(move || {
        let service = service.clone();
        Box::pin(async move {
            let Ok(response) = service.oneshot(Request::new(())).await;
            response.status().as_u16()
        })
    })
}

/// Sends requests while there are any to send, until the worker is to leave.
async fn send(ask: &Ask<'_>, words: &[AtomicU64], number: usize) {
    while words[LEAVING + number].load(Ordering::SeqCst) == 0 {
        let take = |left: u64| left.checked_sub(1);
        if words[TO_SEND]
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
            .is_err()
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        }
        let counted = match ask().await {
            200 => SERVED,
            429 | 503 => REFUSED,
            _ => FAILED,
        };
        words[counted].fetch_add(1, Ordering::SeqCst);
        words[SERVED_BY + number].fetch_add(1, Ordering::SeqCst);
    }
}

/// Four workers, all of one release at first.
struct Crew {
    words: &'static [AtomicU64],
    workers: Vec<Option<Child>>,
    sent: u64,
}

impl Crew {
    fn start(release: &dyn Fn(&'static [AtomicU64]) -> Ask<'static>) -> Self {
        let mut crew = Self {
            // Kept until the end of the process, which belongs to the test.
            words: Box::leak(Box::new(SharedWords::new(WORDS))),
            workers: (0..2 * WORKERS).map(|_| None).collect(),
            sent: 0,
        };
        for number in 0..WORKERS {
            crew.hire(number, release);
        }
        crew
    }

    fn hire(&mut self, number: usize, release: &dyn Fn(&'static [AtomicU64]) -> Ask<'static>) {
        let words = self.words;
        self.workers[number] = Some(Child::fork(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            let ask = release(words);
            runtime.block_on(async {
                const { assert!(TASKS == 2) };
                tokio::join!(send(&ask, words, number), send(&ask, words, number));
            });
        }));
    }

    /// Replaces the workers one by one with those of another release, while requests keep coming.
    fn roll_out(&mut self, release: &dyn Fn(&'static [AtomicU64]) -> Ask<'static>) {
        for number in 0..WORKERS {
            let next = number + WORKERS;
            self.more(10);
            self.hire(next, release);
            while self.of(SERVED_BY + next) == 0 {
                self.send(4);
            }
            self.more(10);
            self.words[LEAVING + number].store(1, Ordering::SeqCst);
            self.workers[number].take().expect("it works").succeed();
            self.wait_until_answered();
        }
    }

    fn more(&mut self, requests: u64) {
        self.sent += requests;
        self.words[TO_SEND].fetch_add(requests, Ordering::SeqCst);
    }

    fn wait_until_answered(&self) {
        eventually("all requests are answered", || {
            self.of(SERVED) + self.of(REFUSED) + self.of(FAILED) == self.sent
        });
    }

    fn send(&mut self, requests: u64) {
        self.more(requests);
        self.wait_until_answered();
    }

    fn of(&self, word: usize) -> u64 {
        self.words[word].load(Ordering::SeqCst)
    }

    /// Checks that every request so far was served, within the limit on those in flight.
    fn assert_all_served(&self) {
        let counts = [SERVED, REFUSED, FAILED].map(|word| self.of(word));
        assert_eq!(counts, [self.sent, 0, 0]);
        assert!(self.of(MAX_WORKING) <= IN_FLIGHT, "too many in flight");
    }

    /// Sends more requests than the hour has left: in total, as many are served as the limit allows.
    fn assert_limit_holds_at(&mut self, capacity: u64) {
        self.send(capacity - self.of(SERVED) + 8);
        let counts = [SERVED, REFUSED, FAILED].map(|word| self.of(word));
        assert_eq!(counts, [capacity, self.sent - capacity, 0]);
        assert!(self.of(MAX_WORKING) <= IN_FLIGHT, "too many in flight");
    }

    fn end(mut self) {
        for number in 0..2 * WORKERS {
            self.words[LEAVING + number].store(1, Ordering::SeqCst);
        }
        for worker in self.workers.iter_mut().filter_map(Option::take) {
            worker.succeed();
        }
    }
}

#[test]
fn a_changed_number_is_rolled_out_by_a_higher_version() {
    let test = "rollouts::a_changed_number_is_rolled_out_by_a_higher_version";
    in_own_process(test, TIMEOUT, |directory| {
        let path = directory.join("limits");
        let release = |version, capacity| {
            let path = path.clone();
            move |words| behind(&open(&path, version, api([requests(capacity)])), words)
        };
        let mut crew = Crew::start(&release(1, 400));
        crew.send(100);
        crew.roll_out(&release(2, 500));
        crew.assert_all_served();
        // What was counted before still counts.
        crew.assert_limit_holds_at(500);
        crew.end();
    });
}

#[test]
fn an_added_limit_is_rolled_out_in_a_segment_of_its_own_beside_the_former() {
    let test = "rollouts::an_added_limit_is_rolled_out_in_a_segment_of_its_own_beside_the_former";
    in_own_process(test, TIMEOUT, |directory| {
        let (path, added) = (directory.join("limits"), directory.join("limits.added"));
        let former = {
            let path = path.clone();
            move |words| behind(&open(&path, 1, api([requests(1000)])), words)
        };
        let (path_again, added_again) = (path.clone(), added.clone());
        let latter = move |words| {
            let of_bursts = SetDeclaration::new("bursts").add_limit(of_the_hour("burst", 600));
            let added = open(&added_again, 1, of_bursts);
            behind_both(&open(&path_again, 1, api([requests(1000)])), &added, words)
        };
        let mut crew = Crew::start(&former);
        crew.send(100);
        crew.roll_out(&latter);
        crew.assert_all_served();
        // Workers of both releases counted in the old segment, and those of the new release in the added one as well.
        let counted = |path: &Path| {
            Segment::open(path)
                .expect("a segment")
                .snapshot()
                .expect("a copy")
        };
        assert_eq!(counted(&path).sets[0].counts.admitted, crew.sent);
        let by_latter = counted(&added).sets[0].counts.admitted;
        assert!(0 < by_latter && by_latter < crew.sent);
        let served_before = crew.sent - by_latter;
        crew.assert_limit_holds_at(served_before + 600);
        crew.end();
    });
}

#[test]
fn a_limit_is_taken_out_by_a_shadow_first_and_dropped_when_no_process_uses_the_segment() {
    let test =
        "rollouts::a_limit_is_taken_out_by_a_shadow_first_and_dropped_when_no_process_uses_the_segment";
    in_own_process(test, TIMEOUT, |directory| {
        let path = directory.join("limits");
        let daily = |shadow| of_the_hour("daily", 150).shadow(shadow);
        let release = |version, shadow| {
            let path = path.clone();
            move |words| {
                let set = api([requests(600), daily(shadow)]);
                behind(&open(&path, version, set), words)
            }
        };
        let mut crew = Crew::start(&release(1, false));
        crew.send(100);
        // From its first worker on, the new release lets through what the limit would have refused.
        crew.roll_out(&release(2, true));
        crew.send(100);
        crew.assert_all_served();
        crew.assert_limit_holds_at(600);
        crew.end();
        // At the next full stop, the segment is recreated without the limit.
        let without = scene::declaration().version(3).add_set(api([requests(600)]));
        let options = OpenOptions::new().on_mismatch(OnMismatch::RecreateIfUnused);
        let segment = options.open_or_create(&path, &without).expect("recreated");
        let names: Vec<_> = segment
            .set("api")
            .expect("declared")
            .limits()
            .map(str::to_owned)
            .collect();
        assert_eq!(names, ["in_flight", "requests"]);
    });
}

#[test]
fn a_release_with_other_limits_takes_over_where_the_segment_is_replaced_by_force() {
    let test = "rollouts::a_release_with_other_limits_takes_over_where_the_segment_is_replaced_by_force";
    in_own_process(test, TIMEOUT, |directory| {
        let path = directory.join("limits");
        let former = {
            let path = path.clone();
            move |words| behind(&open(&path, 1, api([requests(400)])), words)
        };
        let mut crew = Crew::start(&former);
        crew.send(100);
        // The next segment is made beside the old one and moved over it, so that one exists at every moment.
        let next = directory.join("limits.next");
        let burst = of_the_hour("burst", 300);
        drop(open(&next, 2, api([requests(400), burst])));
        crew.more(50);
        std::fs::rename(&next, &path).expect("moved");
        crew.wait_until_answered();
        let segment = Segment::open(&path).expect("the next");
        let admitted = || segment.snapshot().expect("a copy").sets[0].counts.admitted;
        // All workers, none of which was restarted, have moved over within two seconds.
        while admitted() < 100 {
            crew.send(4);
        }
        let counts = [REFUSED, FAILED].map(|word| crew.of(word));
        assert_eq!(counts, [0, 0]);
        crew.end();
    });
}
