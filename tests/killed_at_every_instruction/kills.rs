//! Killed at every instruction, for real: a fresh process each time, SIGKILL, and the kernel's own treatment of the
//! lock that the process held. The processes that wait in the queue are real as well, and awake: each of them must be
//! served in the end.

use std::collections::BTreeSet;

use crate::beside::bystanders::{HandedOver, monotonic_nanos};
use crate::copies::{note, proves_that_torn_is_found};
use crate::operations::Operation;
use crate::report::Tally;
use crate::sample::Sample;
use crate::state::image::{Image, Layout};
use crate::state::stage::{Others, Stage};
use crate::state::survivor::Judgement;
use crate::stepping::trace::Trace;
use crate::stepping::tracee::{Stop, Tracee};

/// Two undisturbed runs at different times: what they disagree about depends on the time. One is enough if others wait,
/// because what is found then is not compared with anything.
struct Reference {
    one: Trace,
    other: Option<Trace>,
}

impl Reference {
    fn record(stage: &Stage) -> Self {
        let record = || Trace::record(&mut stage.set_scene(Others::Stopped).victim, stage);
        let one = record();
        let other = (!stage.operation().has_company()).then(record);
        if let Some(other) = &other {
            assert_eq!(one.visible.len(), other.visible.len());
        }
        Self { one, other }
    }

    /// Whether what was found is the old state, or the state after one of the commits: words that do not depend on the
    /// time must be those of the reference, and words that do must be the old ones, or must not be, all alike.
    fn is_legal(&self, old: &[u64], recovered: &Image, layout: &Layout) -> Result<(), String> {
        let seen = layout.canonical(recovered);
        let old = layout.canonical(old);
        let agrees = |commits: usize| {
            let one = &self.one.visible;
            let other = self.other.as_ref().map_or(one, |other| &other.visible);
            (0..seen.len()).all(|word| {
                if one[commits][word] == one[0][word] && other[commits][word] == other[0][word] {
                    seen[word] == old[word]
                } else if one[commits][word] == other[commits][word] {
                    seen[word] == one[commits][word]
                } else {
                    seen[word] != old[word]
                }
            })
        };
        if (0..self.one.visible.len()).any(agrees) {
            Ok(())
        } else {
            Err("neither the old state nor the new one".to_owned())
        }
    }

    /// Where to kill: after about `spread` instructions at equal distances, and after those that changed the segment,
    /// or after about `spread` of these at equal distances if there are more.
    fn kill_points(&self, spread: usize) -> BTreeSet<KillPoint> {
        let last = self.one.instructions;
        let every = usize::try_from(last).expect("fits").div_ceil(spread).max(1);
        let changes = &self.one.changes;
        let every_change = changes.len().div_ceil(spread).max(1);
        let behind_changes = changes
            .iter()
            .step_by(every_change)
            .map(|change| change.instruction);
        let instructions = (0..=last).step_by(every).chain(behind_changes);
        instructions.map(|it| KillPoint::of(&self.one, it)).collect()
    }
}

/// The instruction after which a process is killed. Reading the time takes more instructions in one run than in
/// another, so the place is found by what the run has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct KillPoint {
    /// How many changes of the segment come before it.
    changes: usize,
    /// How many instructions come between the last of these changes and it.
    instructions: u64,
    /// How many instructions come before it in the run from which it was taken.
    from_the_beginning: u64,
}

impl KillPoint {
    fn of(run: &Trace, instruction: u64) -> Self {
        let changes = run.changes.partition_point(|it| it.instruction <= instruction);
        let changed_at = changes
            .checked_sub(1)
            .map_or(0, |last| run.changes[last].instruction);
        Self {
            changes,
            instructions: instruction - changed_at,
            from_the_beginning: instruction,
        }
    }

    /// Steps a process to this point, or to the end of its operation, and returns how many steps that took.
    fn reach(self, victim: &mut Tracee, stage: &Stage, watched: &[usize]) -> u64 {
        let mut steps = 0;
        let mut step = || {
            let has_moved = victim.step() == Stop::Moved;
            steps += u64::from(has_moved);
            has_moved
        };
        if stage.operation().has_company() {
            // Others change the segment, too.
            (0..self.from_the_beginning).all(|_| step());
            return steps;
        }
        let mut seen: Vec<u64> = watched.iter().map(|word| stage.file.word(*word)).collect();
        for _ in 0..self.changes {
            let is_same = |(word, before): (&usize, &u64)| stage.file.word(*word) == *before;
            while watched.iter().zip(&seen).all(is_same) {
                if !step() {
                    return steps;
                }
            }
            for (word, before) in watched.iter().zip(&mut seen) {
                *before = stage.file.word(*word);
            }
        }
        (0..self.instructions).all(|_| step());
        steps
    }
}

/// Depth one, with at most twice `spread` kills unless the operation is killed everywhere.
pub fn kill_for_real(operation: Operation, spread: usize, sample: Sample) -> Tally {
    let stage = Stage::new(operation, None);
    let reference = Reference::record(&stage);
    let spread = if operation.killed_everywhere && !cfg!(debug_assertions) {
        usize::MAX
    } else {
        spread
    };
    let mut tally = Tally::default();
    let points = reference.kill_points(spread);
    let watched = reference.one.changed_words();
    for point in sample.of(points.len(), points) {
        let mut scene = stage.set_scene(Others::Running);
        let old = stage.file.copy();
        let steps = point.reach(&mut scene.victim, &stage, &watched);
        tally.instructions += steps;
        let killed_at = monotonic_nanos();
        scene.victim.kill();
        let judgement = if operation.seed.is_some() {
            // What the victim has asked for may be served in the meantime.
            stage.witness.judge(|_| Ok(()))
        } else if !operation.has_company() {
            stage
                .witness
                .judge(|recovered| reference.is_legal(&old, recovered, &stage.layout))
        } else {
            scene.line.go_on(0..operation.silent);
            if operation.waits_for_a_rate {
                stage.witness.reset_what_is_used_up();
            }
            // The waiters have been active in the meantime, so what is found differs each time.
            match scene.line.is_served(killed_at) {
                HandedOver::NotTo(left_out) => Judgement::Stuck(format!("{left_out} are waiting in vain")),
                HandedOver::ToAll(delay) => {
                    if let Some(delay) = delay.filter(|_| !operation.is_served) {
                        tally.delays.note(delay);
                    }
                    stage.witness.judge(|_| Ok(()))
                }
            }
        };
        note(
            &mut tally,
            || format!("{}, killed at {steps}", operation.name),
            &judgement,
        );
        if proves_that_torn_is_found(&tally) {
            break;
        }
    }
    tally
}
