//! Each rule against a slow, obviously correct model, over random traces.

mod adaptive_tests;
mod backlog_rules_tests;
mod concurrency_tests;
mod every_rule;
mod lease;
mod oracle;
mod server;
mod state_words_tests;
mod trace_tests;
mod window;

use super::{Assessment, Charge, Now, Rule, RuleOperations, Standing, State, StateMut};

impl State for [u64] {
    fn load(&self, index: usize) -> u64 {
        self[index]
    }
}

impl StateMut for [u64] {
    fn store(&mut self, index: usize, value: u64) {
        self[index] = value;
    }
}

/// Counts the stores.
struct Counting<'a> {
    words: &'a mut [u64],
    stores: usize,
}

impl State for Counting<'_> {
    fn load(&self, index: usize) -> u64 {
        self.words[index]
    }
}

impl StateMut for Counting<'_> {
    fn store(&mut self, index: usize, value: u64) {
        self.stores += 1;
        self.words[index] = value;
    }
}

/// A rule with its state.
#[derive(Clone, Debug)]
struct Limit {
    rule: Rule,
    words: Vec<u64>,
}

impl Limit {
    fn new(rule: Rule) -> Self {
        Self {
            rule,
            words: vec![0; rule.state_words()],
        }
    }

    fn assess(&self, now: Now, cost: u64) -> Assessment {
        self.rule.assess(self.words.as_slice(), now, cost)
    }

    fn admits(&self, now: Now, cost: u64) -> bool {
        self.assess(now, cost) == Assessment::Admissible
    }

    fn charge(&mut self, now: Now, cost: u64) {
        let mut state = Counting {
            words: &mut self.words,
            stores: 0,
        };
        self.rule.charge(&mut state, now, cost);
        assert!(
            state.stores <= if cost == 0 { 0 } else { 5 },
            "{} stores",
            state.stores
        );
    }

    /// Takes the cost if it is admissible.
    fn take(&mut self, now: Now, cost: u64) -> Assessment {
        let assessment = self.assess(now, cost);
        if assessment == Assessment::Admissible {
            self.charge(now, cost);
        }
        assessment
    }

    /// A charge made just now, without a mark of how it left the limit.
    fn unmarked(now: Now, cost: u64) -> Charge {
        Charge {
            instant: now.monotonic,
            mark: None,
            cost,
            units_after: 0,
        }
    }

    fn refund(&mut self, now: Now, units: u64, charge: &Charge) -> u64 {
        let mut state = Counting {
            words: &mut self.words,
            stores: 0,
        };
        let given = self.rule.refund(&mut state, now, units, charge);
        if !matches!(self.rule, Rule::SlidingWindow(_)) {
            assert!(state.stores <= 2, "{} stores", state.stores);
        }
        given
    }

    /// Refunds any of what was charged to a limit that keeps a backlog.
    fn refund_any(&mut self, now: Now, units: u64) -> u64 {
        self.refund(now, units, &Self::unmarked(now, u64::MAX))
    }

    fn is_replenished(&self, now: Now) -> bool {
        self.rule.is_replenished(self.words.as_slice(), now)
    }

    /// Continues as another rule.
    fn become_other(&mut self, new: Rule, now: Now) {
        assert!(new.can_migrate(&self.rule));
        new.migrate(&self.rule, self.words.as_mut_slice(), now);
        self.rule = new;
    }

    /// Returns how many words it stores.
    fn reset(&mut self) -> usize {
        let mut state = Counting {
            words: &mut self.words,
            stores: 0,
        };
        self.rule.reset(&mut state);
        state.stores
    }

    fn standing(&self, now: Now) -> Standing {
        self.rule.standing(self.rule.mark(self.words.as_slice(), now))
    }

    fn remaining(&self, now: Now) -> u64 {
        self.standing(now).remaining
    }
}

/// Both clocks at the same number of nanoseconds.
fn at(nanos: u64) -> Now {
    by_clocks(nanos, nanos)
}

fn by_clocks(monotonic: u64, utc: u64) -> Now {
    Now { monotonic, utc }
}

fn refused_for(nanos: u64) -> Assessment {
    Assessment::Refused {
        retry_after: Some(nanos),
    }
}

const REFUSED_FOR_EVER: Assessment = Assessment::Refused { retry_after: None };
