//! Any declaration that validates, from a table of options: a new option is one more line.
//!
//! An option is added if the declaration is still valid with it, and left out if it is not. So nothing here knows what
//! goes together, and a restriction that is added to the library needs no change here.

use std::time::Duration;

use fastrand::Rng;
use shmlimit::declare::{Adaptive, Align, Amount, Credit, LockKind, Scope, TimeZone, WhenFull};
use shmlimit::{Algorithm, Declaration, Keyed, Limit, SetDeclaration, Tier, Window};

pub const SET: &str = "set";

/// How long windows and leases are: so that a virtual clock can pass over them, or so that a real one can.
#[derive(Clone, Copy, Debug)]
pub enum Lengths {
    Any,
    Short,
}

type LimitOption = fn(&mut Rng, Lengths, Limit) -> Limit;
type SetOption = fn(&mut Rng, SetDeclaration) -> SetDeclaration;

/// Options of limits. Each is used in one of this many limits.
const LIMIT_OPTIONS: &[(u64, LimitOption)] = &[
    (3, |dice, _, limit| limit.algorithm(algorithm(dice))),
    (3, |dice, _, limit| limit.algorithm(algorithm(dice))),
    (4, |dice, _, limit| limit.burst(dice.u64(1..=14))),
    (6, |_, _, limit| limit.align(Align::FirstUse)),
    (8, |dice, _, limit| limit.utc_offset_minutes(dice.i16(-720..=840))),
    (8, |_, _, limit| limit.time_zone(time_zone())),
    (3, |dice, _, limit| limit.buckets(dice.u32(1..=5))),
    (3, |dice, _, limit| limit.entries(dice.u32(1..=6))),
    (3, |dice, lengths, limit| limit.lease(length(dice, lengths))),
    (3, |dice, _, limit| {
        limit.adaptive(adaptive(dice)).ceiling(dice.u64(12..=20))
    }),
    (6, |_, _, limit| limit.floor(1_u64)),
    (6, |dice, lengths, limit| {
        limit.latency_limit(length(dice, lengths))
    }),
    (8, |dice, _, limit| limit.near_limit(dice.u8(1..=100))),
    (6, |_, _, limit| limit.refund(false)),
    (6, |_, _, limit| limit.shadow(true)),
    (8, |dice, _, limit| {
        limit.unit(["0.25", "0.001", "2"][dice.usize(..3)])
    }),
    (5, |_, _, limit| limit.credit(Credit::auto())),
    (8, |dice, _, limit| limit.credit(Credit::batch(dice.u64(2..=8)))),
    (10, |dice, _, limit| {
        limit.credit(Credit::batch(dice.u64(2..=8)).window_coupled(true))
    }),
];

/// Options of sets. Each is used in one of this many sets.
const SET_OPTIONS: &[(u64, SetOption)] = &[
    (2, |dice, set| set.keyed(Keyed::new(dice.u64(1..=16)))),
    (2, |dice, set| set.keyed(Keyed::new(8).when_full(when_full(dice)))),
    (4, |_, set| set.keyed(Keyed::new(8).overrides(true))),
    (6, |dice, set| {
        set.keyed(Keyed::new(8).when_full(when_full(dice)).store_keys(false))
    }),
    (3, |dice, set| tiers(dice, set)),
    (8, |_, set| set.shadow(true)),
    (3, |_, set| set.labels(true)),
    (1, |dice, set| set.waiters(dice.u32(1..=12))),
    (12, |_, set| set.waiters(0)),
    (2, |dice, set| set.holds(dice.u32(4..=44))),
    (12, |_, set| set.holds(1)),
    (6, |_, set| set.add_metadata("region", "here")),
    (3, |dice, set| {
        set.collect_within(Duration::from_millis(dice.u64(100..=1_500)))
    }),
];

fn algorithm(dice: &mut Rng) -> Algorithm {
    const ALGORITHMS: [Algorithm; 6] = [
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow,
        Algorithm::SlidingWindowCounter,
    ];
    ALGORITHMS[dice.usize(..ALGORITHMS.len())]
}

fn adaptive(dice: &mut Rng) -> Adaptive {
    [Adaptive::Aimd, Adaptive::Gradient, Adaptive::Vegas][dice.usize(..3)]
}

fn when_full(dice: &mut Rng) -> WhenFull {
    [WhenFull::Refuse, WhenFull::EvictLeastUsed, WhenFull::EvictOldest][dice.usize(..3)]
}

pub fn length(dice: &mut Rng, lengths: Lengths) -> Duration {
    match lengths {
        Lengths::Short => Duration::from_micros(dice.u64(1_000..=60_000)),
        Lengths::Any if dice.u8(..10) == 0 => Duration::from_nanos(dice.u64(1..=2_000_000)),
        Lengths::Any if dice.u8(..20) == 0 => Duration::from_secs(dice.u64(1..=86_400)),
        Lengths::Any => Duration::from_millis(dice.u64(1..=5_000)),
    }
}

fn window(dice: &mut Rng, lengths: Lengths) -> Window {
    if matches!(lengths, Lengths::Any) && dice.u8(..8) == 0 {
        return [Window::Day, Window::Week, Window::Month][dice.usize(..3)];
    }
    Window::Span(length(dice, lengths))
}

fn capacity(dice: &mut Rng, lengths: Lengths) -> Amount {
    match dice.u8(..24) {
        0 => Amount::Unlimited,
        // In a short time, a bucket of this many units does not fill up if its capacity is changed to a few.
        1 if matches!(lengths, Lengths::Any) => Amount::Whole(dice.u64(1..=1 << 40)),
        _ => Amount::Whole(dice.u64(1..=12)),
    }
}

/// A limit that is named after its kind and its number.
fn plain_limit(dice: &mut Rng, lengths: Lengths, number: usize) -> Limit {
    let name = |kind: &str| format!("{kind}{number}");
    match dice.u8(..9) {
        0..=1 => Limit::calls(name("calls"), capacity(dice, lengths), window(dice, lengths)),
        2..=4 => Limit::rate(name("rate"), capacity(dice, lengths), window(dice, lengths)),
        5 => Limit::budget(name("budget"), capacity(dice, lengths), window(dice, lengths)),
        6 => {
            let (capacity, rate) = (dice.u64(1..=12), dice.u64(1..=12));
            Limit::leaky_bucket(name("bucket"), capacity, rate, length(dice, lengths))
        }
        _ => Limit::concurrency(name("places"), capacity(dice, lengths)),
    }
}

/// A zone that no database knows, with the offsets of Los Angeles in 2026.
fn time_zone() -> TimeZone {
    let zone =
        r#"{ name = "Test/Zone", until = 2046, offsets = "-28800 1772964000:-25200 1793523600:-28800" }"#;
    let limit = format!(
        r#"{{ name = "l", kind = "budget", capacity = 1, window = "calendar:day", time_zone = {zone} }}"#
    );
    let declared = Declaration::from_toml(&format!(r#"set = [{{ name = "s", limit = [{limit}] }}]"#));
    let declared = declared.expect("valid");
    let zone = declared.sets()[0].limits()[0].options().time_zone().cloned();
    zone.expect("declared")
}

fn limit(dice: &mut Rng, lengths: Lengths, number: usize) -> Limit {
    let is_valid = |limit: &Limit| declared(SetDeclaration::new(SET).add_limit(limit.clone())).is_some();
    loop {
        // Windows of the calendar exist only as fixed windows.
        let plain = plain_limit(dice, lengths, number);
        let fixed = plain.clone().algorithm(Algorithm::FixedWindow);
        let Some(mut limit) = [plain, fixed].into_iter().find(is_valid) else {
            continue;
        };
        for (one_in, option) in LIMIT_OPTIONS {
            if dice.u64(..*one_in) == 0 {
                limit = Some(option(dice, lengths, limit.clone()))
                    .filter(is_valid)
                    .unwrap_or(limit);
            }
        }
        return limit;
    }
}

fn tiers(dice: &mut Rng, set: SetDeclaration) -> SetDeclaration {
    let mut gold = Tier::new("gold");
    let mut other = Tier::new("other");
    let is_overall = |limit: &Limit| limit.options().scope() == Scope::AllKeys;
    if set.limits().iter().any(is_overall) {
        gold = gold.weight(dice.u32(1..=1_000));
    }
    for limit in set.limits().iter().filter(|limit| !is_overall(limit)) {
        if dice.bool() {
            gold = gold.capacity(limit.name(), dice.u64(1..=20));
        }
        if dice.bool() {
            other = other.capacity(limit.name(), dice.u64(1..=20));
        }
        if dice.u8(..4) == 0 {
            other = other.window(limit.name(), Duration::from_millis(dice.u64(1..=60)));
        }
    }
    set.add_tier(gold).add_tier(other)
}

fn declared(set: SetDeclaration) -> Option<Declaration> {
    let declaration = Declaration::new().participants(16).add_set(set);
    declaration.validate().is_ok().then_some(declaration)
}

/// A declaration of one set, with either kind of lock.
pub fn declaration(dice: &mut Rng, lengths: Lengths) -> Declaration {
    let lock = [LockKind::RobustMutex, LockKind::Slot][dice.usize(..2)];
    of_one_set(dice, lengths).lock(lock)
}

fn of_one_set(dice: &mut Rng, lengths: Lengths) -> Declaration {
    let mut limits: Vec<Limit> = Vec::new();
    for index in 0..dice.usize(1..=3) {
        limits.push(limit(dice, lengths, index));
    }
    let set_of = |limits: &[Limit]| {
        let set = SetDeclaration::new(SET);
        limits.iter().cloned().fold(set, SetDeclaration::add_limit)
    };
    if dice.u8(..10) == 0 {
        // By networks instead of keys.
        let mut prefix = || (dice.u8(8..=32), dice.u8(32..=128));
        let networks: Vec<Limit> = limits
            .iter()
            .map(|limit| {
                let (ipv4, ipv6) = prefix();
                limit.clone().prefix(ipv4, ipv6)
            })
            .collect();
        if let Some(declaration) = declared(set_of(&networks).keyed(Keyed::new(16))) {
            return declaration;
        }
    }
    let mut set = set_of(&limits);
    if dice.u8(..4) == 0 {
        // Some limits are for all keys together, or all are, or none.
        let mut scope = || [Scope::Key, Scope::AllKeys][dice.usize(..2)];
        let scoped: Vec<Limit> = limits.iter().map(|limit| limit.clone().scope(scope())).collect();
        let with = set_of(&scoped).keyed(Keyed::new(dice.u64(1..=16)));
        if declared(with.clone()).is_some() {
            set = with;
        }
    }
    for (one_in, option) in SET_OPTIONS {
        if dice.u64(..*one_in) == 0 {
            let with = option(dice, set.clone());
            if declared(with.clone()).is_some() {
                set = with;
            }
        }
    }
    // Each limit by itself is valid, but not every two of them in one set.
    declared(set).unwrap_or_else(|| declared(set_of(&limits[..1])).expect("valid by itself"))
}

type NewValue = fn(&mut Rng, Lengths) -> toml::Value;

/// What a later definition may change, by its word in TOML.
const CHANGES: &[(&str, NewValue)] = &[
    ("capacity", |dice, _| amount(dice.u64(1..=14))),
    ("burst", |dice, _| amount(dice.u64(1..=14))),
    ("ceiling", |dice, _| amount(dice.u64(12..=24))),
    ("batch", |dice, _| amount(dice.u64(1..=8))),
    ("near_limit", |dice, _| amount(dice.u64(1..=100))),
    ("lease", |dice, lengths| span(dice, lengths)),
    ("window", |dice, lengths| span(dice, lengths)),
    ("shadow", |dice, _| dice.bool().into()),
    ("refund", |dice, _| dice.bool().into()),
    ("collect_within", |dice, _| {
        format!("{}ms", dice.u64(100..=1_500)).into()
    }),
    ("when_full", |dice, _| {
        ["refuse", "evict_oldest", "evict_least_used"][dice.usize(..3)].into()
    }),
    ("algorithm", |dice, _| {
        ["gcra", "token_bucket", "leaky_bucket"][dice.usize(..3)].into()
    }),
    ("region", |_, _| "there".into()),
];

fn amount(units: u64) -> toml::Value {
    toml::Value::Integer(units.cast_signed())
}

fn span(dice: &mut Rng, lengths: Lengths) -> toml::Value {
    Window::Span(length(dice, lengths)).to_string().into()
}

/// Another definition of the same set, perhaps one that cannot be applied.
pub fn changed(dice: &mut Rng, lengths: Lengths, text: &str) -> String {
    let mut value: toml::Value = text.parse::<toml::Table>().expect("TOML").into();
    change(dice, lengths, &mut value);
    let changed = toml::to_string(&value).expect("TOML");
    match Declaration::from_toml(&changed) {
        Ok(_) => changed,
        Err(_) => text.to_owned(),
    }
}

/// Keeps the burst of a limit below a thousand times its capacity: a bucket that takes centuries to fill outlasts the
/// clock.
fn fill_within_reach(limit: &mut toml::Table) {
    let units = |word: &str| limit.get(word)?.as_integer();
    if let (Some(capacity), Some(burst)) = (units("capacity"), units("burst")) {
        let burst = burst.min(capacity.saturating_mul(1_000));
        limit.insert("burst".to_owned(), burst.into());
    }
}

fn change(dice: &mut Rng, lengths: Lengths, value: &mut toml::Value) {
    match value {
        toml::Value::Table(table) => {
            for (key, value) in table.iter_mut() {
                match CHANGES.iter().find(|(name, _)| name == key) {
                    Some((_, new)) if dice.u8(..3) == 0 => *value = new(dice, lengths),
                    Some(_) => {}
                    None => change(dice, lengths, value),
                }
            }
            fill_within_reach(table);
        }
        toml::Value::Array(values) => values.iter_mut().for_each(|it| change(dice, lengths, it)),
        _ => {}
    }
}
