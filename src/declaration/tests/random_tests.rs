//! Properties of random declarations.

use crate::choices::{Kind, WhenFull};
use proptest::prelude::*;

use crate::declaration::tests::*;

fn windows() -> impl Strategy<Value = Window> + Clone {
    (1_000_000_u64..=1 << 40).prop_map(|nanos| Window::Span(Duration::from_nanos(nanos)))
}

fn calendars() -> impl Strategy<Value = Window> {
    prop_oneof![Just(Window::Day), Just(Window::Week), Just(Window::Month)]
}

/// A zone with these offsets, which no database knows.
fn zone_of(offsets: &str) -> TimeZone {
    let text = format!("name = \"Test/Zone\"\nuntil = 2040\noffsets = \"{offsets}\"");
    toml::from_str(&text).expect("a zone")
}

/// Valid limits.
pub(super) fn limits() -> impl Strategy<Value = Limit> {
    let counted = (1_u64..=1 << 32, windows(), any::<bool>());
    let counted = counted.prop_map(|(capacity, window, calls)| {
        if calls {
            Limit::calls("l", capacity, window)
        } else {
            Limit::rate("l", capacity, window).unit("0.25")
        }
    });
    let burst = proptest::option::of(1_u64..=1 << 32);
    let algorithm = prop_oneof![
        Just(None),
        Just(Some(Algorithm::TokenBucket)),
        Just(Some(Algorithm::LeakyBucket))
    ];
    let bursting = (counted.clone(), algorithm, burst).prop_map(|(limit, algorithm, burst)| {
        let limit = algorithm.into_iter().fold(limit, Limit::algorithm);
        burst.into_iter().fold(limit, Limit::burst)
    });
    let aligned = (
        counted.clone(),
        proptest::option::of(prop_oneof![Just(Align::Utc), Just(Align::FirstUse)]),
    );
    let aligned = aligned.prop_map(|(limit, align)| {
        align
            .into_iter()
            .fold(limit.algorithm(Algorithm::FixedWindow), Limit::align)
    });
    let sliding = (counted.clone(), proptest::option::of(1_u32..=65_536)).prop_map(|(limit, entries)| {
        entries
            .into_iter()
            .fold(limit.algorithm(Algorithm::SlidingWindow), Limit::entries)
    });
    let counter = (counted, proptest::option::of(1_u32..=60)).prop_map(|(limit, buckets)| {
        buckets
            .into_iter()
            .fold(limit.algorithm(Algorithm::SlidingWindowCounter), Limit::buckets)
    });
    let budget = (
        "[0-9]{1,9}\\.[0-9]{0,2}[1-9]",
        calendars(),
        proptest::option::of(-1080_i16..=1080),
        proptest::option::of((-86_399..86_400, 0..1_i64 << 33)),
    );
    let budget = budget.prop_map(|(capacity, window, offset, zone)| {
        let limit = Limit::budget("l", capacity.as_str(), window).unit("0.001");
        match zone {
            Some((first, at)) => limit.time_zone(zone_of(&format!("{first} {at}:3600"))),
            None => offset.into_iter().fold(limit, Limit::utc_offset_minutes),
        }
    });
    let held = prop_oneof![
        any::<u64>().prop_map(|capacity| Amount::Whole(capacity.max(1))),
        Just(Amount::Unlimited)
    ];
    let held = held.prop_map(|capacity| Limit::concurrency("l", capacity));
    let adaptive = (
        prop_oneof![
            Just(Adaptive::Gradient),
            Just(Adaptive::Vegas),
            Just(Adaptive::Aimd)
        ],
        [
            1_u64..=u64::from(u32::MAX),
            1..=u64::from(u32::MAX),
            1..=u64::from(u32::MAX),
        ],
        any::<bool>(),
        proptest::option::of(1_u64..=1 << 40),
    );
    let adaptive = adaptive.prop_map(|(algorithm, mut bounds, floored, latency)| {
        bounds.sort_unstable();
        let [floor, start, ceiling] = bounds;
        let limit = Limit::concurrency("l", start)
            .adaptive(algorithm)
            .ceiling(ceiling);
        let limit = if floored { limit.floor(floor) } else { limit };
        let latency = latency
            .filter(|_| algorithm == Adaptive::Aimd)
            .map(Duration::from_nanos);
        latency.into_iter().fold(limit, Limit::latency_limit)
    });
    let limit = prop_oneof![bursting, aligned, sliding, counter, budget, held, adaptive];
    let tried = (
        limit,
        proptest::option::of(any::<bool>()),
        proptest::option::of(1_u8..=100),
        proptest::option::of(any::<bool>()),
    );
    tried.prop_map(|(limit, shadow, near, refund)| {
        let limit = shadow.into_iter().fold(limit, Limit::shadow);
        let refund = refund.filter(|_| matches!(limit.kind, Kind::Calls | Kind::Rate));
        let limit = refund.into_iter().fold(limit, Limit::refund);
        near.into_iter().fold(limit, Limit::near_limit)
    })
}

fn tables() -> impl Strategy<Value = Keyed> {
    let full = prop_oneof![
        Just(WhenFull::Refuse),
        Just(WhenFull::EvictLeastUsed),
        Just(WhenFull::EvictOldest)
    ];
    let options = (proptest::option::of(full), proptest::option::of(any::<bool>()));
    (1_u64..=1_000_000_000, options).prop_map(|(keys, (full, store))| {
        let keyed = full.into_iter().fold(Keyed::new(keys), Keyed::when_full);
        store.into_iter().fold(keyed, Keyed::store_keys)
    })
}

/// Prefixes that nest, one for each of up to four limits.
fn prefixes() -> impl Strategy<Value = [(u8, u8); 4]> {
    (
        [0_u8..=32, 0..=32, 0..=32, 0..=32],
        [0_u8..=128, 0..=128, 0..=128, 0..=128],
    )
        .prop_map(|(mut ipv4, mut ipv6)| {
            ipv4.sort_unstable();
            ipv6.sort_unstable();
            [0, 1, 2, 3].map(|index| (ipv4[index], ipv6[index]))
        })
}

fn sets() -> impl Strategy<Value = SetDeclaration> {
    let parts = (
        proptest::collection::vec(limits(), 1..=4),
        proptest::collection::btree_map("\\PC{1,16}", ".{0,64}", 0..4),
        proptest::option::of((tables(), proptest::option::of(prefixes()))),
        any::<bool>(),
    );
    parts.prop_map(|(limits, metadata, table, shadow)| {
        let mut set = SetDeclaration::new("s");
        set.limits = limits;
        set.metadata = metadata;
        let lent = set.limits.iter().any(|limit| limit.kind == Kind::Concurrency);
        if let Some((keyed, prefixes)) = table {
            set = set.keyed(keyed);
            for (limit, (ipv4, ipv6)) in set.limits.iter_mut().zip(prefixes.into_iter().flatten()) {
                if !lent {
                    *limit = limit.clone().prefix(ipv4, ipv6);
                }
            }
        }
        if shadow && set.limits.iter().all(|limit| limit.shadow != Some(false)) {
            set = set.shadow(true);
        }
        set
    })
}

pub(super) fn declarations() -> impl Strategy<Value = Declaration> {
    let sets = proptest::collection::vec(("([^\\pC/.][^\\pC/]{0,7})?", sets()), 1..=4);
    let version = proptest::option::of(1..=u64::MAX >> 1);
    let segment = (
        proptest::option::of("/\\PC{0,20}"),
        1_u32..=4096,
        0_u32..=0o177,
        version,
    );
    (segment, sets).prop_map(|((path, participants, mode, version), sets)| {
        let declaration = Declaration::new().participants(participants).mode(0o600 | mode);
        let declaration = path.into_iter().fold(declaration, Declaration::path);
        let declaration = version.into_iter().fold(declaration, Declaration::version);
        sets.into_iter()
            .enumerate()
            .fold(declaration, |declaration, (index, (name, mut set))| {
                for (index, limit) in set.limits.iter_mut().enumerate() {
                    limit.name = format!("{name}\"{index}");
                }
                set.name = format!("{name}{index}");
                declaration.add_set(set)
            })
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(declaration in declarations()) {
        let text = declaration.to_toml().expect("valid");
        let read = match Declaration::from_toml(&text) {
            Ok(read) => read,
            Err(error) => return Err(TestCaseError::fail(format!("{error}\n{text}"))),
        };
        prop_assert_eq!(texts(&declaration.differences(&read)), [""; 0]);
        prop_assert_eq!(read.segment().version(), declaration.segment().version());
        prop_assert_eq!(read.segment().path(), declaration.segment().path());
        prop_assert_eq!(read.segment().mode(), declaration.segment().mode());
        prop_assert_eq!(read.to_toml().expect("valid"), text);
        let rules = |declaration: &Declaration| {
            let plans = declaration.compile().expect("valid").into_iter();
            let rules = |set: SetPlan| {
                let limits = set.limits.into_iter();
                limits
                    .map(|limit| (limit.rule, limit.prefix, limit.shadow, limit.near_percent))
                    .collect::<Vec<_>>()
            };
            plans
                .map(|set| (set.hold_capacity, set.waiters, set.keyed, rules(set)))
                .collect::<Vec<_>>()
        };
        prop_assert_eq!(rules(&read), rules(&declaration));
    }

    #[test]
    fn declarations_differ_where_their_texts_do(
        one in declarations(),
        changed in proptest::option::of(limits()),
        holds in proptest::option::of(1_u32..4),
    ) {
        let mut other = one.clone().path("/elsewhere").mode(0o666);
        if let (Some(changed), Some(limit)) = (changed, other.sets[0].limits.last_mut()) {
            *limit = Limit { name: limit.name.clone(), ..changed };
        }
        other.sets[0].holds = holds;
        prop_assume!(one.validate().is_ok() && other.validate().is_ok());
        let text = |declaration: &Declaration| {
            let segment = SegmentOptions { path: None, mode: None, ..declaration.segment.clone() };
            Declaration { segment, ..declaration.clone() }.to_toml().expect("valid")
        };
        prop_assert_eq!(one.differences(&other).is_empty(), text(&one) == text(&other));
        prop_assert_eq!(other.differences(&one).len(), one.differences(&other).len());
    }

    #[test]
    fn no_text_panics(text in "\\PC*", lines in "(kind|capacity|window|unit|burst) = \\PC{0,20}") {
        let _ = Declaration::from_toml(&text);
        let _ = Declaration::from_toml(&limit_toml(&lines));
    }
}
