//! Visits every reachable state, and reports the steps that lead to the first forbidden one.

use std::collections::hash_map::{DefaultHasher, Entry};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{Hash, Hasher};

/// The whole state of the explored system at one moment.
pub(crate) trait System: Hash + Sized {
    /// What to explore of it.
    type Bounds: fmt::Debug;
    type Step: Step<System = Self>;

    fn first(bounds: &Self::Bounds) -> Self;

    /// Every step that can be taken from here.
    fn steps(&self, bounds: &Self::Bounds) -> Vec<Self::Step>;

    /// What must hold in every state but does not.
    fn violation(&self, bounds: &Self::Bounds) -> Option<&'static str>;

    /// Whether nothing is left to do, in a state from which no step can be taken.
    fn is_good_end(&self, bounds: &Self::Bounds) -> bool;
}

/// A step, and the state it leads to.
pub(crate) trait Step: fmt::Display {
    type System;

    /// Whether the step is optional.
    fn is_death(&self) -> bool;

    fn system(&self) -> &Self::System;

    fn into_system(self) -> Self::System;
}

/// More states than any of the explored models has, so that an endless exploration fails.
const MAX_STATES: u32 = 40_000_000;

/// Counts of what was visited.
#[derive(Clone, Copy, Debug)]
struct Visited {
    states: u32,
    steps: usize,
    /// States in which nothing is left to do.
    ends: usize,
}

impl fmt::Display for Visited {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, steps, ends } = self;
        write!(formatter, "{states} states, {steps} steps, {ends} ends")
    }
}

/// A forbidden state, and the steps that lead to it.
struct Violation {
    what: &'static str,
    steps: Vec<String>,
}

impl fmt::Debug for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{}:", self.what)?;
        for step in &self.steps {
            writeln!(formatter, "  {step}")?;
        }
        Ok(())
    }
}

/// The states seen so far, by their hash: with 128 bits, no two of them collide.
struct Seen {
    numbers: HashMap<u128, u32>,
    /// For each state, the state from which it was first reached, and by which of its steps.
    origins: Vec<(u32, u32)>,
}

/// Everything a state consists of, in a row.
struct Bytes(Vec<u8>);

impl Hasher for Bytes {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn finish(&self) -> u64 {
        0
    }
}

impl Seen {
    /// The number of a state, and whether it is new.
    fn number(&mut self, system: &impl System, origin: (u32, u32)) -> (u32, bool) {
        let mut bytes = Bytes(Vec::with_capacity(512));
        system.hash(&mut bytes);
        let half = |salt: u64| {
            let mut hasher = DefaultHasher::new();
            salt.hash(&mut hasher);
            hasher.write(&bytes.0);
            u128::from(hasher.finish())
        };
        let next = self.origins.len() as u32;
        match self.numbers.entry(half(0) << 64 | half(1)) {
            Entry::Occupied(entry) => (*entry.get(), false),
            Entry::Vacant(entry) => {
                entry.insert(next);
                self.origins.push(origin);
                (next, true)
            }
        }
    }

    fn violation<S: System>(&self, what: &'static str, state: u32, bounds: &S::Bounds) -> Violation {
        let mut choices = Vec::new();
        let mut at = state;
        while at != 0 {
            let (before, choice) = self.origins[at as usize];
            choices.push(choice);
            at = before;
        }
        let mut system = S::first(bounds);
        let mut steps = Vec::new();
        for choice in choices.into_iter().rev() {
            let step = system.steps(bounds).swap_remove(choice as usize);
            steps.push(step.to_string());
            system = step.into_system();
        }
        Violation { what, steps }
    }
}

/// Visits all states within the bounds.
fn explore<S: System>(bounds: &S::Bounds) -> Result<Visited, Violation> {
    let mut seen = Seen {
        numbers: HashMap::new(),
        origins: Vec::new(),
    };
    let first = S::first(bounds);
    seen.number(&first, (0, 0));
    let mut left = VecDeque::from([(0, first)]);
    // Steps other than deaths, to be walked backwards.
    let mut steps_taken: Vec<(u32, u32)> = Vec::new();
    let mut good_ends = Vec::new();
    let mut steps_in_all = 0;
    while let Some((number, system)) = left.pop_front() {
        if let Some(what) = system.violation(bounds) {
            return Err(seen.violation::<S>(what, number, bounds));
        }
        let steps = system.steps(bounds);
        steps_in_all += steps.len();
        if steps.iter().all(|step| step.is_death()) {
            if !system.is_good_end(bounds) {
                let what = "no process can go on, and not all are done or something is left";
                return Err(seen.violation::<S>(what, number, bounds));
            }
            good_ends.push(number);
        }
        for (choice, step) in steps.into_iter().enumerate() {
            let (next, is_new) = seen.number(step.system(), (number, choice as u32));
            if !step.is_death() {
                steps_taken.push((next, number));
            }
            if is_new {
                left.push_back((next, step.into_system()));
            }
        }
        assert!(
            seen.origins.len() < MAX_STATES as usize,
            "there is no end of states"
        );
    }
    let ends = good_ends.len();
    let states = seen.origins.len() as u32;
    if let Some(stuck) = first_that_leads_nowhere(states, steps_taken, good_ends) {
        let what = "whatever happens from here on, not all come to an end";
        return Err(seen.violation::<S>(what, stuck, bounds));
    }
    Ok(Visited {
        states,
        steps: steps_in_all,
        ends,
    })
}

/// The first state from which no end can be reached without further deaths.
fn first_that_leads_nowhere(states: u32, mut steps: Vec<(u32, u32)>, ends: Vec<u32>) -> Option<u32> {
    steps.sort_unstable();
    let mut leads_somewhere = vec![false; states as usize];
    let mut left = ends;
    for end in &left {
        leads_somewhere[*end as usize] = true;
    }
    while let Some(state) = left.pop() {
        let first = steps.partition_point(|(to, _)| *to < state);
        for (_, from) in steps[first..].iter().take_while(|(to, _)| *to == state) {
            if !leads_somewhere[*from as usize] {
                leads_somewhere[*from as usize] = true;
                left.push(*from);
            }
        }
    }
    let stuck = leads_somewhere.iter().position(|leads| !leads);
    stuck.map(|stuck| stuck as u32)
}

/// Explores and expects to find nothing wrong. There must be at least `at_least` states: a model that shrinks unnoticed
/// no longer shows anything.
pub(crate) fn nothing_is_wrong<S: System>(bounds: &S::Bounds, at_least: u32) {
    match explore::<S>(bounds) {
        Ok(visited) => {
            println!("{visited} in {bounds:?}");
            assert!(visited.states >= at_least, "only {visited} in {bounds:?}");
        }
        Err(violation) => panic!("{violation:?} in {bounds:?}"),
    }
}

/// Explores with a mistake among the bounds, and expects to find its consequence.
pub(crate) fn is_found<S: System>(bounds: &S::Bounds, what: &str) {
    match explore::<S>(bounds) {
        Ok(visited) => panic!("nothing was found: {visited} in {bounds:?}"),
        Err(violation) => {
            println!("{violation:?} in {bounds:?}");
            assert_eq!(violation.what, what);
        }
    }
}
