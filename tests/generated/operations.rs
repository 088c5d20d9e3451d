//! Every public verb, as data: whatever is generated can be written down, reduced, and repeated.

use fastrand::Rng;
use serde::{Deserialize, Serialize};
use shmlimit::Declaration;
use shmlimit::declare::Kind;

use super::declarations::{Lengths, SET, changed};

/// What a request names. Numbers are taken modulo what exists, so that a step means something in any declaration.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Ask {
    /// A cost for each limit.
    pub costs: Vec<u64>,
    pub tier: Option<u8>,
    /// A limit and its capacity for this key. Without a capacity, the key's own one is taken away.
    pub capacity: Option<(u8, Option<u64>)>,
    pub label: bool,
}

/// The label of the requests that have one.
pub const LABEL: &str = "work";

/// One verb. For verbs of permits, the first number says which permit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Operation {
    TryAcquire(Ask),
    Check(Ask),
    CheckMany(Ask, Vec<u8>),
    /// A reservation, with the longest delay in microseconds, and whether it is cancelled at once.
    Reserve(Ask, u64, bool),
    /// A future, with a timeout in microseconds.
    Wait(Ask, Option<u64>),
    /// A thread that waits for this many microseconds. Not for a virtual clock, which stands still meanwhile: the
    /// thread would wait forever.
    WaitHere(Ask, u64),
    /// No future is polled for this many steps, as when a program blocks its event loop.
    Neglect(u8),
    StopWaiting(u8),
    Settle(u8, Vec<u64>),
    Release(u8),
    ReleaseFailed(u8),
    Cancel(u8),
    Abandon(u8),
    Drop(u8),
    Heartbeat(u8),
    Throttled(u8, u64),
    DebitUnder(u8, u8, u64),
    Debit(u8, u64),
    Throttle(u64),
    ThrottleSet(u64),
    Reset(Option<u8>),
    ResetSet(Option<u8>, bool),
    Assign(u8),
    Override(u8, Option<u64>),
    Peek(Ask),
    Forecast,
    Apply(String),
    Recover,
    Rebuild,
    /// The actor attaches again in place of one of its attachers.
    Reattach,
    /// All attachers detach, and the file becomes that of another boot.
    Reboot,
    /// All attachers detach, and the segment is created from a checkpoint.
    Restore,
    /// This many microseconds pass.
    Pass(u64),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    pub attacher: u8,
    pub key: u8,
    pub operation: Operation,
}

/// Who performs the operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// A process that has the segment to itself, on a virtual clock.
    Alone,
    /// A process among others on a real clock.
    Among,
}

/// Draws operations that fit a declaration.
pub struct Operations {
    driver: Driver,
    lengths: Lengths,
    kinds: Vec<Kind>,
    has_tiers: bool,
    has_overrides: bool,
    /// What the last generated definition says.
    text: String,
}

impl Operations {
    pub fn of(declaration: &Declaration, driver: Driver) -> Self {
        let text = declaration.to_toml().expect("valid");
        let set = &declaration.sets()[0];
        Self {
            driver,
            lengths: match driver {
                Driver::Alone => Lengths::Any,
                Driver::Among => Lengths::Short,
            },
            kinds: set.limits().iter().map(|limit| limit.kind()).collect(),
            has_tiers: !set.tiers().is_empty(),
            has_overrides: text.contains("overrides = true"),
            text,
        }
    }

    fn ask(&self, dice: &mut Rng) -> Ask {
        let cost = |kind: &Kind| match kind {
            Kind::Rate => dice.u64(0..=4),
            _ if dice.u8(..3) == 0 => dice.u64(0..=3),
            _ => 1,
        };
        Ask {
            costs: self.kinds.iter().map(cost).collect(),
            tier: (self.has_tiers && dice.u8(..4) == 0).then(|| dice.u8(..3)),
            capacity: (self.has_overrides && dice.u8(..5) == 0).then(|| (dice.u8(..4), own_capacity(dice))),
            label: dice.u8(..3) == 0,
        }
    }

    fn some_limit(&self, dice: &mut Rng) -> Option<u8> {
        dice.bool().then(|| dice.u8(..4))
    }

    pub fn step(&mut self, dice: &mut Rng) -> Step {
        Step {
            attacher: dice.u8(..2),
            key: if dice.u8(..4) == 0 {
                dice.u8(..80)
            } else {
                dice.u8(..4)
            },
            operation: self.operation(dice),
        }
    }

    fn operation(&mut self, dice: &mut Rng) -> Operation {
        use Operation::*;
        let which = dice.u8(..8);
        let time = if dice.u8(..10) == 0 { 8_000_000 } else { 300_000 };
        match dice.u8(..48) {
            0..=9 => TryAcquire(self.ask(dice)),
            10..=12 => Check(self.ask(dice)),
            13 => CheckMany(
                self.ask(dice),
                (0..dice.usize(..5)).map(|_| dice.u8(..8)).collect(),
            ),
            14 => Reserve(self.ask(dice), dice.u64(..4_000_000), dice.u8(..3) == 0),
            15..=17 => Wait(self.ask(dice), (dice.u8(..3) == 0).then(|| dice.u64(..1_000_000))),
            18 => StopWaiting(which),
            19..=21 => Settle(which, self.kinds.iter().map(|_| dice.u64(..6)).collect()),
            22 => Release(which),
            23 => ReleaseFailed(which),
            24 => Cancel(which),
            25 => Abandon(which),
            26..=27 => Drop(which),
            28 => Heartbeat(which),
            29 if dice.u8(..3) == 0 => Throttled(which, dice.u64(..500_000)),
            30 => DebitUnder(which, dice.u8(..4), dice.u64(..6)),
            31..=32 => Debit(dice.u8(..4), dice.u64(..6)),
            33 if dice.u8(..3) == 0 => Throttle(dice.u64(..300_000)),
            34 if dice.u8(..6) == 0 => ThrottleSet(dice.u64(..100_000)),
            35 => Reset(self.some_limit(dice)),
            36 if dice.u8(..3) == 0 => ResetSet(self.some_limit(dice), dice.bool()),
            37 if self.has_tiers => Assign(dice.u8(..3)),
            37 if self.has_overrides => Override(dice.u8(..4), own_capacity(dice)),
            38 => Peek(self.ask(dice)),
            39 => Forecast,
            40 if dice.u8(..3) == 0 => {
                self.text = changed(dice, self.lengths, &self.text);
                Apply(self.text.clone())
            }
            41 if dice.u8(..3) == 0 => Recover,
            // A process that dies while it rebuilds leaves that to the next one, which cannot tell why the rebuild was
            // begun.
            41 if self.driver == Driver::Alone && dice.u8(..3) == 0 => Rebuild,
            42 if dice.u8(..3) == 0 => Reattach,
            42 if self.driver == Driver::Alone && dice.u8(..12) == 0 => Reboot,
            42 if self.driver == Driver::Alone && dice.u8(..12) == 0 => Restore,
            43 if self.driver == Driver::Among => WaitHere(self.ask(dice), dice.u64(..2_000)),
            44 if dice.bool() => Neglect(dice.u8(1..12)),
            _ => Pass(dice.u64(..time)),
        }
    }
}

fn own_capacity(dice: &mut Rng) -> Option<u64> {
    (dice.u8(..3) > 0).then(|| dice.u64(1..=16))
}

/// The name of one of the limits of the declaration's set, by number.
pub fn limit_name(declaration: &Declaration, number: u8) -> &str {
    let set = declaration
        .sets()
        .iter()
        .find(|set| set.name() == SET)
        .expect("declared");
    set.limits()[usize::from(number) % set.limits().len()].name()
}
