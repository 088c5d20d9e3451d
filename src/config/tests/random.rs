//! Properties of random declarations.

use proptest::prelude::*;

use super::*;

fn windows() -> impl Strategy<Value = Window> + Clone {
    (60_u64..=1 << 40).prop_map(|nanos| Window::Span(Duration::from_nanos(nanos)))
}

fn calendars() -> impl Strategy<Value = Window> {
    prop_oneof![Just(Window::Day), Just(Window::Week), Just(Window::Month)]
}

/// Valid limits.
fn limits() -> impl Strategy<Value = Limit> {
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
    );
    let budget = budget.prop_map(|(capacity, window, offset)| {
        let limit = Limit::budget("l", capacity.as_str(), window).unit("0.001");
        offset.into_iter().fold(limit, Limit::utc_offset_minutes)
    });
    let held = prop_oneof![
        any::<u64>().prop_map(|capacity| Amount::Whole(capacity.max(1))),
        Just(Amount::Unlimited)
    ];
    let held = held.prop_map(|capacity| Limit::concurrency("l", capacity));
    prop_oneof![bursting, aligned, sliding, counter, budget, held]
}

fn declarations() -> impl Strategy<Value = Declaration> {
    let set = (
        proptest::collection::vec(limits(), 1..=4),
        proptest::collection::btree_map("\\PC{1,16}", ".{0,64}", 0..4),
    );
    let sets = proptest::collection::vec(("\\PC{0,8}", set), 1..=4);
    let segment = (proptest::option::of("/\\PC{0,20}"), 1_u32..=4096, 0_u32..=0o177);
    (segment, sets).prop_map(|((path, participants, mode), sets)| {
        let declaration = Declaration::new().participants(participants).mode(0o600 | mode);
        let declaration = path.into_iter().fold(declaration, Declaration::path);
        sets.into_iter()
            .enumerate()
            .fold(declaration, |declaration, (index, (name, (limits, metadata)))| {
                let set = SetDeclaration::new(format!("{name}{index}"));
                let set = metadata
                    .into_iter()
                    .fold(set, |set, (key, value)| set.metadata(key, value));
                declaration.set(limits.into_iter().enumerate().fold(set, |set, (index, limit)| {
                    set.limit(Limit {
                        name: format!("{name}\"{index}"),
                        ..limit
                    })
                }))
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
        prop_assert_eq!(read.segment().path(), declaration.segment().path());
        prop_assert_eq!(read.segment().mode(), declaration.segment().mode());
        prop_assert_eq!(read.to_toml().expect("valid"), text);
        let rules = |declaration: &Declaration| {
            let plans = declaration.compile().expect("valid").into_iter();
            let rules = |set: SetPlan| set.limits.iter().map(|limit| limit.rule).collect::<Vec<_>>();
            plans.map(|set| (set.hold_capacity, rules(set))).collect::<Vec<_>>()
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
