//! Explores the protocol of queue, journal, lock, waiter futexes and recovery: every order in which two or three
//! processes can take their steps, and every step at which one of them can die.
//!
//! The queue operations are the functions that the engine uses; what surrounds them follows the engine step by step:
//! `waiting.rs`, `grant.rs`, `notify.rs`, `settlement.rs`, `reclaim.rs`, `repairs.rs`, `futex.rs` and the journal. A
//! sleeper only looks again without being woken if a process has died: either it was notified of that, or its
//! liveness check was due. As long as no process dies, every wake comes from another process.

mod memory;
mod section;
mod system;

use system::System;

use crate::explorer;

/// One of a process's actions, which it takes in order.
#[derive(Clone, Copy, Debug)]
enum Action {
    /// Waits for this many units, without limit or until its time is up.
    Acquire(u8),
    /// Gives back what it took last. Does nothing if that was refused.
    Release,
}

use Action::{Acquire, Release};

#[derive(Clone, Copy, Debug)]
struct Script {
    actions: &'static [Action],
    /// How many ticks each of its requests waits at most.
    timeout: Option<u8>,
    /// Whether its time may be up at any moment.
    has_deadline: bool,
    /// Whether it may give up while another process has the lock, and leave without it.
    gives_up: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LimitKind {
    /// Units are given back.
    Concurrency,
    /// A unit comes back with every tick.
    Rate,
}

/// What others can see while a process has the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Granularity {
    /// Every store.
    EveryStore,
    /// Every store of a process that dies with the lock, and otherwise nothing until it is released. Enough for
    /// everything except reads without the lock.
    EverySection,
}

/// A deliberate mistake, to show that the model would find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    CollectsWhatLapsed,
    LapseKeepsWhatWasTaken,
    NothingLapses,
    ChangeBeforeCount,
    CollectingLosesTheWakeOfAnother,
    CollectingServesNone,
    CountBeforeEntry,
    GrantReadsItsOwnerTwice,
    GrantsWhoseTimeIsUp,
    GrantWithoutUnlink,
    LeaverServesNone,
    LookServesNone,
    NewHeadIsNotWoken,
    NoJournal,
    Overtaking,
    ReclaimLosesTheEarlierWake,
    ReleaseServesNone,
    SleepWithoutComparing,
    WakeWithoutAdvance,
}

/// What to explore.
#[derive(Clone, Debug)]
struct Bounds {
    scripts: Vec<Script>,
    limit: LimitKind,
    capacity: u8,
    tickets: u8,
    /// How many processes may die.
    deaths: u8,
    /// How many may be stopped; they may go on later.
    stops: u8,
    /// How often a live process may be too slow to collect what it was granted.
    graces: u8,
    /// How often time passes.
    ticks: u8,
    /// Whether sleepers check for deaths now and then, once a process has died.
    liveness_check: bool,
    /// Whether every recovery also recounts what it could leave as it is.
    rebuilds: bool,
    granularity: Granularity,
    mistake: Option<Mistake>,
}

/// Takes a unit and gives it back.
const ONCE: Script = Script {
    actions: &[Acquire(1), Release],
    timeout: None,
    has_deadline: false,
    gives_up: false,
};

const TWICE: Script = Script {
    actions: &[Acquire(1), Release, Acquire(1), Release],
    timeout: None,
    has_deadline: false,
    gives_up: false,
};

const BOTH_AT_ONCE: Script = Script {
    actions: &[Acquire(2), Release],
    timeout: None,
    has_deadline: false,
    gives_up: false,
};

/// Holds a unit while it waits for another.
const ONE_AFTER_THE_OTHER: Script = Script {
    actions: &[Acquire(1), Acquire(1), Release, Release],
    timeout: None,
    has_deadline: false,
    gives_up: false,
};

/// Takes a unit and never gives it back.
const SPEND: Script = Script {
    actions: &[Acquire(1)],
    timeout: None,
    has_deadline: false,
    gives_up: false,
};

const fn in_time(script: Script) -> Script {
    Script {
        has_deadline: true,
        ..script
    }
}

/// The same script, waiting for at most `timeout` ticks.
const fn waiting_for(timeout: u8, script: Script) -> Script {
    Script {
        timeout: Some(timeout),
        ..script
    }
}

const fn impatient(script: Script) -> Script {
    Script {
        gives_up: true,
        ..script
    }
}

impl Bounds {
    fn new(capacity: u8, scripts: &[Script]) -> Self {
        Self {
            scripts: scripts.to_vec(),
            limit: LimitKind::Concurrency,
            capacity,
            tickets: scripts.len() as u8,
            deaths: 0,
            stops: 0,
            graces: 0,
            ticks: 0,
            liveness_check: false,
            rebuilds: false,
            granularity: Granularity::EveryStore,
            mistake: None,
        }
    }

    fn rate(capacity: u8, scripts: &[Script]) -> Self {
        let costs = scripts.iter().flat_map(|script| script.actions);
        let ticks = costs.map(|action| match action {
            Acquire(cost) => *cost,
            Release => 0,
        });
        Self {
            limit: LimitKind::Rate,
            ticks: ticks.sum(),
            ..Self::new(capacity, scripts)
        }
    }

    fn deaths(self, deaths: u8) -> Self {
        Self {
            deaths,
            liveness_check: true,
            ..self
        }
    }

    /// One process may be stopped, and one may be slow.
    fn stops(self) -> Self {
        Self {
            stops: 1,
            graces: 1,
            liveness_check: true,
            ..self
        }
    }

    fn by_section(self) -> Self {
        Self {
            granularity: Granularity::EverySection,
            ..self
        }
    }
}

fn nothing_is_wrong(bounds: &Bounds, at_least: u32) {
    explorer::nothing_is_wrong::<System>(bounds, at_least);
}

fn is_found(mistake: Mistake, bounds: Bounds, what: &str) {
    let bounds = Bounds {
        mistake: Some(mistake),
        ..bounds
    };
    explorer::is_found::<System>(&bounds, what);
}

const STUCK: &str = "no process can go on, and not all are done or something is left";
const IDLE: &str = "a request waits for what is free";
const NOT_WOKEN: &str = "a waiter futex was advanced, and no process is going to wake its sleeper";
const UNACCOUNTED: &str = "something is held that no permit and no ticket stands for";

#[test]
fn two_processes_never_get_in_each_others_way() {
    nothing_is_wrong(&Bounds::new(1, &[ONCE, ONCE]), 800);
    nothing_is_wrong(&Bounds::new(1, &[in_time(TWICE), TWICE]), 16_000);
    nothing_is_wrong(
        &Bounds::new(2, &[BOTH_AT_ONCE, in_time(ONE_AFTER_THE_OTHER)]),
        2_400,
    );
    nothing_is_wrong(&Bounds::rate(1, &[SPEND, SPEND]), 400);
}

#[test]
fn three_processes_never_get_in_each_others_way() {
    nothing_is_wrong(&Bounds::new(1, &[ONCE, ONCE, ONCE]), 29_000);
    nothing_is_wrong(
        &Bounds::new(2, &[in_time(TWICE), TWICE, BOTH_AT_ONCE]).by_section(),
        29_000,
    );
    nothing_is_wrong(
        &Bounds::rate(1, &[in_time(SPEND), SPEND, SPEND]).by_section(),
        2_900,
    );
}

#[test]
fn time_may_be_up_for_one_or_two_before_another() {
    let bounds = |scripts: &[Script]| Bounds {
        ticks: 2,
        ..Bounds::new(1, scripts)
    };
    nothing_is_wrong(&bounds(&[ONCE, waiting_for(1, ONCE)]), 1_500);
    let both = [waiting_for(1, TWICE), waiting_for(2, ONCE)];
    nothing_is_wrong(&bounds(&both).deaths(1), 30_000);
    let three = [ONCE, waiting_for(1, ONCE), ONCE];
    nothing_is_wrong(&bounds(&three).by_section(), 5_000);
    let by_time = [waiting_for(1, SPEND), SPEND, SPEND];
    nothing_is_wrong(&Bounds::rate(1, &by_time).by_section(), 1_500);
}

#[test]
fn a_process_that_is_stopped_or_slow_keeps_nothing_from_others() {
    nothing_is_wrong(&Bounds::new(1, &[ONCE, ONCE]).stops(), 2_000);
    nothing_is_wrong(&Bounds::rate(1, &[SPEND, SPEND]).stops(), 900);
    nothing_is_wrong(&Bounds::new(1, &[ONCE, ONCE, ONCE]).by_section().stops(), 10_000);
    let in_time = Bounds {
        ticks: 1,
        ..Bounds::new(1, &[ONCE, waiting_for(1, ONCE)]).by_section()
    };
    nothing_is_wrong(&in_time.stops(), 900);
    nothing_is_wrong(&Bounds::new(1, &[ONCE, ONCE]).deaths(1).stops(), 20_000);
}

#[test]
fn a_queue_that_is_full_refuses_and_goes_on() {
    let bounds = Bounds {
        tickets: 1,
        ..Bounds::new(1, &[in_time(TWICE), TWICE, ONCE]).by_section()
    };
    nothing_is_wrong(&bounds, 16_000);
}

#[test]
fn either_or_both_of_two_processes_may_die_at_every_store() {
    nothing_is_wrong(&Bounds::new(1, &[ONCE, ONCE]).deaths(2), 23_000);
    nothing_is_wrong(
        &Bounds::new(2, &[BOTH_AT_ONCE, in_time(ONE_AFTER_THE_OTHER)]).deaths(1),
        54_000,
    );
    nothing_is_wrong(&Bounds::rate(1, &[SPEND, SPEND]).deaths(2), 5_500);
}

#[test]
fn a_rebuild_may_be_cut_short_at_every_store() {
    let bounds = Bounds {
        rebuilds: true,
        ..Bounds::new(1, &[ONCE, ONCE]).deaths(2)
    };
    nothing_is_wrong(&bounds, 25_000);
}

#[test]
fn one_of_three_processes_may_die_at_every_store() {
    nothing_is_wrong(
        &Bounds::new(1, &[ONCE, ONCE, ONCE]).by_section().deaths(1),
        250_000,
    );
}

#[test]
fn one_of_three_processes_may_die_at_every_store_where_two_are_served_at_once() {
    nothing_is_wrong(
        &Bounds::new(2, &[BOTH_AT_ONCE, ONCE, ONCE]).by_section().deaths(1),
        150_000,
    );
}

#[test]
fn a_ticket_may_be_given_up_without_the_lock_at_every_store() {
    let bounds = Bounds {
        liveness_check: true,
        ..Bounds::new(1, &[TWICE, impatient(in_time(TWICE))])
    };
    nothing_is_wrong(&bounds, 45_000);
    nothing_is_wrong(
        &Bounds::new(1, &[ONCE, impatient(in_time(ONCE))]).deaths(1),
        23_000,
    );
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes unless it is optimised")]
fn as_far_as_an_optimised_explorer_gets() {
    nothing_is_wrong(&Bounds::new(1, &[TWICE, TWICE]).deaths(2), 290_000);
    nothing_is_wrong(
        &Bounds::new(1, &[in_time(TWICE), TWICE, TWICE]).by_section(),
        320_000,
    );
    let three = Bounds::new(1, &[ONCE, in_time(ONCE), ONCE]);
    nothing_is_wrong(&three.clone().deaths(1), 2_600_000);
    nothing_is_wrong(&three.by_section().deaths(2), 1_700_000);
    nothing_is_wrong(
        &Bounds::new(2, &[ONE_AFTER_THE_OTHER, ONCE, ONCE])
            .by_section()
            .deaths(1),
        670_000,
    );
    nothing_is_wrong(
        &Bounds::rate(1, &[SPEND, SPEND, in_time(SPEND)])
            .by_section()
            .deaths(2),
        1_100_000,
    );
    let one_ticket = Bounds {
        tickets: 1,
        ..Bounds::new(1, &[ONCE, ONCE, ONCE])
    };
    nothing_is_wrong(&one_ticket.deaths(1), 1_100_000);
}

#[test]
fn a_change_without_a_journal_is_found() {
    is_found(
        Mistake::NoJournal,
        Bounds::new(1, &[ONCE, ONCE]).deaths(1),
        UNACCOUNTED,
    );
}

#[test]
fn a_change_before_the_journal_knows_of_it_is_found() {
    is_found(
        Mistake::ChangeBeforeCount,
        Bounds::new(1, &[ONCE, ONCE]).deaths(1),
        UNACCOUNTED,
    );
}

#[test]
fn a_journal_that_counts_an_entry_before_it_is_there_is_found() {
    let bounds = Bounds::new(1, &[ONCE, ONCE]).deaths(1);
    is_found(
        Mistake::CountBeforeEntry,
        bounds,
        "the list of free holds is damaged",
    );
}

#[test]
fn a_wake_that_is_not_counted_is_found() {
    is_found(Mistake::WakeWithoutAdvance, Bounds::new(1, &[ONCE, ONCE]), STUCK);
}

#[test]
fn a_sleeper_that_does_not_look_at_its_waiter_futex_again_is_found() {
    is_found(
        Mistake::SleepWithoutComparing,
        Bounds::new(1, &[ONCE, ONCE]),
        NOT_WOKEN,
    );
}

#[test]
fn a_grant_that_leaves_its_ticket_in_queue_is_found() {
    is_found(
        Mistake::GrantWithoutUnlink,
        Bounds::new(1, &[ONCE, ONCE]),
        UNACCOUNTED,
    );
}

#[test]
fn a_grant_that_reads_twice_whose_it_is_is_found() {
    let bounds = Bounds {
        liveness_check: true,
        ..Bounds::new(1, &[ONCE, impatient(in_time(ONCE))])
    };
    let what = "what is counted or linked contradicts itself";
    is_found(Mistake::GrantReadsItsOwnerTwice, bounds, what);
}

#[test]
fn a_grant_after_the_time_was_up_is_found() {
    let bounds = Bounds {
        ticks: 1,
        ..Bounds::new(1, &[ONCE, waiting_for(1, ONCE)])
    };
    let what = "a request is granted after its time was up";
    is_found(Mistake::GrantsWhoseTimeIsUp, bounds, what);
}

#[test]
fn grants_that_do_not_lapse_or_lapse_in_part_are_found() {
    let bounds = || Bounds::new(1, &[ONCE, ONCE, ONCE]).by_section().stops();
    is_found(
        Mistake::NothingLapses,
        bounds(),
        "whatever happens from here on, not all come to an end",
    );
    is_found(Mistake::LapseKeepsWhatWasTaken, bounds(), UNACCOUNTED);
}

#[test]
fn collecting_what_lapsed_is_found() {
    let bounds = Bounds::new(1, &[ONCE, ONCE, ONCE]).by_section().stops();
    is_found(
        Mistake::CollectsWhatLapsed,
        bounds,
        "what a living process holds was given back",
    );
}

#[test]
fn a_request_that_overtakes_the_queue_is_found() {
    let bounds = Bounds::new(2, &[ONCE, BOTH_AT_ONCE, ONCE]).by_section();
    is_found(
        Mistake::Overtaking,
        bounds,
        "a request is served before one that came earlier",
    );
}

#[test]
fn leaving_without_serving_the_next_is_found() {
    let release = Bounds::new(1, &[ONCE, ONCE]);
    is_found(Mistake::ReleaseServesNone, release, IDLE);
    let collecting = Bounds::new(2, &[BOTH_AT_ONCE, ONCE, ONCE]).by_section();
    is_found(Mistake::CollectingServesNone, collecting, IDLE);
    let leave = Bounds::new(2, &[ONCE, in_time(BOTH_AT_ONCE), ONCE]).by_section();
    is_found(Mistake::LeaverServesNone, leave, IDLE);
    let look = Bounds::rate(1, &[SPEND, SPEND]);
    is_found(Mistake::LookServesNone, look, IDLE);
}

#[test]
fn a_new_head_that_is_not_told_how_long_it_has_to_wait_is_found() {
    let bounds = Bounds::rate(1, &[SPEND, in_time(SPEND), SPEND]).by_section();
    is_found(Mistake::NewHeadIsNotWoken, bounds, IDLE);
}

#[test]
fn collecting_that_loses_the_wake_of_another_is_found() {
    let bounds = Bounds::new(2, &[BOTH_AT_ONCE, ONCE, ONCE]).by_section().deaths(1);
    is_found(Mistake::CollectingLosesTheWakeOfAnother, bounds, NOT_WOKEN);
}

#[test]
fn a_reclaim_that_wakes_only_the_last_of_several_is_found() {
    let bounds = Bounds::new(2, &[ONE_AFTER_THE_OTHER, ONCE, ONCE])
        .by_section()
        .deaths(1);
    is_found(Mistake::ReclaimLosesTheEarlierWake, bounds, NOT_WOKEN);
}
