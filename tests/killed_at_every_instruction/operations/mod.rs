//! What is killed: every public operation that takes a set's lock or changes its words.

pub mod changes;
pub mod drawing;
pub mod generated;
pub mod keys;
pub mod labels;
pub mod lapses;
pub mod leases;
pub mod marks;
pub mod overall;
pub mod subject;
pub mod tiers;
pub mod waiting;

use std::time::Duration;

use shmlimit::declare::{Align, Amount, Scope};
use shmlimit::fleet::Fleet;
use shmlimit::{
    Algorithm, Limit, LimitSet, OpenOptions, Permit, Request, Segment, SetDeclaration, VirtualClock,
};

use crate::beside::clock;
use crate::beside::room::{declaration, keeping_grants, with_room};
use crate::report::Way;
use crate::state::stage::PARTICIPANTS;
use crate::stepping::tracee::mark;
use changes::ADAPTING;
use subject::Subject;

/// So long that no window turns over and nothing is replenished while the proof runs.
pub const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

pub const SET: &str = "set";

/// The capacity of every concurrency limit.
const CONCURRENCY: u64 = 3;

/// The capacity of the concurrency limit in sets that are waited for.
pub const PLACES: u64 = 8;

/// The ways of being killed of which a short run tries one.
pub const DEATHS: &[Way] = &[Way::Killed, Way::Twice];

/// One operation, and what it is performed on.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    pub name: &'static str,
    pub set: fn() -> SetDeclaration,
    /// Whether another process dies before it, holding one of everything.
    pub after_a_death: bool,
    /// How many transactions its journal has: an operation that takes back what a dead process held does so in steps,
    /// and one that took some limits before another refused undoes them, twice if it looks for dead holders in between.
    pub transactions: usize,
    /// Whether it journals only one word, which cannot be torn.
    pub changes_one_word: bool,
    /// How many more transactions there may be, depending on the random order of owners.
    pub more_transactions: usize,
    /// How many processes wait in the queue beside it: each takes one of everything, and gives it back at once. They
    /// come when the operation calls [`Victim::lets_others_come`].
    pub waiters: usize,
    /// This many of them, the first ones, die when the operation calls [`Victim::lets_others_die`].
    pub dying: usize,
    /// Whether another process holds all places, and gives them back once the victim waits behind the others.
    pub is_served: bool,
    /// Whether others wait for what is used up of a rate: it stays charged if the victim dies before it gives it back.
    pub waits_for_a_rate: bool,
    /// Whether all leases are made to have run out before it begins.
    pub has_leases_run_out: bool,
    /// How many of the waiters are stopped from when they have taken their tickets until the victim is dead, whatever
    /// the others do.
    pub silent: usize,
    /// Whether the segment's clock stands still, except when the victim lets time pass.
    pub stands_still: bool,
    /// Whether it is killed for real at each of its instructions, and not only at those that change the segment and at
    /// intervals.
    pub killed_everywhere: bool,
    /// Whether the limits are those of a key: recovery takes longer then, and less is tried.
    pub is_keyed: bool,
    /// Whether it brings another definition into force, so that the next process to find that carries the limits over
    /// to it.
    pub applies: bool,
    /// Whether it draws batches, which a process keeps even without a permit, so that nothing is required of one that
    /// lives.
    pub draws: bool,
    /// Whether hosts share its limit, so that a later process asks the store. It is killed with nothing beside it.
    pub is_leased: bool,
    /// Prepares the operation, and performs it between [`Victim::begins`] and [`Victim::ends`].
    pub run: fn(&Victim),
    /// The seed from which set and operation were generated, if they were. Nothing is known about them then.
    pub seed: Option<u64>,
}

impl Operation {
    /// Whether it is also stopped, with others at work beside it.
    pub fn is_stopped(&self) -> bool {
        !self.draws && !self.is_leased && self.seed.is_none()
    }

    pub fn set(&self) -> SetDeclaration {
        self.seed.map_or_else(self.set, generated::set)
    }

    pub fn perform(&self, victim: &Victim) {
        match self.seed {
            Some(seed) => generated::perform(seed, victim),
            None => (self.run)(victim),
        }
    }

    /// What the `number`-th process beside the victim asks for: the same key if each key has its own queue, and another
    /// if keys are served in an order.
    pub fn subject_of_another(&self, set: &LimitSet, number: usize) -> Subject {
        let is_overall = |limit: &Limit| limit.options().scope() == Scope::AllKeys;
        if self.set().limits().iter().any(is_overall) {
            Subject::of_another(set, number)
        } else {
            Subject::of(set)
        }
    }

    /// The ways of which a short run tries one. If a definition is read, which makes up most of the steps, stopping
    /// victims is also one of these.
    pub fn ways_by_turns(&self) -> &'static [Way] {
        if self.applies {
            &[Way::Killed, Way::Twice, Way::Stopped]
        } else {
            DEATHS
        }
    }

    /// Whether others wait beside the operation, or serve it.
    pub fn has_company(&self) -> bool {
        self.waiters > 0 || self.is_served
    }
}

/// The process that performs an operation and is killed.
#[derive(Debug)]
pub struct Victim {
    segment: Segment,
    path: std::path::PathBuf,
    options: OpenOptions,
    /// Its clock, if that stands still.
    clock: Option<VirtualClock>,
    /// Whether a crew is at work beside it.
    has_crew: bool,
}

impl Victim {
    pub fn attach(path: &std::path::Path) -> Self {
        let (options, clock) = clock::options();
        Self {
            segment: options.open(path).expect("the segment"),
            path: path.to_owned(),
            options,
            clock,
            has_crew: false,
        }
    }

    pub fn attach_beside_a_crew(path: &std::path::Path) -> Self {
        Self {
            has_crew: true,
            ..Self::attach(path)
        }
    }

    /// Asserts what the victim finds when it is alone. What a crew gives back in the meantime may change that.
    pub fn expects(&self, is_so: bool) {
        assert!(is_so || self.has_crew);
    }

    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    pub fn segment(&self) -> &Segment {
        &self.segment
    }

    pub fn options(&self) -> &OpenOptions {
        &self.options
    }

    pub fn set(&self) -> LimitSet {
        self.segment.set(SET).expect("declared")
    }

    /// Lets this much time pass on a clock that stands still.
    pub fn passes(&self, time: Duration) {
        let clock = self.clock.as_ref().expect("a clock that stands still");
        clock.advance_to(clock.now() + time);
    }

    pub fn fleet(&self) -> Fleet {
        self.segment.fleet()
    }

    /// The victim now has what the others will wait for.
    pub fn lets_others_come(&self) {
        mark();
    }

    pub fn lets_others_die(&self) {
        mark();
    }

    /// How many keys have a row.
    pub fn keys(&self) -> u64 {
        let snapshot = self.segment.snapshot().expect("memory for a copy");
        snapshot.sets[0].keys.expect("a keyed set").in_use
    }

    /// Brings another definition of the set into force.
    pub fn apply(&self, set: SetDeclaration) {
        let set = if self.has_crew { with_room(set) } else { set };
        let declaration = declaration()
            .participants(PARTICIPANTS)
            .add_set(keeping_grants(set));
        self.begins();
        let applied = self
            .segment
            .apply(&declaration)
            .is_ok_and(|changes| !changes.is_empty());
        self.ends();
        assert!(applied);
    }

    /// Gives back what the dead have left.
    pub fn recover(&self) -> Result<shmlimit::snapshot::RecoveryReport, shmlimit::Error> {
        self.segment.recover()
    }

    /// From the next instruction on, the victim may be killed.
    pub fn begins(&self) {
        mark();
    }

    /// The operation has finished.
    pub fn ends(&self) {
        mark();
    }

    /// The operation is a request that is admitted.
    pub fn is_admitted(&self, set: &LimitSet, request: &Request) {
        self.asks(set, request, true);
    }

    /// The operation is a request that is refused.
    pub fn is_refused(&self, set: &LimitSet, request: &Request) {
        self.asks(set, request, false);
    }

    fn asks(&self, set: &LimitSet, request: &Request, is_admitted: bool) {
        let subject = Subject::of(set);
        self.begins();
        let outcome = subject.try_acquire(request);
        self.ends();
        self.expects(outcome.expect("works").is_admitted() == is_admitted);
    }
}

/// A request for `cost` of every rate, one of every concurrency limit unless the cost is zero, and nothing of the
/// budgets, which take nothing up front.
pub fn everything(set: &LimitSet, cost: u64) -> Request<'_> {
    let mut request = set.request();
    for name in set.limits() {
        let cost = match name {
            _ if name.starts_with("budget") => 0,
            "in_flight" | "connections" | ADAPTING => cost.min(1),
            _ => cost,
        };
        request.set_cost(name, cost).expect("declared");
    }
    request
}

pub fn admitted<'a>(set: &'a LimitSet, request: &Request<'a>) -> Permit<'a> {
    Subject::of(set)
        .try_acquire(request)
        .expect("works")
        .into_result()
        .expect("admitted")
}

/// A set with few tickets: segments are copied many times.
fn small_set() -> SetDeclaration {
    SetDeclaration::new(SET).waiters(2)
}

fn one_limit() -> SetDeclaration {
    small_set().add_limit(Limit::calls("requests", 100, YEAR))
}

fn three_limits() -> SetDeclaration {
    small_set()
        .add_limit(Limit::calls("requests", 100, YEAR))
        .add_limit(Limit::rate("tokens", 10_000, YEAR).algorithm(Algorithm::TokenBucket))
        .add_limit(Limit::concurrency("in_flight", CONCURRENCY))
}

fn sixteen_limits() -> SetDeclaration {
    let rate = |name: &str| Limit::rate(name, 10_000, YEAR);
    small_set()
        .holds(4)
        .add_limit(Limit::calls("calls by gcra", 100, YEAR))
        .add_limit(rate("gcra"))
        .add_limit(rate("token bucket").algorithm(Algorithm::TokenBucket).burst(50))
        .add_limit(rate("leaky bucket").algorithm(Algorithm::LeakyBucket))
        .add_limit(rate("window by the clock").algorithm(Algorithm::FixedWindow))
        .add_limit(
            rate("window from first use")
                .algorithm(Algorithm::FixedWindow)
                .align(Align::FirstUse),
        )
        .add_limit(
            Limit::rate("window of a month", 10_000, shmlimit::Window::Month)
                .algorithm(Algorithm::FixedWindow),
        )
        .add_limit(
            rate("sliding window")
                .algorithm(Algorithm::SlidingWindow)
                .entries(4),
        )
        .add_limit(
            rate("sliding window of one")
                .algorithm(Algorithm::SlidingWindow)
                .entries(1),
        )
        .add_limit(rate("sliding counter").algorithm(Algorithm::SlidingWindowCounter))
        .add_limit(
            rate("two counters")
                .algorithm(Algorithm::SlidingWindowCounter)
                .buckets(1),
        )
        .add_limit(Limit::budget("budget", 10_000, YEAR))
        .add_limit(Limit::budget(
            "budget by the clock",
            10_000,
            shmlimit::Window::Month,
        ))
        .add_limit(Limit::calls("unlimited", Amount::Unlimited, YEAR))
        .add_limit(Limit::concurrency("in_flight", CONCURRENCY))
        .add_limit(Limit::concurrency("connections", CONCURRENCY))
}

fn sliding_windows() -> SetDeclaration {
    (1..16).fold(
        small_set().add_limit(Limit::concurrency("in_flight", CONCURRENCY)),
        |set, number| {
            set.add_limit(
                Limit::rate(format!("window {number}"), 10_000, YEAR)
                    .algorithm(Algorithm::SlidingWindow)
                    .entries(2),
            )
        },
    )
}

pub fn acquire(victim: &Victim) {
    let set = victim.set();
    let request = everything(&set, 1);
    // Tests neither the first hold of the table nor the first entry of a log, but the second, after one that was given
    // back.
    drop(admitted(&set, &request));
    let _held = admitted(&set, &request);
    victim.is_admitted(&set, &request);
}

pub fn first_acquire(victim: &Victim) {
    let set = victim.set();
    let request = everything(&set, 1);
    victim.is_admitted(&set, &request);
}

pub fn acquire_beyond_a_rate(victim: &Victim) {
    let set = victim.set();
    let request = everything(&set, 1);
    let _held = admitted(&set, &request.clone().with("requests", 100).expect("declared"));
    victim.is_refused(&set, &request);
}

fn acquire_beyond_concurrency(victim: &Victim) {
    let set = victim.set();
    let request = everything(&set, 1);
    let last = set.limits().last().expect("several");
    let all_of_it = request.clone().with(last, CONCURRENCY).expect("declared");
    let _held = admitted(&set, &all_of_it);
    victim.is_refused(&set, &request);
}

pub fn acquire_what_a_dead_process_holds(victim: &Victim) {
    let set = victim.set();
    let request = everything(&set, 1)
        .with("in_flight", CONCURRENCY)
        .expect("declared");
    // What the dead process held is given back for this.
    victim.is_admitted(&set, &request);
}

pub fn recover(victim: &Victim) {
    victim.begins();
    let report = victim.segment.recover();
    victim.ends();
    victim.expects(report.expect("works").sets[0].reclaimed == 1);
}

fn settle(victim: &Victim, reserved: u64, used: u64) {
    let set = victim.set();
    let mut permit = admitted(&set, &everything(&set, reserved));
    // By position, as the hot path does: names are compared by the caller, not by the operation.
    let usage: Vec<_> = set
        .limits()
        .filter_map(|name| Some((set.limit_index(name)?, used)))
        .collect();
    victim.begins();
    let settled = permit.settle(usage).is_ok();
    victim.ends();
    assert!(settled);
}

pub fn settle_with_refund(victim: &Victim) {
    settle(victim, 20, 5);
}

/// Everything that was reserved comes back, and everything that is held.
fn cancel(victim: &Victim) {
    let set = victim.set();
    let mut permit = admitted(&set, &everything(&set, 2));
    victim.begins();
    let cancelled = permit.cancel();
    victim.ends();
    cancelled.expect("works");
}

pub fn settle_with_overdraft(victim: &Victim) {
    settle(victim, 20, 30_000);
}

pub fn release(victim: &Victim) {
    let set = victim.set();
    let mut permit = admitted(&set, &everything(&set, 2));
    let _ = permit.settle([("tokens", 1)]).expect("works");
    victim.begins();
    let released = permit.release();
    victim.ends();
    released.expect("works");
}

/// First the throttling, then the release.
pub fn throttled(victim: &Victim) {
    let set = victim.set();
    let mut permit = admitted(&set, &everything(&set, 1));
    victim.begins();
    let throttled = permit.throttled(YEAR).is_ok();
    victim.ends();
    assert!(throttled);
}

pub fn drop_unsettled(victim: &Victim) {
    let set = victim.set();
    let permit = admitted(&set, &everything(&set, 2));
    victim.begins();
    drop(permit);
    victim.ends();
}

fn reset_everything(victim: &Victim) {
    let set = victim.set();
    let _held = admitted(&set, &everything(&set, 2));
    drop(admitted(&set, &everything(&set, 1)));
    victim.begins();
    let reset = set.reset().counters().run();
    victim.ends();
    reset.expect("works");
}

fn reset_two_limits(victim: &Victim) {
    let set = victim.set();
    let _held = admitted(&set, &everything(&set, 2));
    victim.begins();
    let reset = set.reset().limits(["requests", "tokens"]).run();
    victim.ends();
    reset.expect("works");
}

fn peek(victim: &Victim) {
    let set = victim.set();
    let request = everything(&set, 1);
    let subject = Subject::of(&set);
    victim.begins();
    let verdicts = subject.peek(&request).map(|verdicts| verdicts.len());
    victim.ends();
    verdicts.expect("works");
}

fn snapshot(victim: &Victim) {
    victim.begins();
    let snapshot = victim.segment.snapshot();
    victim.ends();
    snapshot.expect("works");
}

pub const fn operation(
    name: &'static str,
    set: fn() -> SetDeclaration,
    transactions: usize,
    run: fn(&Victim),
) -> Operation {
    Operation {
        name,
        set,
        after_a_death: false,
        killed_everywhere: false,
        transactions,
        changes_one_word: false,
        more_transactions: 0,
        waiters: 0,
        dying: 0,
        is_served: false,
        has_leases_run_out: false,
        waits_for_a_rate: false,
        silent: 0,
        stands_still: false,
        is_keyed: false,
        applies: false,
        draws: false,
        is_leased: false,
        run,
        seed: None,
    }
}

pub const OPERATIONS: &[Operation] = &[
    Operation {
        killed_everywhere: true,
        changes_one_word: true,
        ..operation("try_acquire, 1 limit", one_limit, 1, acquire)
    },
    operation("try_acquire, 3 limits", three_limits, 1, acquire),
    operation("try_acquire, 3 limits, first use", three_limits, 1, first_acquire),
    operation("try_acquire, 16 limits", sixteen_limits, 1, acquire),
    operation(
        "try_acquire, 16 limits, first use",
        sixteen_limits,
        1,
        first_acquire,
    ),
    operation("try_acquire, 15 sliding windows", sliding_windows, 1, acquire),
    operation("refused by a rate", three_limits, 0, acquire_beyond_a_rate),
    operation(
        "refused by concurrency",
        three_limits,
        2,
        acquire_beyond_concurrency,
    ),
    operation(
        "refused by the last of 16 limits",
        sixteen_limits,
        2,
        acquire_beyond_concurrency,
    ),
    operation(
        "settle with refund, 3 limits",
        three_limits,
        1,
        settle_with_refund,
    ),
    operation(
        "settle with refund, 16 limits",
        sixteen_limits,
        1,
        settle_with_refund,
    ),
    operation(
        "settle with refund, 15 sliding windows",
        sliding_windows,
        1,
        settle_with_refund,
    ),
    // First what is settled, then what is held.
    operation("cancel, 16 limits", sixteen_limits, 2, cancel),
    operation("cancel, 15 sliding windows", sliding_windows, 2, cancel),
    operation(
        "settle with overdraft, 3 limits",
        three_limits,
        1,
        settle_with_overdraft,
    ),
    operation(
        "settle with overdraft, 16 limits",
        sixteen_limits,
        1,
        settle_with_overdraft,
    ),
    Operation {
        killed_everywhere: true,
        ..operation("release", three_limits, 1, release)
    },
    Operation {
        killed_everywhere: true,
        ..operation("throttled", three_limits, 2, throttled)
    },
    Operation {
        killed_everywhere: true,
        ..operation("drop of a permit, 1 limit", one_limit, 0, drop_unsettled)
    },
    operation("drop of a permit, 3 limits", three_limits, 1, drop_unsettled),
    operation("drop of a permit, 16 limits", sixteen_limits, 1, drop_unsettled),
    Operation {
        after_a_death: true,
        // Undoing what was taken before the held limit refused, taking back from the dead, and the admission.
        ..operation(
            "try_acquire of what the dead hold",
            three_limits,
            3,
            acquire_what_a_dead_process_holds,
        )
    },
    Operation {
        after_a_death: true,
        ..operation("recover, a dead holder, 16 limits", sixteen_limits, 1, recover)
    },
    operation("reset of two limits", three_limits, 1, reset_two_limits),
    operation("reset of everything, 3 limits", three_limits, 1, reset_everything),
    operation(
        "reset of everything, 16 limits",
        sixteen_limits,
        1,
        reset_everything,
    ),
    operation("peek", three_limits, 0, peek),
    operation("snapshot", three_limits, 0, snapshot),
];

/// What the survivor does next, over and over. It is also killed.
#[derive(Clone, Copy, Debug)]
pub struct Recoverer {
    pub name: &'static str,
    /// Unless the run is thorough, it is only let loose on every so-many-th crash state: on all of them if it only
    /// recovers, and on fewer if it does more. The last one spends most of its time looking around in `/proc`.
    pub every: usize,
    pub run: fn(&Victim),
}

fn peek_for_ever(victim: &Victim) {
    let set = victim.set();
    let request = everything(&set, 0);
    let subject = Subject::of(&set);
    loop {
        victim.begins();
        let verdicts = subject.peek(&request);
        victim.ends();
        verdicts.expect("works");
    }
}

fn acquire_for_ever(victim: &Victim) {
    let set = victim.set();
    let request = everything(&set, 1);
    let subject = Subject::of(&set);
    loop {
        victim.begins();
        let outcome = subject.try_acquire(&request);
        victim.ends();
        // By now, what was taken is gone from the segment, so it must not be given back.
        std::mem::forget(outcome.expect("works"));
    }
}

fn recover_for_ever(victim: &Victim) {
    loop {
        victim.begins();
        let report = victim.segment.recover();
        victim.ends();
        report.expect("works");
    }
}

pub const RECOVERERS: &[Recoverer] = &[
    Recoverer {
        name: "peek",
        every: 1,
        run: peek_for_ever,
    },
    Recoverer {
        name: "try_acquire",
        every: 4,
        run: acquire_for_ever,
    },
    Recoverer {
        name: "recover",
        every: 32,
        run: recover_for_ever,
    },
];
