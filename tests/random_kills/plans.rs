//! Keyed sets in which what limits a key changes while it is held: in one the key's tier, in the other its own
//! capacities.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use shmlimit::snapshot::{SegmentReader, SetSnapshot};
use shmlimit::{
    Error, Key, Keyed, Limit, LimitSet, Outcome, Permit, Request, RequestError, SetDeclaration, Tier,
};

use crate::scene::process::eventually;
use crate::truth::Pool;

/// The set with tiers, and the one with overrides.
pub const SETS: [&str; 2] = ["tiered", "overridden"];
const KEY: &str = "tenant";
const TIERS: [&str; 3] = ["default", "large", "small"];

const PLACES: u64 = 3;
/// The most that a tier has.
const LARGE: u64 = 5;
/// The largest capacity that a key may have, of any tier or of its own.
pub const MAX_PLACES: u64 = 6;
/// The capacity of tokens that a request gives its key for each place; it always gives both capacities at once.
const TOKENS_PER_PLACE: u64 = 1_000_000;
const SECOND: Duration = Duration::from_secs(1);

pub fn declarations() -> [SetDeclaration; 2] {
    let [tiered, overridden] = SETS.map(|name| {
        SetDeclaration::new(name)
            .holds(128)
            .add_limit(Limit::concurrency("places", PLACES))
            .add_limit(Limit::rate("tokens", 3_000_000, SECOND))
            .add_limit(Limit::calls("calls", 200_000, SECOND))
    });
    let tiered = tiered
        .keyed(Keyed::new(10))
        .add_tier(
            Tier::new("large")
                .capacity("places", LARGE)
                .capacity("tokens", 9_000_000)
                .window("tokens", 2 * SECOND),
        )
        .add_tier(
            Tier::new("small")
                .capacity("places", 1)
                .capacity("calls", 100_000),
        );
    [tiered, overridden.keyed(Keyed::new(10).overrides(true))]
}

/// What one worker asks of the sets.
pub struct Plans<'a> {
    keys: [Key<'a>; 2],
    plain: [Request<'a>; 2],
}

impl<'a> Plans<'a> {
    pub fn of(sets: &'a [LimitSet; 2]) -> Self {
        Self {
            keys: sets.each_ref().map(|set| set.key(KEY).expect("keyed")),
            plain: sets
                .each_ref()
                .map(|set| {
                    set.request()
                        .for_key(KEY)
                        .and_then(|request| request.with("tokens", 1))
                })
                .map(|request| request.expect("declared")),
        }
    }

    /// Acquires places of a key, often saying which tier or which capacities it has.
    pub fn acquire(&mut self, dice: &mut Rng) -> Option<(Permit<'a>, Pool, u64)> {
        let number = dice.u64(..2) as usize;
        let units = 1 + dice.u64(..3);
        let plain = &mut self.plain[number];
        plain.set_cost("places", units).expect("declared");
        plain.set_cost("tokens", dice.u64(..1000)).expect("declared");
        let named = match (dice.u64(..2), number) {
            (0, _) => None,
            (_, 0) => Some(plain.clone().with_tier(some_tier(dice)).expect("declared")),
            (_, _) => Some(with_capacities(plain.clone(), dice)),
        };
        let outcome = named.as_ref().unwrap_or(plain).try_acquire();
        match outcome {
            Ok(Outcome::Admitted(permit)) => Some((permit, Pool::Places(number), units)),
            Ok(Outcome::Refused(_)) => None,
            // Another worker has changed the key's capacity meanwhile.
            Err(Error::Request(RequestError::NeverAdmissible { .. })) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Assigns a key to a tier, or gives the other key a capacity of its own by name, or takes that away.
    pub fn change(&self, dice: &mut Rng) {
        let [tiered, overridden] = &self.keys;
        let changed = match dice.u64(..3) {
            0 => tiered.assign(some_tier(dice)),
            1 => overridden.override_capacity("calls", 100_000 + dice.u64(..3)),
            _ => overridden.clear_override("calls"),
        };
        changed.expect("works");
    }
}

fn some_tier(dice: &mut Rng) -> &'static str {
    TIERS[dice.u64(..3) as usize]
}

/// Gives the key both capacities at once, or neither.
fn with_capacities<'a>(request: Request<'a>, dice: &mut Rng) -> Request<'a> {
    let places = Some(dice.u64(..MAX_PLACES + 1)).filter(|places| *places > 0);
    request
        .with_override("places", places)
        .and_then(|request| request.with_override("tokens", places.map(|places| places * TOKENS_PER_PLACE)))
        .expect("capacities")
}

/// Checks what the holds say.
pub fn check_held(set: &SetSnapshot) {
    let mut held: BTreeMap<String, u64> = BTreeMap::new();
    for hold in &set.holds {
        let key = hold.key.as_ref().map(|key| format!("{key:?}"));
        let places = hold.amounts.get("places").copied().unwrap_or_default();
        *held.entry(key.expect("keyed")).or_default() += places;
    }
    assert!(held.len() <= 1, "{set:?}");
    assert!(held.values().all(|held| *held <= MAX_PLACES), "{held:?}: {set:?}");
}

/// Checks what the rows say: no change of a key is ever seen in part.
pub fn check_keys(reader: &SegmentReader) {
    for set in SETS {
        let Some(seen) = reader
            .key_snapshot(set, KEY)
            .expect("readable")
            .filter(|seen| !seen.torn)
        else {
            continue;
        };
        let own: Vec<Option<u64>> = seen.limits.iter().map(|limit| limit.override_capacity).collect();
        assert!(own[0].is_none_or(|places| places <= MAX_PLACES), "{seen:?}");
        assert_eq!(own[1], own[0].map(|places| places * TOKENS_PER_PLACE), "{seen:?}");
        assert!(
            TIERS.contains(&seen.tier.as_deref().unwrap_or("default")),
            "{seen:?}"
        );
    }
}

/// Makes one request that is admitted.
pub fn check_that_nothing_is_left(set: &LimitSet) {
    let is_overridden = set.name() == SETS[1];
    let all = set
        .request()
        .with("places", if is_overridden { MAX_PLACES } else { LARGE })
        .and_then(|request| request.with("tokens", 0));
    let all = if is_overridden {
        all.and_then(|request| request.with_override("places", MAX_PLACES))
            .and_then(|request| request.with_override("tokens", None))
    } else {
        all.and_then(|request| request.with_tier("large"))
    };
    let all = all.expect("declared");
    let key = KEY;
    // A refused process looks for dead ones itself, so nothing else needs to happen.
    eventually("all places of a key can be held at once", || {
        all.for_key(key)
            .expect("keyed")
            .try_acquire()
            .expect("works")
            .is_admitted()
    });
    set.key(key)
        .expect("keyed")
        .clear_override("places")
        .expect("works");
    set.key(key)
        .expect("keyed")
        .clear_override("calls")
        .expect("works");
    set.key(key).expect("keyed").assign("default").expect("works");
    eventually("nothing of any key is used, held or kept", || {
        set.table_usage().expect("keyed").used == 0
    });
}
