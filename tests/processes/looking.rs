//! A process that only looks leaves out what dead processes hold, says how much that is, and changes nothing.

use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::scene;
use crate::scene::expect_permit;
use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use nix::sys::signal::Signal;
use nix::unistd::pause;
use shmlimit::snapshot::{Forecast, SegmentReader, SegmentSnapshot};
use shmlimit::{
    Algorithm, Declaration, Keyed, Limit, LimitSet, OpenOptions, Permit, Request, Segment, SetDeclaration,
    Verdict, VirtualClock,
};

const HOUR: Duration = Duration::from_secs(3600);

fn limits(set: SetDeclaration) -> Declaration {
    let tokens = Limit::rate("tokens", 1_000, HOUR).algorithm(Algorithm::TokenBucket);
    let set = set
        .add_limit(Limit::concurrency("slots", 2))
        .add_limit(tokens)
        .add_limit(Limit::rate("calls", 100, HOUR));
    scene::declaration().participants(8).add_set(set)
}

fn request(set: &LimitSet) -> Request<'_> {
    let request = set.request().with("slots", 2).expect("declared");
    let request = request.with("tokens", 300).expect("declared");
    request.with("calls", 30).expect("declared")
}

/// A child that holds what `take` returns until it is killed.
fn holder(take: impl FnOnce()) -> Child {
    let words = SharedWords::new(1);
    let child = Child::fork(|| {
        take();
        words[0].store(1, Ordering::SeqCst);
        loop {
            pause();
        }
    });
    eventually("the child holds", || words[0].load(Ordering::SeqCst) == 1);
    child
}

/// For each limit, in the order of the declaration: what remains, and what dead processes hold.
type Standings = Vec<(u64, u64)>;

fn of_verdicts(verdicts: &[Verdict<'_>]) -> Standings {
    verdicts.iter().map(|it| (it.remaining, it.of_dead)).collect()
}

fn of_forecasts(forecasts: &[Forecast<'_>]) -> Standings {
    forecasts.iter().map(|it| (it.spendable, it.of_dead)).collect()
}

fn of_snapshot(snapshot: &SegmentSnapshot) -> (Standings, u64, u64) {
    let set = &snapshot.sets[0];
    let standings = set.limits.iter().map(|it| (it.remaining, it.of_dead)).collect();
    (standings, set.active, set.of_dead)
}

fn bytes(path: &Path) -> Vec<u8> {
    fs::read(path).expect("the file")
}

/// Tokens trickle back; rounding does not matter here.
fn in_tens(standings: Standings) -> Standings {
    let tens = |(remaining, of_dead): (u64, u64)| (remaining / 10 * 10, of_dead.div_ceil(10) * 10);
    standings
        .into_iter()
        .enumerate()
        .map(|(limit, it)| if limit == 1 { tens(it) } else { it })
        .collect()
}

#[test]
fn a_killed_holder_is_left_out_of_every_look_which_changes_nothing() {
    let test = "looking::a_killed_holder_is_left_out_of_every_look_which_changes_nothing";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        let segment = Segment::create(&path, &limits(SetDeclaration::new("api"))).expect("a segment");
        let api = segment.set("api").expect("declared");
        let request = request(&api);
        let child = holder(|| {
            std::mem::forget(expect_permit(request.try_acquire()));
        });
        // A live process loses nothing, whether it runs or is stopped.
        for signal in [Signal::SIGCONT, Signal::SIGSTOP] {
            child.send(signal);
            let verdicts = request.peek().expect("works");
            assert_eq!(in_tens(of_verdicts(&verdicts)), [(0, 0), (700, 0), (70, 0)]);
            assert!(!verdicts[0].admitted);
            let (standings, active, of_dead) = of_snapshot(&segment.snapshot().expect("a copy"));
            assert_eq!(in_tens(standings), [(0, 0), (700, 0), (70, 0)]);
            assert_eq!((active, of_dead), (1, 0));
        }
        child.kill();

        let before = bytes(&path);
        // What it had reserved of a rate stays charged.
        let expected = [(2, 2), (700, 0), (70, 0)];
        let verdicts = request.peek().expect("works");
        assert!(verdicts.iter().all(|verdict| verdict.admitted), "{verdicts:?}");
        assert_eq!(in_tens(of_verdicts(&verdicts)), expected);
        assert_eq!(in_tens(of_forecasts(&api.forecast().expect("works"))), expected);
        for snapshot in [
            segment.snapshot().expect("a copy"),
            SegmentReader::open(&path)
                .expect("a segment")
                .snapshot()
                .expect("a copy"),
        ] {
            let (standings, active, of_dead) = of_snapshot(&snapshot);
            assert_eq!(in_tens(standings), expected);
            assert_eq!((active, of_dead), (0, 1));
            assert!(!snapshot.sets[0].holds[0].owner_alive);
        }
        assert!(bytes(&path) == before, "a look changed the file");

        let permit = request.try_acquire().expect("works").into_result();
        assert!(permit.is_ok(), "a look said that it would be admitted");
        let (standings, active, of_dead) = of_snapshot(&segment.snapshot().expect("a copy"));
        assert_eq!(in_tens(standings), [(0, 0), (400, 0), (40, 0)]);
        assert_eq!((active, of_dead), (1, 0));
    });
}

#[test]
fn a_killed_holder_of_a_key_is_left_out_of_that_key_only() {
    let test = "looking::a_killed_holder_of_a_key_is_left_out_of_that_key_only";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        let set = SetDeclaration::new("api").keyed(Keyed::new(100)).holds(8);
        let segment = Segment::create(&path, &limits(set)).expect("a segment");
        let api = segment.set("api").expect("declared");
        let [dead, live] = ["dead", "live"].map(|key| request(&api).for_key(key).expect("keyed"));
        let child = holder(|| {
            std::mem::forget(expect_permit(dead.try_acquire()));
        });
        let _held = expect_permit(live.try_acquire());
        child.kill();

        let before = bytes(&path);
        assert_eq!(dead.peek().expect("works")[0].of_dead, 2);
        assert!(dead.peek().expect("works").iter().all(|it| it.admitted));
        assert_eq!(
            of_forecasts(&api.key("dead").expect("keyed").forecast().expect("works"))[0],
            (2, 2)
        );
        assert_eq!(of_verdicts(&live.peek().expect("works"))[0], (0, 0));
        let reader = SegmentReader::open(&path).expect("a segment");
        for (key, standing, held, of_dead) in [("dead", (2, 2), 0, 1), ("live", (0, 0), 1, 0)] {
            let mut shown = vec![
                reader.key_snapshot("api", key).expect("works").expect("a row"),
                segment.key_snapshot("api", key).expect("works").expect("a row"),
            ];
            let visit = |seen: &shmlimit::snapshot::KeySnapshot| {
                if seen.key.text() == Some(key) {
                    shown.push(seen.clone());
                }
            };
            reader.key_snapshots("api", visit).expect("works");
            assert_eq!(shown.len(), 3);
            for seen in shown {
                assert_eq!(
                    (seen.limits[0].remaining, seen.limits[0].of_dead),
                    standing,
                    "{seen:?}"
                );
                assert_eq!((seen.held, seen.of_dead), (held, of_dead), "{seen:?}");
            }
        }
        let (standings, active, of_dead) = of_snapshot(&reader.snapshot().expect("a copy"));
        assert_eq!((standings[0].1, active, of_dead), (2, 1, 1));
        assert!(bytes(&path) == before, "a look changed the file");
        assert!(dead.try_acquire().expect("works").is_admitted());
    });
}

#[test]
fn what_was_granted_to_a_process_that_died_before_it_claimed_it_is_left_out() {
    let test = "looking::what_was_granted_to_a_process_that_died_before_it_claimed_it_is_left_out";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        let set = SetDeclaration::new("api").waiters(4);
        let segment = Segment::create(&path, &limits(set)).expect("a segment");
        let api = segment.set("api").expect("declared");
        let all = api.request().with("slots", 2).expect("declared");
        let held: Permit<'_> = expect_permit(all.try_acquire());
        let request = request(&api);
        let child = Child::fork(|| {
            std::mem::forget(request.acquire(None).expect("works"));
        });
        let snapshot = || segment.snapshot().expect("a copy").sets.remove(0);
        eventually("the child waits", || !snapshot().tickets.is_empty());
        // Takes the lock under which the child took its ticket: afterwards, the child cannot be stopped while it has
        // the lock.
        drop(api.forecast().expect("works"));
        child.send(Signal::SIGSTOP);
        child.wait_until_stopped();
        drop(held);
        assert!(snapshot().tickets[0].granted);
        child.kill();

        let before = bytes(&path);
        let verdicts = request.peek().expect("works");
        assert!(verdicts.iter().all(|verdict| verdict.admitted), "{verdicts:?}");
        assert_eq!((verdicts[0].remaining, verdicts[0].of_dead), (2, 2));
        let tokens = verdicts[1];
        // What it was granted of rates counts as used until it is reclaimed.
        assert_eq!(tokens.of_dead, 0);
        assert!((690..990).contains(&tokens.remaining), "{tokens:?}");
        assert!(bytes(&path) == before, "a look changed the file");
        let outcome = request.try_acquire().expect("works");
        assert!(outcome.is_admitted(), "a look said that it would be admitted");
    });
}

#[test]
fn what_is_held_for_longer_than_its_lease_is_left_out() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits");
    let clock = VirtualClock::new(HOUR);
    let minute = Duration::from_secs(60);
    let declaration = scene::declaration().add_set(
        SetDeclaration::new("api")
            .add_limit(Limit::concurrency("leased", 1).lease(minute))
            .add_limit(Limit::concurrency("kept", 3)),
    );
    let segment = OpenOptions::new()
        .virtual_clock(&clock)
        .create(&path, &declaration)
        .expect("a segment");
    let api = segment.set("api").expect("declared");
    let held = expect_permit(api.request().try_acquire());
    let look = || {
        let snapshot = segment.snapshot().expect("a copy");
        let looks = [
            of_verdicts(&api.request().peek().expect("works")),
            of_forecasts(&api.forecast().expect("works")),
            of_snapshot(&snapshot).0,
        ];
        assert!(looks.iter().all(|look| *look == looks[0]), "{looks:?}");
        (looks[0].clone(), snapshot.sets[0].active)
    };
    clock.advance_to(HOUR + minute - Duration::from_nanos(1));
    assert_eq!(look(), (vec![(0, 0), (2, 0)], 1));
    clock.advance_to(HOUR + minute);
    let before = bytes(&path);
    assert_eq!(look(), (vec![(1, 1), (2, 0)], 1));
    assert!(bytes(&path) == before, "a look changed the file");
    let second = api.request().try_acquire().expect("works").into_result();
    assert!(second.is_ok(), "a look said that it would be admitted");
    drop(held);
}
