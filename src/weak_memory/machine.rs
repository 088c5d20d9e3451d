//! The machine: what each thread may see next, and what it has seen then.

use std::fmt;
use std::sync::atomic::Ordering;

use super::{Bounds, Outcome, Processor, REGISTERS, Step, WORDS, Word};
use crate::explorer;

/// For each word, the number of the latest store seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct View([u8; WORDS]);

impl View {
    fn see(&mut self, other: Self) {
        for (own, other) in self.0.iter_mut().zip(other.0) {
            *own = other.max(*own);
        }
    }
}

/// A stored value, and the view that an acquire load of it gains.
#[derive(Clone, Copy, Debug, Hash)]
struct Stored {
    value: u8,
    view: View,
}

#[derive(Clone, Debug, Default, Hash)]
struct Thread {
    at: usize,
    registers: [u8; REGISTERS],
    view: View,
    /// What was loaded relaxed, and becomes visible with the next acquire fence.
    loaded: View,
    /// What had been seen at the last release fence.
    released: View,
    outcome: Option<Outcome>,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Machine {
    words: [Vec<Stored>; WORDS],
    threads: Vec<Thread>,
    /// What had been seen at the sequentially consistent fences.
    fenced: View,
}

fn acquires(order: Ordering) -> bool {
    matches!(order, Ordering::Acquire | Ordering::AcqRel | Ordering::SeqCst)
}

fn releases(order: Ordering) -> bool {
    matches!(order, Ordering::Release | Ordering::AcqRel | Ordering::SeqCst)
}

impl Machine {
    /// The final value of a word.
    pub(super) fn latest(&self, word: Word) -> u8 {
        self.words[word].last().expect("one at first").value
    }

    pub(super) fn outcome(&self, thread: usize) -> Option<Outcome> {
        self.threads[thread].outcome
    }

    fn load(&mut self, thread: usize, word: Word, which: usize, order: Ordering) -> u8 {
        let stored = self.words[word][which];
        let thread = &mut self.threads[thread];
        thread.view.0[word] = u8::try_from(which).expect("few");
        thread.loaded.see(stored.view);
        if acquires(order) {
            thread.view.see(stored.view);
        }
        stored.value
    }

    /// `continues` is the view of the value that an atomic change replaced: an acquire load of the new value gains
    /// that, too.
    fn store(&mut self, thread: usize, word: Word, value: u8, continues: View, order: Ordering) {
        let number = u8::try_from(self.words[word].len()).expect("few");
        let thread = &mut self.threads[thread];
        thread.view.0[word] = number;
        let mut view = if releases(order) {
            thread.view
        } else {
            thread.released
        };
        view.0[word] = number;
        view.see(continues);
        self.words[word].push(Stored { value, view });
    }

    fn change(&mut self, thread: usize, word: Word, order: Ordering, new: impl Fn(u8) -> u8) -> u8 {
        let latest = self.words[word].len() - 1;
        let continues = self.words[word][latest].view;
        let old = self.load(thread, word, latest, order);
        self.store(thread, word, new(old), continues, order);
        old
    }

    fn fence(&mut self, thread: usize, order: Ordering) {
        let thread = &mut self.threads[thread];
        if acquires(order) {
            thread.view.see(thread.loaded);
        }
        if order == Ordering::SeqCst {
            thread.view.see(self.fenced);
            self.fenced = thread.view;
        }
        if releases(order) {
            thread.released = thread.view;
        }
    }

    /// Which stores to a word a thread may load.
    fn visible(&self, thread: usize, word: Word) -> std::ops::Range<usize> {
        self.threads[thread].view.0[word].into()..self.words[word].len()
    }

    /// Every possible outcome of a thread's next step.
    fn after_step_of(&self, bounds: &Bounds, thread: usize) -> Vec<Self> {
        let Some(step) = bounds.threads[thread].get(self.threads[thread].at) else {
            return Vec::new();
        };
        let mut next = self.clone();
        next.threads[thread].at += 1;
        // On x86-64, an atomic change is a fence both before and after itself.
        let is_fenced = bounds.processor == Processor::X86;
        let fence = |machine: &mut Self| {
            if is_fenced {
                machine.fence(thread, Ordering::SeqCst);
            }
        };
        match *step {
            Step::Load(register, word, order) => {
                let load = |which| {
                    let mut next = next.clone();
                    let value = next.load(thread, word, which, order);
                    next.threads[thread].registers[register] = value;
                    next
                };
                return self.visible(thread, word).map(load).collect();
            }
            Step::Store(word, value, order) => next.store(thread, word, value, View::default(), order),
            Step::Change(register, word, change, order) => {
                fence(&mut next);
                let old = next.change(thread, word, order, |old| change.of(old));
                next.threads[thread].registers[register] = old;
                fence(&mut next);
            }
            Step::Replace(register, word, from, to, order) => {
                fence(&mut next);
                let mut all = Vec::new();
                if self.latest(word) == from {
                    let mut next = next.clone();
                    next.change(thread, word, order, |_| to);
                    next.threads[thread].registers[register] = 1;
                    all.push(next);
                }
                for which in next.visible(thread, word) {
                    if self.words[word][which].value != from {
                        let mut next = next.clone();
                        next.load(thread, word, which, Ordering::Relaxed);
                        next.threads[thread].registers[register] = 0;
                        all.push(next);
                    }
                }
                all.iter_mut().for_each(fence);
                return all;
            }
            Step::Fence(order) => next.fence(thread, order),
            Step::FenceAfterChange if is_fenced => {}
            Step::FenceAfterChange => next.fence(thread, Ordering::SeqCst),
            Step::Sleep(word, register) => {
                if self.latest(word) == self.threads[thread].registers[register] {
                    return Vec::new();
                }
            }
            Step::IfAny(register, bits, place) => {
                if next.threads[thread].registers[register] & bits != 0 {
                    next.go(bounds, thread, place);
                }
            }
            Step::IfNone(register, bits, place) => {
                if next.threads[thread].registers[register] & bits == 0 {
                    next.go(bounds, thread, place);
                }
            }
            Step::Go(place) => next.go(bounds, thread, place),
            Step::Label(_) => {}
            Step::End(outcome) => {
                next.threads[thread].outcome = Some(outcome);
                next.threads[thread].at = bounds.threads[thread].len();
            }
        }
        vec![next]
    }

    fn go(&mut self, bounds: &Bounds, thread: usize, place: &str) {
        let is_place = |step: &Step| matches!(step, Step::Label(name) if *name == place);
        let at = bounds.threads[thread].iter().position(is_place);
        self.threads[thread].at = at.expect("a place of that name");
    }

    /// Continues through steps that concern no other thread.
    fn settle(mut self, bounds: &Bounds, thread: usize) -> Self {
        loop {
            let step = bounds.threads[thread].get(self.threads[thread].at);
            let is_own = matches!(
                step,
                Some(Step::IfAny(..) | Step::IfNone(..) | Step::Go(_) | Step::Label(_) | Step::End(_))
            );
            if !is_own {
                return self;
            }
            self = self.after_step_of(bounds, thread).swap_remove(0);
        }
    }
}

#[derive(Debug)]
pub(super) struct Taken {
    thread: usize,
    step: Step,
    registers: [u8; REGISTERS],
    machine: Machine,
}

impl fmt::Display for Taken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            thread,
            step,
            registers,
            ..
        } = self;
        write!(formatter, "thread {thread}: {step:?}, registers {registers:?}")
    }
}

impl explorer::Step for Taken {
    type System = Machine;

    fn is_death(&self) -> bool {
        false
    }

    fn system(&self) -> &Machine {
        &self.machine
    }

    fn into_system(self) -> Machine {
        self.machine
    }
}

impl explorer::System for Machine {
    type Bounds = Bounds;
    type Step = Taken;

    fn first(bounds: &Bounds) -> Self {
        let mut first = Self {
            words: bounds.words.map(|value| {
                vec![Stored {
                    value,
                    view: View::default(),
                }]
            }),
            threads: vec![Thread::default(); bounds.threads.len()],
            fenced: View::default(),
        };
        for thread in 0..bounds.threads.len() {
            first = first.settle(bounds, thread);
        }
        first
    }

    fn steps(&self, bounds: &Bounds) -> Vec<Taken> {
        let threads = 0..self.threads.len();
        threads
            .flat_map(|thread| {
                let after = self.after_step_of(bounds, thread).into_iter();
                after.map(move |machine| {
                    let registers = machine.threads[thread].registers;
                    Taken {
                        thread,
                        step: bounds.threads[thread][self.threads[thread].at],
                        registers,
                        machine: machine.settle(bounds, thread),
                    }
                })
            })
            .collect()
    }

    fn violation(&self, bounds: &Bounds) -> Option<&'static str> {
        let is_at_rest = |thread| self.after_step_of(bounds, thread).is_empty();
        let is_over = (0..self.threads.len()).all(is_at_rest);
        if is_over { (bounds.wrong)(self) } else { None }
    }

    fn is_good_end(&self, _: &Bounds) -> bool {
        true
    }
}
