//! Limits that change while the segment is in use.

mod process;

use std::time::Duration;

use process::{PATIENCE, eventually};
use shmlimit::{
    Algorithm, Declaration, Error, Keyed, Limit, LimitSet, OpenOptions, Outcome, Permit, Segment,
    SetDeclaration, VirtualClock,
};
use tempfile::TempDir;

const MINUTE: Duration = Duration::from_secs(60);
const NEW_YEAR: Duration = Duration::from_secs(1_767_225_600);
const NANOSECOND: Duration = Duration::from_nanos(1);

struct Live {
    _folder: TempDir,
    clock: VirtualClock,
    segment: Segment,
    set: LimitSet,
    /// Another attachment to the same file, as another process has it.
    other: LimitSet,
}

fn declare(set: SetDeclaration) -> Declaration {
    Declaration::new().set(set)
}

fn plain(limit: Limit) -> SetDeclaration {
    SetDeclaration::new("api").limit(limit)
}

fn keyed(limit: Limit) -> SetDeclaration {
    plain(limit).keyed(Keyed::new(1000))
}

impl Live {
    fn new(set: SetDeclaration) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("limits");
        let clock = VirtualClock::new(NEW_YEAR);
        let mut options = OpenOptions::new();
        options = options.virtual_clock(&clock);
        let segment = options.create(&path, &declare(set)).expect("a segment");
        let opened = options.open(&path).expect("opens");
        Self {
            _folder: folder,
            clock,
            set: segment.set("api").expect("declared"),
            other: opened.set("api").expect("declared"),
            segment,
        }
    }

    fn apply(&self, set: SetDeclaration) -> Vec<String> {
        let changes = self.segment.apply(&declare(set)).expect("applies");
        changes.iter().map(ToString::to_string).collect()
    }

    fn pass(&self, time: Duration) {
        self.clock.advance_to(self.clock.now() + time);
    }
}

fn ask(set: &LimitSet, cost: u64) -> Outcome<'_> {
    let request = set.request().with("units", cost).expect("declared");
    set.try_acquire(&request).expect("a decision")
}

fn take(set: &LimitSet, cost: u64) -> Permit<'_> {
    ask(set, cost).permit().expect("there is room")
}

fn remaining(set: &LimitSet, key: Option<&str>) -> u64 {
    let request = set.request().with("units", 0).expect("declared");
    match key {
        Some(key) => set.key(key).expect("a key").peek(&request).expect("works")[0].remaining,
        None => set.peek(&request).expect("works")[0].remaining,
    }
}

#[test]
fn a_lease_that_comes_later_does_not_take_at_once_what_is_held() {
    let lease = Duration::from_secs(30);
    let live = Live::new(plain(Limit::concurrency("units", 2)));
    let held = take(&live.set, 1);
    live.pass(10 * MINUTE);
    live.apply(plain(Limit::concurrency("units", 2).lease(lease)));
    assert!(!ask(&live.other, 2).is_admitted());
    live.pass(lease - NANOSECOND);
    assert!(!ask(&live.other, 2).is_admitted());
    assert!(!held.reclaimed());
    live.pass(NANOSECOND);
    assert!(ask(&live.other, 2).is_admitted(), "it was not renewed in time");
    assert!(held.reclaimed());
}

#[test]
fn a_lease_that_ran_out_in_another_life_of_a_hold_says_nothing_of_this_one() {
    let lease = Duration::from_secs(30);
    let live = Live::new(plain(Limit::concurrency("units", 1).lease(lease)));
    let expired = take(&live.set, 1);
    live.pass(lease);
    live.segment.recover().expect("works");
    assert!(expired.reclaimed());
    drop(expired);
    live.apply(plain(Limit::concurrency("units", 1)));
    let third = take(&live.set, 1);
    assert!(!third.reclaimed());
    live.pass(10 * MINUTE);
    live.apply(plain(Limit::concurrency("units", 1).lease(lease)));
    third.heartbeat().expect("it is held still");
    assert!(!third.reclaimed());
    assert!(!ask(&live.other, 1).is_admitted());
}

#[test]
fn who_asks_for_more_than_a_lowered_capacity_is_told_so_whatever_it_knew_before() {
    let of = |capacity| plain(Limit::calls("units", capacity, MINUTE));
    let too_much = |error: Option<Error>| match error {
        Some(Error::NeverAdmissible { cost, most, .. }) => assert_eq!((cost, most), (9, 5)),
        other => panic!("{other:?}"),
    };
    for ask in [
        (|set, request| set.try_acquire(request).err()) as fn(&LimitSet, &shmlimit::Request) -> Option<Error>,
        |set, request| set.acquire(request, None).err(),
        |set, request| set.check(request).err(),
        |set, request| set.reserve(request, 60 * MINUTE).err(),
    ] {
        let live = Live::new(of(10));
        let request = live.other.request().with("units", 9).expect("declared");
        assert!(live.other.check(&request).expect("works").is_admitted());
        live.apply(of(5));
        too_much(ask(&live.other, &request));
    }
}
