//! Segments to damage: one to which this process is attached, and one to which no process is.
#![allow(unsafe_code, reason = "forks")]

use std::future::Future;
use std::path::{Path, PathBuf};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork, getpid};
use shmlimit::declare::{Align, FleetLease, Scope, WhenFull};
use shmlimit::snapshot::SegmentReader;
use shmlimit::{
    Algorithm, Checked, Declaration, Error, Key, Keyed, Limit, LimitSet, OpenOptions, Outcome, Request,
    Segment, SetDeclaration, Tier, Window,
};

use super::Damage;
use super::image::Image;
use super::operate::{acquire, ask_store, check, inspect, use_everything};

const MINUTE: Duration = Duration::from_secs(60);

/// No other process uses a specimen: its locks are free, unless something was lost.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);

/// A segment that is damaged over and over, and repaired each time.
pub struct Specimen {
    path: PathBuf,
    image: Image,
    /// Attached before the damage is done.
    survivor: Option<Segment>,
}

impl Specimen {
    /// A segment that this process stays attached to.
    pub fn attached(directory: &Path) -> Self {
        let path = directory.join("attached");
        let segment = options().create(&path, &declaration()).expect("a segment");
        leave_traces(&segment);
        Self {
            image: Image::of(&path),
            path,
            survivor: Some(segment),
        }
    }

    /// A segment that no process is attached to, with holds whose owner is gone.
    pub fn abandoned(directory: &Path) -> Self {
        let path = directory.join("abandoned");
        let segment = options().create(&path, &declaration()).expect("a segment");
        leave_traces(&segment);
        drop(segment);
        Self {
            image: Image::of(&path),
            path,
            survivor: None,
        }
    }

    /// What can be damaged.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Damages the segment, looks at it, uses it, and repairs it. Panics if something is not as it must be.
    pub fn endure(&self, damage: &Damage, attach: bool) {
        match &self.survivor {
            Some(segment) => self.endure_attached(segment, damage, attach),
            None => self.endure_abandoned(damage),
        }
        // The thread that sleeps for the futures of this process may hold a lock for a moment.
        let begin = Instant::now();
        while !self.image.locks_are_free() {
            assert!(begin.elapsed() < MINUTE, "a mutex is not as it was");
            thread::yield_now();
        }
        self.image.restore();
    }

    fn endure_attached(&self, segment: &Segment, damage: &Damage, attach: bool) {
        let sets: Vec<LimitSet> = segment.sets().collect();
        // Held across the damage.
        let permits = sets
            .iter()
            .filter_map(|set| acquire(set).ok())
            .collect::<Vec<_>>();
        damage.apply(&self.image);
        let constants = self.image.constants();
        let is_described = self.image.describes_its_sets();
        inspect(segment.snapshot());
        if attach {
            inspect(SegmentReader::open(&self.path).and_then(|reader| reader.snapshot()));
            match options().open(&self.path) {
                Ok(late) => use_everything(&late, Vec::new(), is_described),
                Err(error) => check(Some(error)),
            }
        }
        use_everything(segment, permits, is_described);
        assert!(
            constants == self.image.constants(),
            "wrote what no process may write"
        );
    }

    fn endure_abandoned(&self, damage: &Damage) {
        damage.apply(&self.image);
        let constants = self.image.constants();
        let is_described = self.image.describes_its_sets();
        inspect(SegmentReader::open(&self.path).and_then(|reader| reader.snapshot()));
        match options().open(&self.path) {
            Ok(segment) => {
                inspect(segment.snapshot());
                use_everything(&segment, Vec::new(), is_described);
            }
            Err(error) => check(Some(error)),
        }
        check(options().open_or_create(&self.path, &declaration()).err());
        assert!(
            constants == self.image.constants(),
            "wrote what no process may write"
        );
    }
}

fn options() -> OpenOptions {
    OpenOptions::new().lock_timeout(LOCK_TIMEOUT)
}

/// Declares every algorithm and every kind of limit and set, with few entries, so that each word matters.
fn declaration() -> Declaration {
    let calls = |name: &str, algorithm| Limit::calls(name, 1_000_003, MINUTE).algorithm(algorithm);
    Declaration::new()
        .participants(4)
        .version(7)
        .add_set(
            SetDeclaration::new("every")
                .waiters(2)
                .add_metadata("region", "nowhere")
                .add_limit(calls("gcra", Algorithm::Gcra))
                .add_limit(calls("bucket", Algorithm::TokenBucket).burst(1000))
                .add_limit(calls("leaky", Algorithm::LeakyBucket))
                .add_limit(calls("fixed", Algorithm::FixedWindow))
                .add_limit(calls("first", Algorithm::FixedWindow).align(Align::FirstUse))
                .add_limit(
                    Limit::calls("monthly", 1_000_003, Window::Month)
                        .algorithm(Algorithm::FixedWindow)
                        .utc_offset_minutes(330),
                )
                .add_limit(calls("log", Algorithm::SlidingWindow).entries(3))
                .add_limit(calls("counter", Algorithm::SlidingWindowCounter).buckets(4))
                .add_limit(Limit::budget("budget", 1_000_000, Window::Day))
                .add_limit(Limit::rate("tokens", u64::MAX / 7, MINUTE))
                .add_limit(
                    Limit::rate("decimal", "99.5", MINUTE)
                        .unit("0.001")
                        .algorithm(Algorithm::TokenBucket),
                )
                .add_limit(Limit::concurrency("held", 5).lease(MINUTE)),
        )
        .add_set(
            SetDeclaration::new("holds")
                .holds(4)
                .labels(true)
                .waiters(4)
                .add_limit(Limit::concurrency("a", 5))
                .add_limit(Limit::concurrency("b", u64::MAX)),
        )
        .add_set(
            // Two buckets, and enough keys to fill both.
            SetDeclaration::new("keyed")
                .keyed(table().overrides(true))
                .holds(4)
                .labels(true)
                .waiters(4)
                .add_limit(calls("calls", Algorithm::Gcra))
                .add_limit(Limit::concurrency("a", 5)),
        )
        .add_set(
            SetDeclaration::new("tiered")
                .keyed(table())
                .holds(4)
                .waiters(4)
                .add_limit(calls("calls", Algorithm::Gcra))
                .add_limit(Limit::concurrency("a", 5))
                .add_limit(calls("all", Algorithm::FixedWindow).scope(Scope::AllKeys))
                .add_limit(Limit::concurrency("all places", 5).scope(Scope::AllKeys))
                .add_tier(Tier::new("gold").capacity("calls", 3_000_017)),
        )
        .fleet_url("redis://127.0.0.1:1")
        .add_set(
            SetDeclaration::new("shared")
                .keyed(Keyed::new(40))
                .holds(4)
                .waiters(4)
                .add_limit(
                    calls("calls", Algorithm::Gcra).fleet(FleetLease::new("calls").cold_wait(Duration::ZERO)),
                )
                .add_limit(Limit::concurrency("a", 5)),
        )
}

fn table() -> Keyed {
    Keyed::new(40).when_full(WhenFull::EvictOldest)
}

/// The key that is limited in a keyed set.
pub const KEY: &str = "tenant";

/// The rows of the keyed set, almost all of which have a key.
const ROWS: usize = 64;
const UNUSED_ROWS: usize = 3;

/// Uses the segment, so that few of its words are zero: some holds are in use, some were returned, some were never
/// touched, and a dead process has a place in the queue.
fn leave_traces(segment: &Segment) {
    for set in segment.sets() {
        if set.is_keyed() {
            for number in 2..ROWS - UNUSED_ROWS {
                check(take_by_key(&set, &format!("other {number}")).err());
            }
            check(change_limits(&set).err());
            ask_store(segment);
        }
        for round in 0..3 {
            let Ok(permit) = acquire(&set) else { continue };
            if round > 0 {
                // What this process holds of the segment stays held when the handle is gone.
                std::mem::forget(permit);
            }
        }
    }
    // SAFETY: no other thread of this process holds a lock: the test's main thread only waits for this one to end.
    match unsafe { fork() }.expect("a child") {
        ForkResult::Parent { child } => {
            waitpid(child, None).expect("a child of this process");
        }
        ForkResult::Child => {
            for set in segment.sets() {
                let Ok(mut request) = request(&set) else { continue };
                let _ = request
                    .set_cost("held", 5)
                    .and_then(|()| request.set_cost("a", 5));
                let mut waiting = Box::pin(request.acquire_async(None));
                let _ = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                std::mem::forget(waiting);
            }
            kill(getpid(), Signal::SIGKILL).expect("a process may kill itself");
        }
    }
}

/// Takes something from every limit of a set, or of one of its keys.
pub fn try_set(set: &LimitSet) -> Result<Outcome<'_>, Error> {
    request(set)?.try_acquire()
}

/// Like [`try_set`], but joins the queue, where it waits for next to no time.
pub fn wait_for_set(set: &LimitSet) -> Result<Outcome<'_>, Error> {
    request(set)?.acquire(Duration::from_nanos(1))
}

/// Another key, whose tier or capacities are named by requests.
pub const NAMED_KEY: &str = "named";

/// Puts one key into a tier, or gives it capacities of its own, by name, and another key by a request.
pub fn change_limits(set: &LimitSet) -> Result<(), Error> {
    if let Some(key) = key_of(set)? {
        let named = request(set)?.with("a", 0)?;
        let named = if has_tiers(set) {
            key.assign("gold")?;
            named.with_tier("gold")?
        } else {
            key.override_capacity("calls", 2_000_003)?;
            key.override_capacity("a", 6)?;
            named.with_override("calls", 4_000_037)?.with_override("a", 4)?
        };
        named.for_key(NAMED_KEY)?.check().map(drop)?;
    }
    Ok(())
}

fn has_tiers(set: &LimitSet) -> bool {
    set.name() == "tiered"
}

/// Takes something for a key that nothing else uses, and for the limited key, and gives nothing back.
pub fn take_by_key(set: &LimitSet, key: &str) -> Result<Vec<bool>, Error> {
    let request = set.request().with("calls", 1)?.with("a", 0)?;
    let outcomes = request.check_many(&[key, KEY])?;
    Ok(outcomes.iter().map(Checked::is_admitted).collect())
}

/// Like [`try_set`], but for another key, which is to be limited as declared.
pub fn take_as_declared(set: &LimitSet, key: &str) -> Result<bool, Error> {
    let mut request = request(set)?.with_tier("default")?;
    for name in ["calls", "a"] {
        request.set_override(name, None)?;
    }
    Ok(request.for_key(key)?.try_acquire()?.is_admitted())
}

/// The limited key of a keyed set.
pub fn key_of(set: &LimitSet) -> Result<Option<Key<'_>>, Error> {
    set.is_keyed().then(|| set.key(KEY)).transpose()
}

fn request(set: &LimitSet) -> Result<Request<'_>, Error> {
    let mut request = set.request();
    for (name, cost) in [("tokens", 12_345), ("decimal", 77)] {
        if let Some(index) = set.limit_index(name) {
            request.set_cost(index, cost)?;
        }
    }
    if set.is_keyed() {
        request.set_key(KEY)?;
    }
    Ok(request.label("größer als ein Wort"))
}
