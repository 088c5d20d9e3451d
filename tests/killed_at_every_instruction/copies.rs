//! Killed at every instruction, by copies: the operation is stepped once, and every distinct state that the segment
//! goes through is recovered in a copy, with the lock word as the kernel leaves it for a dead thread.

use crate::operations::drawing::BATCH;
use crate::operations::{Operation, Recoverer};
use crate::report::Tally;
use crate::sample::Sample;
use crate::state::image::Layout;
use crate::state::stage::{Others, RECOVERER_SLOT, Stage};
use crate::state::survivor::Judgement;
use crate::stepping::trace::Trace;
use crate::stepping::tracee::Tracee;

/// Records a verdict; prints the first few that are bad.
pub fn note(tally: &mut Tally, what: impl FnOnce() -> String, judgement: &Judgement) {
    const PRINTED: u64 = 3;
    tally.states += 1;
    let (count, why) = match judgement {
        Judgement::Sound(_) => return,
        Judgement::Torn(why) => (&mut tally.torn, why),
        Judgement::Stuck(why) => (&mut tally.stuck, why),
        Judgement::Lost(why) => (&mut tally.lost, why),
    };
    *count += 1;
    if *count <= PRINTED {
        eprintln!("{}: {why}", what());
    }
}

/// Without the journal, one torn state of an operation is enough to show that the harness finds it.
pub fn proves_that_torn_is_found(tally: &Tally) -> bool {
    crate::is_without_journal() && tally.torn > 0
}

/// Depth one.
pub fn kill_once(operation: Operation, sample: Sample) -> Tally {
    let stage = Stage::new(operation, None);
    stage.check_layout();
    let mut scene = stage.set_scene(Others::Stopped);
    let trace = record(&mut scene.victim, &stage, stage.victim_slot);
    let layout = &stage.layout;
    let mut tally = Tally {
        instructions: trace.instructions,
        stuck: trace.stranded,
        ..Tally::default()
    };
    if let Err(what) = check_the_unkilled_run(&trace, operation, layout) {
        note(&mut tally, || operation.name.to_owned(), &Judgement::Torn(what));
    }
    // Both states are judged with the victim dead, as it is in each crash state.
    let standings = (operation.applies || operation.draws).then(|| {
        [trace.first.clone(), trace.last()].map(|mut image| {
            layout.bury(&mut image, stage.victim_slot);
            stage.copyist.standing_of(&image)
        })
    });
    for state in sample.of(trace.crash_state_count(), trace.crash_states(layout)) {
        let mut image = state.image;
        layout.bury(&mut image, stage.victim_slot);
        let mut judgement = stage.copyist.judge_copy(&image, |recovered| {
            trace.is_legal(state.commits, recovered, layout)
        });
        if let (Judgement::Sound(_), Some(standings)) = (&judgement, &standings) {
            let standing = stage.copyist.standing_of(&image);
            let is_one_of_them = if operation.draws {
                loses_less_than_a_batch(&standing, standings)
            } else {
                standings.contains(&standing)
            };
            if !is_one_of_them {
                let what = "the limits stand neither as they did nor as they do after";
                judgement = Judgement::Torn(format!("{what}: {standing:?} of {standings:?}"));
            }
        }
        let nth = tally.states;
        note(
            &mut tally,
            || format!("{}, state {nth}", operation.name),
            &judgement,
        );
        if proves_that_torn_is_found(&tally) {
            break;
        }
    }
    tally
}

/// Whether all limits stand as before, or all as after, or less than a batch lower.
fn loses_less_than_a_batch(
    found: &Result<Vec<u64>, Judgement>,
    ends: &[Result<Vec<u64>, Judgement>; 2],
) -> bool {
    let (Ok(found), [Ok(before), Ok(after)]) = (found, ends) else {
        return false;
    };
    [before, after].into_iter().any(|end| {
        let mut limits = end.iter().zip(found);
        limits.all(|(end, found)| found <= end && found + BATCH > *end)
    })
}

/// Steps the process with this slot. If others wait, also notes what a survivor makes of what the process leaves for
/// them.
fn record(tracee: &mut Tracee, stage: &Stage, slot: usize) -> Trace {
    let mut trace = Trace::record(tracee, stage);
    if stage.operation().has_company() || stage.operation().seed.is_some() {
        trace.note_what_is_served(&stage.layout, |image| {
            let mut image = image.clone();
            stage.layout.bury(&mut image, slot);
            match stage.copyist.judge_copy(&image, |_| Ok(())) {
                Judgement::Sound(recovered) => Some(recovered),
                // The failure is found again, and reported, when the state itself is judged.
                _ => None,
            }
        });
    }
    if stage.operation().applies {
        trace.note_what_is_applied(&stage.layout, |image| {
            let mut image = image.clone();
            stage.layout.bury(&mut image, slot);
            match stage.copyist.judge_copy(&image, |_| Ok(())) {
                Judgement::Sound(recovered) => Some(recovered),
                _ => None,
            }
        });
    }
    trace
}

/// Depth two: from every `stride`-th distinct state of depth one, the survivor's next operation is stepped, and every
/// distinct state that it goes through is recovered by a third process.
pub fn kill_twice(operation: Operation, recoverer: Recoverer, stride: usize, sample: Sample) -> Tally {
    let mut stage = Stage::new(operation, Some(recoverer));
    let mut second = stage.recoverer.take().expect("asked for");
    let mut scene = stage.set_scene(Others::Stopped);
    let trace = record(&mut scene.victim, &stage, stage.victim_slot);
    let layout = &stage.layout;
    let mut tally = Tally::default();
    let count = trace.crash_state_count().div_ceil(stride);
    for state in sample.of(count, trace.crash_states(layout).step_by(stride)) {
        let mut image = state.image;
        layout.bury(&mut image, stage.victim_slot);
        // What a survivor sees that is not killed. Depth one has checked that; here it is the starting point.
        let judgement = stage.copyist.judge_copy(&image, |recovered| {
            trace.is_legal(state.commits, recovered, layout)
        });
        let Judgement::Sound(recovered) = judgement else {
            note(
                &mut tally,
                || format!("{}, before {}", operation.name, recoverer.name),
                &judgement,
            );
            continue;
        };
        stage.file.become_copy_of(&image);
        let mut again = record(&mut second, &stage, RECOVERER_SLOT);
        again.visible[0] = recovered;
        tally.instructions += again.instructions;
        tally.stuck += again.stranded;
        // The first state is the one in which the recoverer began.
        for state in again.crash_states(layout).skip(1) {
            let mut image = state.image;
            layout.bury(&mut image, RECOVERER_SLOT);
            let judgement = stage.copyist.judge_copy(&image, |recovered| {
                again.is_legal(state.commits, recovered, layout)
            });
            let nth = tally.states;
            note(
                &mut tally,
                || format!("{}, then {}, state {nth}", operation.name, recoverer.name),
                &judgement,
            );
        }
        second.run_to_mark();
    }
    tally
}

/// What must be true of the operation itself before its crash states mean anything.
fn check_the_unkilled_run(trace: &Trace, operation: Operation, layout: &Layout) -> Result<(), String> {
    let commits = trace.visible.len() - 1;
    let min = operation.transactions;
    if operation.seed.is_none() && !(min..=min + operation.more_transactions).contains(&commits) {
        return Err(format!("commits another number of times: {commits}"));
    }
    if layout.canonical(&trace.last()) != trace.visible[commits] {
        return Err("changes what a user can see outside its transactions".to_owned());
    }
    if operation.seed.is_some() {
        return Ok(());
    }
    let both = trace.visible[0].iter().zip(&trace.visible[commits]);
    let changes = both.filter(|(before, after)| before != after).count();
    let is_right = match operation.transactions {
        0 => changes == 0,
        _ if operation.changes_one_word => changes == 1,
        // What was tried and undone is counted.
        _ => changes > 0 || layout.has_counted(&trace.first, &trace.last()),
    };
    if is_right {
        Ok(())
    } else {
        Err("changes nothing, or something where it should not".to_owned())
    }
}
