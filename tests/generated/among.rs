//! Processes that are killed and stopped at random while they perform operations of a generated declaration, beside one
//! that attached before them, and one that attaches after them.

use std::path::Path;
use std::time::{Duration, Instant};

use fastrand::Rng;
use nix::sys::signal::Signal;
use shmlimit::{Error, OpenOptions, Segment, SegmentError};

use super::actor::Actor;
use super::declarations::{Lengths, declaration};
use super::invariants::{Traits, holds_are_permits_that_are_out};
use super::operations::{Driver, Operations};
use super::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use super::{seconds, seeds};

const VICTIMS: usize = 2;
const KILLS: usize = 12;
const LONG_STOP: Duration = Duration::from_millis(120);

fn is_wrong(error: &Error) -> bool {
    matches!(error, Error::Segment(_) | Error::Open(_))
}

/// Victims may find locks whose holders are stopped.
fn is_wrong_for_a_victim(error: &Error) -> bool {
    is_wrong(error) && !matches!(error, Error::Segment(SegmentError::LockStuck { .. }))
}

/// Performs one operation of a process among others.
fn act(actor: &mut Actor, operations: &mut Operations, dice: &mut Rng, is_wrong: fn(&Error) -> bool) {
    let step = operations.step(dice);
    for result in [actor.perform(&step).map(drop), actor.poll()] {
        if let Err(error) = result
            && is_wrong(&error)
        {
            panic!("{step:?}: {error}");
        }
    }
    if actor.held.len() > 20 {
        actor.held.clear();
    }
}

fn one_declaration(seed: u64, directory: &Path) {
    let mut dice = Rng::with_seed(seed);
    let declaration = declaration(&mut dice, Lengths::Short);
    let traits = Traits::of(&declaration);
    let path = directory.join(format!("{seed}"));
    let options = OpenOptions::new().lock_timeout(TIMEOUT);
    let impatient = OpenOptions::new().lock_timeout(LONG_STOP / 4);
    let open = || options.open(&path).expect("opens at any time");
    let segment = options.create(&path, &declaration).expect("valid");
    let mut actor = Actor::new(&path, &options, vec![segment], &declaration);
    let mut operations = Operations::of(&declaration, Driver::Among);
    let ready = SharedWords::new(1);
    let mut stops = Rng::with_seed(dice.u64(..));
    for kill in 0..KILLS {
        let victims: Vec<Child> = (0..VICTIMS)
            .map(|victim| {
                let mut dice = Rng::with_seed(dice.u64(..));
                Child::fork(|| {
                    // One goes on with what it inherits, the other attaches anew.
                    let inherited = actor.attachers[0].clone();
                    let segment: Segment = if victim == 0 {
                        inherited
                    } else {
                        impatient.open(&path).expect("opens at any time")
                    };
                    let mut actor = Actor::new(&path, &impatient, vec![segment], &declaration);
                    let mut operations = Operations::of(&declaration, Driver::Among);
                    ready[0].fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    loop {
                        act(&mut actor, &mut operations, &mut dice, is_wrong_for_a_victim);
                    }
                })
            })
            .collect();
        eventually("the victims act", || {
            ready[0].load(std::sync::atomic::Ordering::SeqCst) == ((kill + 1) * VICTIMS) as u64
        });
        let mut act_for = |time: Duration| {
            let ends = Instant::now() + time;
            while Instant::now() < ends {
                act(&mut actor, &mut operations, &mut dice, is_wrong);
            }
        };
        act_for(Duration::from_micros(100 + stops.u64(..2_900)));
        let stopped = &victims[kill % VICTIMS];
        // The stopped victim may have the lock, so only the other victims act meanwhile.
        match stops.u8(..6) {
            0 => {
                // In some sets, grants are not kept for as long as this.
                stopped.send(Signal::SIGSTOP);
                std::thread::sleep(LONG_STOP);
                stopped.send(Signal::SIGCONT);
                act_for(Duration::from_micros(500));
            }
            1..=2 => {
                stopped.send(Signal::SIGSTOP);
                std::thread::sleep(Duration::from_micros(500));
            }
            _ => {}
        }
        for victim in victims {
            victim.kill();
        }
        actor.waiting.clear();
        look_after(kill, &mut actor, traits, &open);
    }
    // The windows are short: once they have passed, everything is as if it had never been used.
    actor.give_all_back().expect("works");
    if traits.has_credit || traits.has_adaptive {
        return;
    }
    let set = actor.set(0).expect("declared");
    eventually("everything is as never used", || {
        let keys = if set.is_keyed() { 0..80 } else { 0..1 };
        keys.into_iter().all(|key| {
            let subject = super::actor::Subject::of(&set, key).expect("a key");
            let forecast = subject.forecast().expect("works");
            forecast
                .iter()
                .all(|(.., full_after)| *full_after == Some(Duration::ZERO))
        })
    });
}

/// Checks that what the dead have left is taken back, and nothing else.
fn look_after(kill: usize, actor: &mut Actor, traits: Traits, open: &impl Fn() -> Segment) {
    // A process counts as alive until its memory is gone, which may take longer while another process reads about it in
    // `/proc`.
    eventually("the dead count as dead", || {
        let snapshot = actor.segment(0).snapshot().expect("a copy");
        let mut alive = snapshot.participants.iter().filter(|it| it.alive);
        alive.all(|it| it.pid == u64::from(std::process::id()))
    });
    let first = actor.segment(0).recover().expect("works");
    assert!(first.sets[0].problem.is_none(), "kill {kill}: {first:?}");
    let is_rebuilt = format!("{:?}", first.sets[0].repairs).contains("rebuilt: true");
    assert!(!is_rebuilt, "kill {kill}: {first:?}");
    let again = actor.segment(0).recover().expect("works");
    assert!(
        again.sets[0].repairs.is_none() && again.sets[0].reclaimed == 0,
        "kill {kill}: {again:?}"
    );
    // What this process could not give back at once, because a victim had the lock, its background worker gives back.
    let mut seen = String::new();
    eventually("what is held is held by permits that are out", || {
        let snapshot = actor.segment(0).snapshot().expect("a copy");
        let Err(what) = holds_are_permits_that_are_out(actor, traits, &snapshot) else {
            return true;
        };
        if what != seen {
            println!("kill {kill}: {what}");
            seen = what;
        }
        false
    });
    // Time passes between two looks, so only what does not depend on it is compared.
    actor.attachers.push(open());
    let rules = |segment: &Segment| {
        segment
            .declaration_in_force()
            .and_then(|it| Ok(it.to_toml()?))
            .expect("works")
    };
    assert_eq!(
        rules(&actor.attachers[0]),
        rules(&actor.attachers[1]),
        "kill {kill}"
    );
    actor.attachers.pop();
}

/// Prints the seed that failed, in the process of the test only: children that fail die on their own.
struct ShownIfItFails(u64);

impl Drop for ShownIfItFails {
    fn drop(&mut self) {
        println!("SHMLIMIT_SEED={}", self.0);
    }
}

#[test]
fn processes_that_are_killed_leave_every_invariant_to_the_others() {
    let test = "among::processes_that_are_killed_leave_every_invariant_to_the_others";
    in_own_process(test, TIMEOUT + 2 * seconds(), |directory| {
        let mut count = 0;
        for seed in seeds() {
            if count == 0 {
                println!("from SHMLIMIT_SEED={seed} on");
            }
            let shown = ShownIfItFails(seed);
            one_declaration(seed, directory);
            std::mem::forget(shown);
            count += 1;
        }
        println!("{count} declarations, {} kills", count * KILLS * VICTIMS);
    });
}
