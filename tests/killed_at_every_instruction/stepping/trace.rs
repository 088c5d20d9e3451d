//! One operation, stepped from its first instruction to its last.

use std::collections::BTreeSet;

use crate::beside::bystanders::pause_for_a_moment;
use crate::state::image::{Image, Layout};
use crate::state::stage::Stage;
use crate::stepping::tracee::{Stop, Tracee};

/// More instructions than any operation has, so that an endless loop is an error and not a hang.
const MAX_INSTRUCTIONS: u64 = 50_000_000;

/// What the instructions of one operation did to the segment.
#[derive(Debug)]
pub struct Trace {
    pub instructions: u64,
    /// Instructions after which the kernel would not have handed the lock on, although the lock word says that the
    /// thread holds it.
    pub stranded: u64,
    pub first: Image,
    /// After which instruction which words had which values.
    pub changes: Vec<Change>,
    /// What a user could see before the operation, and after each of its commits.
    pub visible: Vec<Vec<u64>>,
    /// What a survivor made of each of these states by serving the queue, twice.
    served: Vec<Option<(Vec<u64>, Vec<u64>)>>,
    /// What a survivor made of a definition that had just come into force, twice.
    applied: Option<(Vec<u64>, Vec<u64>)>,
    thread: u32,
}

#[derive(Debug)]
pub struct Change {
    pub instruction: u64,
    words: Vec<(usize, u64)>,
    is_stranded: bool,
}

/// What the survivors find if the thread is killed after an instruction.
#[derive(Debug)]
pub struct CrashState {
    pub image: Image,
    /// How many commits came before.
    pub commits: usize,
    /// Whether the lock was held, and is handed on.
    is_held: bool,
}

impl Trace {
    /// Steps a child from the beginning of an operation to its end.
    pub fn record(tracee: &mut Tracee, stage: &Stage) -> Self {
        Self::record_with(tracee, stage, |_| {})
    }

    /// As [`record`](Self::record), with a look at the child after each instruction.
    pub fn record_with(tracee: &mut Tracee, stage: &Stage, mut look: impl FnMut(&Tracee)) -> Self {
        let layout = &stage.layout;
        let thread = u32::try_from(tracee.pid().as_raw()).expect("positive");
        let mappings = tracee.addresses_of_mappings(stage.path());
        // Whichever mapping of the lock the list names, it is this lock.
        let would_hand_on = |tracee: &Tracee| {
            let offset = layout.lock_word_offset() as u64;
            layout.has_slot_lock()
                || mappings
                    .iter()
                    .any(|address| tracee.would_hand_on(address + offset))
        };
        let lock_word = stage.file.lock_word(layout);
        let holder = || {
            let lock = lock_word.load(std::sync::atomic::Ordering::Relaxed);
            layout.holder(lock, |word| stage.file.word(word))
        };
        // The thread that sleeps for the futures of a process looks at the queue now and then.
        while holder() != 0 {
            pause_for_a_moment();
        }
        let first = stage.file.copy();
        let mut last = first.clone();
        let mut trace = Self {
            instructions: 0,
            stranded: 0,
            visible: vec![layout.canonical(&first)],
            served: Vec::new(),
            applied: None,
            first,
            changes: Vec::new(),
            thread,
        };
        let mut sequence = layout.journal_sequence(&last);
        while tracee.step() == Stop::Moved {
            trace.instructions += 1;
            look(tracee);
            assert!(
                trace.instructions < MAX_INSTRUCTIONS,
                "the operation does not come to its end"
            );
            let holder = holder();
            let is_held = holder == thread;
            if holder != 0 && !is_held {
                // What others change is not a crash state of this thread. It is recorded when they are done.
                continue;
            }
            let is_stranded = is_held && !would_hand_on(tracee);
            trace.stranded += u64::from(is_stranded);
            let words = stage.file.take_changes(&mut last);
            if words.is_empty() {
                continue;
            }
            trace.changes.push(Change {
                instruction: trace.instructions,
                words,
                is_stranded,
            });
            let now = layout.journal_sequence(&last);
            if now != sequence {
                sequence = now;
                trace.visible.push(layout.canonical(&last));
            }
        }
        assert!(
            !layout.is_held_by(&last, thread),
            "the operation ended with the lock"
        );
        trace
    }

    /// After which instructions to stop the thread, so that the others find each distinct state of the segment, with
    /// the lock held and without: right after each change, and right before the next one, because in between the thread
    /// may have looked at something that others may change, with the lock or without it. The instructions within the
    /// critical section come first, then the others.
    pub fn stops(&self, layout: &Layout) -> [BTreeSet<u64>; 2] {
        let mut image = self.first.clone();
        let (mut within, mut outside) = (BTreeSet::new(), BTreeSet::new());
        let mut was_held = false;
        for change in &self.changes {
            for (index, value) in &change.words {
                image[*index] = *value;
            }
            let is_held = layout.is_held_by(&image, self.thread);
            let part = if was_held && is_held {
                &mut within
            } else {
                &mut outside
            };
            part.extend([change.instruction - 1, change.instruction]);
            was_held = is_held;
        }
        [within, outside]
    }

    /// The words of the segment that the operation changed.
    pub fn changed_words(&self) -> Vec<usize> {
        let words = self.changes.iter().flat_map(|change| &change.words);
        let words: BTreeSet<usize> = words.map(|(index, _)| *index).collect();
        words.into_iter().collect()
    }

    /// How many [`crash_states`](Self::crash_states) there are.
    pub fn crash_state_count(&self) -> usize {
        self.changes.len() + 1
    }

    /// Every distinct state that the segment went through, as the thread's death would leave it. The first is the state
    /// before the operation.
    pub fn crash_states<'a>(&'a self, layout: &'a Layout) -> impl Iterator<Item = CrashState> + 'a {
        let mut image = self.first.clone();
        let mut sequence = layout.journal_sequence(&image);
        let mut commits = 0;
        let before = CrashState {
            image: image.clone(),
            commits,
            is_held: false,
        };
        let others = self.changes.iter().map(move |change| {
            for (index, value) in &change.words {
                image[*index] = *value;
            }
            let now = layout.journal_sequence(&image);
            if now != sequence {
                sequence = now;
                commits += 1;
            }
            let mut image = image.clone();
            // A lock that the kernel would not find stays as it is, and the survivor finds it stuck.
            let is_held = layout.is_held_by(&image, self.thread) && !change.is_stranded;
            if is_held {
                layout.hand_on_lock(&mut image);
            }
            CrashState {
                image,
                commits,
                is_held,
            }
        });
        std::iter::once(before).chain(others)
    }

    /// Whether what is seen is the state after this many commits, or what a survivor made of that by serving the queue.
    /// It was served twice, so the words that depend on the time are known: these must differ from what they were
    /// before.
    fn is_state(&self, commits: usize, seen: &[u64]) -> bool {
        let state = &self.visible[commits];
        let is_served = |(one, other): &(Vec<u64>, Vec<u64>)| {
            (0..seen.len()).all(|word| {
                if one[word] == other[word] {
                    seen[word] == one[word]
                } else {
                    seen[word] != state[word] || seen[word] == one[word]
                }
            })
        };
        seen == state
            || self
                .served
                .get(commits)
                .and_then(Option::as_ref)
                .is_some_and(is_served)
    }

    /// The final state of the region.
    pub fn last(&self) -> Image {
        let mut image = self.first.clone();
        for (index, value) in self.changes.iter().flat_map(|change| &change.words) {
            image[*index] = *value;
        }
        image
    }

    /// Uses `recover` to find what a survivor makes of the segment when a commit has just finished, and when the lock
    /// has just been taken: a process that finds the lock of a dead process serves the queue, because there may now be
    /// something for the first waiter.
    pub fn note_what_is_served(
        &mut self,
        layout: &Layout,
        mut recover: impl FnMut(&Image) -> Option<Vec<u64>>,
    ) {
        let mut served = vec![None; self.visible.len()];
        for state in self.crash_states(layout) {
            if state.is_held && served[state.commits].is_none() {
                served[state.commits] = recover(&state.image).zip(recover(&state.image));
            }
        }
        self.served = served;
    }

    /// Uses `recover` to find what a survivor makes of the segment when another definition is in force and no limit has
    /// been carried over to it yet: it carries over all of them.
    pub fn note_what_is_applied(
        &mut self,
        layout: &Layout,
        mut recover: impl FnMut(&Image) -> Option<Vec<u64>>,
    ) {
        let in_force = layout.generation(&self.last());
        let applied = self
            .crash_states(layout)
            .find(|state| layout.generation(&state.image) == in_force)
            .and_then(|state| recover(&state.image).zip(recover(&state.image)));
        self.applied = applied;
    }

    /// Whether every limit is as the definition in force has it, whichever process carried it over, and whenever.
    fn is_applied(&self, seen: &[u64]) -> bool {
        self.applied.as_ref().is_some_and(|(one, other)| {
            (0..seen.len()).all(|word| one[word] != other[word] || seen[word] == one[word])
        })
    }

    /// Whether what a user sees after a recovery is the state before the transaction in progress, or the state after
    /// it, each perhaps with what is served then.
    pub fn is_legal(&self, commits: usize, recovered: &Image, layout: &Layout) -> Result<(), String> {
        let seen = layout.canonical(recovered);
        let new = (commits + 1).min(self.visible.len() - 1);
        if !self.is_state(commits, &seen) && !self.is_state(new, &seen) && !self.is_applied(&seen) {
            let count = |commits: usize| {
                let words = seen.iter().zip(&self.visible[commits]);
                words.filter(|(one, other)| one != other).count()
            };
            return Err(format!(
                "{} words differ from the old state and {} from the new one",
                count(commits),
                count(new)
            ));
        }
        layout.check_unjournalled(&self.first, recovered)?;
        let last = self.last();
        let is_served = self.served.iter().any(Option::is_some) || self.applied.is_some();
        layout.check_counted(&self.first, &last, recovered, is_served)?;
        let each = layout
            .unlocked(&self.first)
            .into_iter()
            .zip(layout.unlocked(&last));
        let all_between = layout
            .unlocked(recovered)
            .into_iter()
            .zip(each)
            .all(|(found, (first, last))| found == first || found == last);
        if all_between {
            Ok(())
        } else {
            Err("a counter that moves without the lock is neither old nor new".to_owned())
        }
    }
}
