//! A keyed set whose keys change their tiers and capacities while they are held.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use shmlimit::{
    Error, Key, Keyed, Limit, LimitSet, Outcome, Permit, Request, RequestError, SegmentReader,
    SetDeclaration, SetSnapshot, Tier,
};

use crate::scene::process::eventually;
use crate::truth::Pool;

pub const SET: &str = "plans";
const KEYS: [&str; 2] = ["tenant 0", "tenant 1"];
const TIERS: [&str; 3] = ["default", "large", "small"];

const PLACES: u64 = 3;
/// The largest capacity that a key may have, of any tier or of its own.
pub const MAX_PLACES: u64 = 6;
/// What a request gives its key of tokens for each place, always both at once.
const TOKENS_PER_PLACE: u64 = 1_000_000;
const SECOND: Duration = Duration::from_secs(1);

pub fn declaration() -> SetDeclaration {
    SetDeclaration::new(SET)
        .keyed(Keyed::new(10).overrides(true))
        .holds(128)
        .add_limit(Limit::concurrency("places", PLACES))
        .add_limit(Limit::rate("tokens", 3_000_000, SECOND))
        .add_limit(Limit::calls("calls", 200_000, SECOND))
        .add_tier(
            Tier::new("large")
                .capacity("places", 5)
                .capacity("tokens", 9_000_000)
                .window("tokens", 2 * SECOND),
        )
        .add_tier(
            Tier::new("small")
                .capacity("places", 1)
                .capacity("calls", 100_000),
        )
}

/// What one worker asks of the set.
pub struct Plans<'a> {
    keys: [Key<'a>; 2],
    plain: Request,
}

impl<'a> Plans<'a> {
    pub fn of(set: &'a LimitSet) -> Self {
        Self {
            keys: KEYS.map(|key| set.key(key).expect("keyed")),
            plain: set.request().with("tokens", 1).expect("declared"),
        }
    }

    /// Acquires places of a key, sometimes saying which tier or which capacities it has.
    pub fn acquire(&mut self, dice: &mut Rng) -> Option<(Permit<'a>, Pool, u64)> {
        let number = dice.u64(..2) as usize;
        let units = 1 + dice.u64(..3);
        self.plain.set_cost("places", units).expect("declared");
        self.plain.set_cost("tokens", dice.u64(..1000)).expect("declared");
        let named = match dice.u64(..8) {
            0 => Some(self.plain.clone().with_tier(some_tier(dice)).expect("declared")),
            1..=3 => Some(with_capacities(self.plain.clone(), dice)),
            _ => None,
        };
        let outcome = self.keys[number].try_acquire(named.as_ref().unwrap_or(&self.plain));
        match outcome {
            Ok(Outcome::Admitted(permit)) => Some((permit, Pool::Places(number), units)),
            Ok(Outcome::Refused(_)) => None,
            // What another made of the key meanwhile.
            Err(Error::Request(RequestError::NeverAdmissible { .. })) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Assigns a key to a tier, or gives it a capacity of its own by name, or takes that away.
    pub fn change(&self, dice: &mut Rng) {
        let key = self.keys[dice.u64(..2) as usize];
        let changed = match dice.u64(..3) {
            0 => key.assign(some_tier(dice)),
            1 => key.override_capacity("calls", 100_000 + dice.u64(..3)),
            _ => key.clear_override("calls"),
        };
        changed.expect("works");
    }
}

fn some_tier(dice: &mut Rng) -> &'static str {
    TIERS[dice.u64(..3) as usize]
}

/// Both capacities at once, or none of both.
fn with_capacities(request: Request, dice: &mut Rng) -> Request {
    let places = Some(dice.u64(..MAX_PLACES + 1)).filter(|places| *places > 0);
    request
        .with_override("places", places)
        .and_then(|request| request.with_override("tokens", places.map(|places| places * TOKENS_PER_PLACE)))
        .expect("capacities")
}

/// What the holds say.
pub fn check_held(set: &SetSnapshot) {
    let mut held: BTreeMap<String, u64> = BTreeMap::new();
    for hold in &set.holds {
        let key = hold.key.as_ref().map(|key| format!("{key:?}"));
        let places = hold.amounts.get("places").copied().unwrap_or_default();
        *held.entry(key.expect("keyed")).or_default() += places;
    }
    assert!(held.len() <= KEYS.len(), "{set:?}");
    assert!(held.values().all(|held| *held <= MAX_PLACES), "{held:?}: {set:?}");
}

/// What the rows say: no change of a key is ever seen in part.
pub fn check_keys(reader: &SegmentReader) {
    for key in KEYS {
        let Some(seen) = reader
            .key_snapshot(SET, key)
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

/// Answers how many requests that took.
pub fn check_that_nothing_is_left(set: &LimitSet) -> u64 {
    let all = set
        .request()
        .with("places", MAX_PLACES)
        .and_then(|request| request.with("tokens", 0))
        .and_then(|request| request.with_override("places", MAX_PLACES))
        .and_then(|request| request.with_override("tokens", None))
        .expect("declared");
    for key in KEYS {
        let key = set.key(key).expect("keyed");
        // A request that is refused looks for the dead, so that nothing else need happen.
        eventually("all places of a key can be held at once", || {
            key.try_acquire(&all).expect("works").is_admitted()
        });
        key.clear_override("places").expect("works");
        key.clear_override("calls").expect("works");
        key.assign("default").expect("works");
    }
    eventually("nothing of any key is used, held or kept", || {
        set.table_usage().expect("keyed").used == 0
    });
    KEYS.len() as u64
}
