//! What an operator does to a segment in use, each time like a separate command.

use std::sync::atomic::Ordering;
use std::time::Duration;

use fastrand::Rng;
use shmlimit::{Error, Segment};

use crate::scene::process::TIMEOUT;
use crate::sets::{VARIANTS, declaration};
use crate::truth::Count;
use crate::worker::{expect_stuck, open};
use crate::{PROCESSES, World};

pub const OPERATOR: usize = PROCESSES - 1;

/// Changes limits and repairs until it is killed.
pub fn operate(world: &World, seed: u64) -> ! {
    let truth = &world.truth;
    let mut dice = Rng::with_seed(seed);
    loop {
        let segment = open(world, OPERATOR, TIMEOUT);
        if let Err(error) = act(world, &segment, &mut dice) {
            expect_stuck(world, &error);
        }
        truth.got_on(OPERATOR);
        drop(segment);
        while truth.get(Count::Rest) != 0 {
            truth.rests(OPERATOR).store(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_micros(200));
        }
        truth.rests(OPERATOR).store(0, Ordering::SeqCst);
        std::thread::sleep(Duration::from_micros(dice.u64(..10_000)));
    }
}

fn act(world: &World, segment: &Segment, dice: &mut Rng) -> Result<(), Error> {
    let truth = &world.truth;
    match dice.u64(..16) {
        0..=7 => {
            let variant = dice.u64(..VARIANTS.len() as u64) as usize;
            segment.apply(&declaration(variant))?;
            truth.add(Count::Applied);
        }
        8 => {
            // Noted before it happens: anyone who sees more admitted has the reset noted already.
            truth.add(Count::ResetsBegun);
            segment
                .set("plain")
                .expect("declared")
                .reset()
                .limits(["calls"])
                .run()?;
        }
        9 => segment
            .set("plain")
            .expect("declared")
            .reset()
            .limits(["tokens"])
            .run()?,
        10 => segment.set("keyed").expect("declared").reset().run()?,
        11 => segment.set("leased").expect("declared").reset().run()?,
        12 => {
            segment.rebuild()?;
        }
        _ => {
            for set in segment.recover()?.sets {
                let is_sound = set.problem.is_none() || set.locked;
                assert!(is_sound, "{set:?}");
            }
            truth.add(Count::Recovered);
        }
    }
    Ok(())
}
