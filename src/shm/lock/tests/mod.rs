//! The slot lock against a model of its protocol: all orders of the steps of several participants, any of which may
//! stop for as long as it likes, or be killed and followed by another in its slot.

use std::collections::{HashMap, HashSet};

use super::slot_word::{NextStep, SlotWord};

mod slot_lock_tests;

/// A participant's next step. Between two steps, any other may take any number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Next {
    /// Read the word.
    Read,
    /// Swap the word that was read for one that takes the lock.
    Take {
        seen: SlotWord,
    },
    Announce {
        seen: SlotWord,
    },
    /// Fall asleep, if the word is still that one.
    Sleep {
        seen: SlotWord,
    },
    /// Asleep.
    Asleep {
        seen: SlotWord,
    },
    /// Check whether the owner named by this word is alive.
    Probe {
        seen: SlotWord,
    },
    /// The owner named by this word was found dead.
    TakeOver {
        seen: SlotWord,
    },
    /// Has the lock.
    Inside,
    /// Has released it, and may have to wake a waiter.
    Wake {
        has_waiters: bool,
    },
    Done,
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Participant {
    slot: u64,
    generation: u64,
    next: Next,
    has_slept: bool,
}

impl Participant {
    fn new(slot: u64, generation: u64) -> Self {
        Self {
            slot,
            generation,
            next: Next::Read,
            has_slept: false,
        }
    }

    fn owner(self) -> u64 {
        self.generation << 16 | (self.slot + 1)
    }

    fn own(self) -> SlotWord {
        SlotWord::held_by(self.owner())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    word: SlotWord,
    participants: Vec<Participant>,
    /// Something was begun under the lock and not finished: the next owner has to know.
    is_dirty: bool,
    deaths_left: u32,
    /// How many processes may still join, in the slots of the dead.
    joins_left: u32,
}

/// Whether a sleeper may wake by itself. If not, every wake has to come from an unlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slices {
    End,
    Never,
}

/// Mistakes that the model must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// Takes over whatever the word says by then.
    TakesOverWhateverIsThere,
    /// Takes the slot's occupant for the owner, although it is another life of the slot.
    ForgetsGenerations,
    /// Takes the lock after a sleep as if nobody else slept.
    ForgetsSleepers,
    /// Does not report that it took the lock from the dead.
    HidesTheDeath,
}

struct Model {
    slices: Slices,
    mistake: Mistake,
}

impl Model {
    fn is_alive(&self, state: &State, seen: SlotWord) -> bool {
        state.participants.iter().any(|it| {
            let is_named = if self.mistake == Mistake::ForgetsGenerations {
                seen.slot() == Some(it.slot)
            } else {
                seen.names(it.owner())
            };
            is_named && it.next != Next::Dead
        })
    }

    fn enter(&self, state: &mut State, index: usize, took_from_dead: bool) {
        let others = state.participants.iter().filter(|it| it.next == Next::Inside);
        assert_eq!(others.count(), 0, "two have the lock");
        let knows = took_from_dead && self.mistake != Mistake::HidesTheDeath;
        assert!(knows || !state.is_dirty, "it does not know that its owner died");
        state.is_dirty = true;
        state.participants[index].next = Next::Inside;
    }

    fn swap(state: &mut State, seen: SlotWord, new: SlotWord) -> bool {
        let is_the_same = state.word == seen;
        if is_the_same {
            state.word = new;
        }
        is_the_same
    }

    /// The states that follow a participant's next step.
    fn after_step_of(&self, state: &State, index: usize) -> Vec<State> {
        let mut after = state.clone();
        let own = state.participants[index].own();
        let me = &mut after.participants[index];
        match me.next {
            Next::Read => {
                me.next = match state.word.next_step(own, me.has_slept) {
                    NextStep::Take(_) => Next::Take { seen: state.word },
                    NextStep::Announce(_) => Next::Announce { seen: state.word },
                    NextStep::Sleep => Next::Sleep { seen: state.word },
                };
            }
            Next::Take { seen } => {
                let has_slept = me.has_slept && self.mistake != Mistake::ForgetsSleepers;
                let NextStep::Take(new) = seen.next_step(own, has_slept) else {
                    unreachable!("the word was free");
                };
                me.next = Next::Read;
                if Self::swap(&mut after, seen, new) {
                    self.enter(&mut after, index, false);
                }
            }
            Next::Announce { seen } => {
                let NextStep::Announce(new) = seen.next_step(own, me.has_slept) else {
                    unreachable!("no other had");
                };
                me.next = Next::Read;
                if Self::swap(&mut after, seen, new) {
                    after.participants[index].next = Next::Probe { seen: new };
                }
            }
            Next::Sleep { seen } => {
                // The kernel compares the low half under the lock of its queue.
                let is_the_same = state.word.0 as u32 == seen.0 as u32;
                me.has_slept = true;
                me.next = if is_the_same {
                    Next::Asleep { seen }
                } else {
                    Next::Read
                };
            }
            Next::Asleep { seen } => {
                if self.slices == Slices::Never {
                    return Vec::new();
                }
                me.next = if state.word == seen {
                    Next::Probe { seen }
                } else {
                    Next::Read
                };
            }
            Next::Probe { seen } => {
                me.next = if self.is_alive(state, seen) {
                    Next::Sleep { seen }
                } else {
                    Next::TakeOver { seen }
                };
            }
            Next::TakeOver { seen } => {
                let new = seen.taken_over_by(own);
                let seen = if self.mistake == Mistake::TakesOverWhateverIsThere {
                    state.word
                } else {
                    seen
                };
                me.next = Next::Read;
                if Self::swap(&mut after, seen, new) {
                    self.enter(&mut after, index, true);
                }
            }
            Next::Inside => {
                me.next = Next::Wake {
                    has_waiters: state.word.has_waiters(),
                };
                after.word = SlotWord::FREE;
                after.is_dirty = false;
            }
            Next::Wake { has_waiters } => {
                me.next = Next::Done;
                let sleepers = |it: &Participant| matches!(it.next, Next::Asleep { .. });
                let sleeping: Vec<usize> = (0..state.participants.len())
                    .filter(|other| has_waiters && sleepers(&state.participants[*other]))
                    .collect();
                // Any one of them.
                let woken = sleeping.iter().map(|sleeper| {
                    let mut woken = after.clone();
                    woken.participants[*sleeper].next = Next::Read;
                    woken
                });
                let woken: Vec<State> = woken.collect();
                return if woken.is_empty() { vec![after] } else { woken };
            }
            Next::Done | Next::Dead => return Vec::new(),
        }
        vec![after]
    }

    fn successors(&self, state: &State) -> Vec<State> {
        let mut successors = Vec::new();
        for (index, participant) in state.participants.iter().enumerate() {
            successors.extend(self.after_step_of(state, index));
            let is_at_work = !matches!(participant.next, Next::Dead | Next::Done);
            if is_at_work && state.deaths_left > 0 {
                let mut after = state.clone();
                after.participants[index].next = Next::Dead;
                after.deaths_left -= 1;
                successors.push(after);
            }
            if participant.next == Next::Dead && state.joins_left > 0 {
                let mut after = state.clone();
                after.participants[index] = Participant::new(participant.slot, participant.generation + 1);
                after.joins_left -= 1;
                successors.push(after);
            }
        }
        successors
    }

    /// Explores all reachable states and checks that from each of them every live participant can finish. Panics if a
    /// rule is broken.
    fn explore(&self, participants: u64, deaths: u32, joins: u32) -> usize {
        let start = State {
            word: SlotWord::FREE,
            participants: (0..participants).map(|slot| Participant::new(slot, 1)).collect(),
            is_dirty: false,
            deaths_left: deaths,
            joins_left: joins,
        };
        let mut numbers = HashMap::from([(start.clone(), 0_usize)]);
        let mut predecessors: Vec<Vec<usize>> = vec![Vec::new()];
        let mut ends = Vec::new();
        let mut open = vec![start];
        while let Some(state) = open.pop() {
            let number = numbers[&state];
            let is_over = |it: &Participant| matches!(it.next, Next::Done | Next::Dead);
            if state.participants.iter().all(is_over) {
                ends.push(number);
            }
            for successor in self.successors(&state) {
                let next = numbers.len();
                let known = *numbers.entry(successor.clone()).or_insert(next);
                if known == next {
                    predecessors.push(Vec::new());
                    open.push(successor);
                }
                predecessors[known].push(number);
            }
        }
        let mut leads_to_an_end: HashSet<usize> = HashSet::new();
        while let Some(number) = ends.pop() {
            if leads_to_an_end.insert(number) {
                ends.extend(&predecessors[number]);
            }
        }
        let stuck = numbers
            .iter()
            .find(|(_, number)| !leads_to_an_end.contains(*number));
        assert!(stuck.is_none(), "it does not go on: {stuck:?}");
        numbers.len()
    }
}

fn explore(slices: Slices, mistake: Mistake, participants: u64, deaths: u32, joins: u32) -> usize {
    Model { slices, mistake }.explore(participants, deaths, joins)
}

#[test]
fn in_every_order_of_steps_one_has_the_lock_and_every_death_inside_is_known_to_the_next() {
    let states = explore(Slices::End, Mistake::None, 3, 2, 1);
    assert!(states > 10_000, "{states}");
    println!("{states} states");
}

#[test]
fn an_unlock_wakes_a_sleeper_so_without_deaths_no_slice_is_needed() {
    let states = explore(Slices::Never, Mistake::None, 4, 0, 0);
    assert!(states > 1_000, "{states}");
}

#[test]
#[should_panic(expected = "two have the lock")]
fn finds_a_taker_that_swaps_whatever_it_finds() {
    explore(Slices::End, Mistake::TakesOverWhateverIsThere, 3, 1, 0);
}

#[test]
#[should_panic(expected = "it does not go on")]
fn finds_a_probe_that_takes_another_life_of_the_slot_for_the_owner() {
    // The successor in the dead owner's slot waits for itself.
    explore(Slices::End, Mistake::ForgetsGenerations, 1, 1, 1);
}

#[test]
#[should_panic(expected = "it does not go on")]
fn finds_a_taker_that_forgets_the_other_sleepers() {
    explore(Slices::Never, Mistake::ForgetsSleepers, 3, 0, 0);
}

#[test]
#[should_panic(expected = "it does not know that its owner died")]
fn finds_a_taker_that_does_not_tell_of_the_death() {
    explore(Slices::End, Mistake::HidesTheDeath, 2, 1, 0);
}
