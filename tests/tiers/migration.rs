//! What happens to what a key has used when its tier changes: the same as in a set to which another declaration is
//! applied.

use std::cell::RefCell;

use proptest::prelude::*;
use shmlimit::declare::Align;
use shmlimit::{Permit, Verdict};

use super::*;

/// A key that changes its tier or its capacity and, for comparison, a set whose declaration changes with it, at the
/// same time.
struct Twins {
    scene: Scene,
    beside: Scene,
    kind: Kind,
    has_overrides: bool,
    now: RefCell<InForce>,
}

/// What the key is limited by.
#[derive(Clone, Debug)]
struct InForce {
    tiers: [Terms; 3],
    tier: usize,
    own: Option<u64>,
    /// Whether what is declared has changed.
    is_declared_anew: bool,
}

impl InForce {
    fn terms(&self) -> Terms {
        let (capacity, burst, seconds) = self.tiers[self.tier];
        let own = self.own.unwrap_or(capacity);
        // A burst that equals the capacity continues to do so.
        let burst = if burst == capacity { own } else { burst };
        (own, burst, seconds)
    }
}

/// A tier's capacity, burst and window in seconds.
type Terms = (u64, u64, u64);

/// What kind of limit there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Rate(Algorithm),
    FirstUse,
    Budget,
    Concurrency,
}

impl Kind {
    fn has_burst(self) -> bool {
        let Self::Rate(algorithm) = self else { return false };
        matches!(
            algorithm,
            Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket
        )
    }

    /// One window for all tiers, if it cannot differ.
    fn window(self, seconds: u64) -> Option<Duration> {
        match self {
            Self::Concurrency => None,
            Self::Rate(Algorithm::SlidingWindowCounter) => Some(Duration::from_secs(10)),
            _ => Some(Duration::from_secs(seconds)),
        }
    }

    fn limit(self, (capacity, burst, seconds): Terms) -> Limit {
        let window = self.window(seconds).unwrap_or_default();
        match self {
            Self::Rate(algorithm) => {
                let limit = Limit::rate("units", capacity, window).algorithm(algorithm);
                match algorithm {
                    Algorithm::SlidingWindow => limit.entries(8),
                    _ if self.has_burst() => limit.burst(burst),
                    _ => limit,
                }
            }
            Self::FirstUse => Limit::rate("units", capacity, window)
                .algorithm(Algorithm::FixedWindow)
                .align(Align::FirstUse),
            Self::Budget => Limit::budget("units", capacity, window),
            Self::Concurrency => Limit::concurrency("units", capacity),
        }
    }

    fn tier(self, name: &str, (capacity, burst, seconds): Terms) -> Tier {
        let tier = Tier::new(name).capacity("units", capacity);
        let tier = if self.has_burst() {
            tier.burst("units", burst)
        } else {
            tier
        };
        match self.window(seconds) {
            Some(window) => tier.window("units", window),
            None => tier,
        }
    }
}

const NAMES: [&str; 3] = ["default", "one", "two"];

impl Twins {
    fn new(kind: Kind, tiers: [Terms; 3], has_overrides: bool) -> Self {
        Self {
            scene: Scene::new(Self::tiered(kind, tiers, has_overrides)),
            beside: Scene::new(Self::plain(kind, tiers[0])),
            kind,
            has_overrides,
            now: RefCell::new(InForce {
                tiers,
                tier: 0,
                own: None,
                is_declared_anew: false,
            }),
        }
    }

    fn plain(kind: Kind, terms: Terms) -> SetDeclaration {
        SetDeclaration::new("api").add_limit(kind.limit(terms))
    }

    fn tiered(kind: Kind, tiers: [Terms; 3], has_overrides: bool) -> SetDeclaration {
        let set = SetDeclaration::new("api")
            .keyed(Keyed::new(10).overrides(has_overrides))
            .add_limit(kind.limit(tiers[0]));
        if has_overrides {
            return set;
        }
        set.add_tier(kind.tier(NAMES[1], tiers[1]))
            .add_tier(kind.tier(NAMES[2], tiers[2]))
    }

    /// Makes one change to both twins, or none if the key would not notice.
    fn change(&self, change: Change) {
        let mut now = self.now.borrow_mut();
        let mut next = now.clone();
        match change {
            Change::Tier(tier) => next.tier = tier,
            Change::Own(own) => next.own = own,
            Change::Declared(terms) => {
                next.tiers[next.tier] = terms;
                next.is_declared_anew = true;
            }
        }
        let noticed = |in_force: &InForce| {
            let (capacity, burst, seconds) = in_force.terms();
            let burst = self.kind.has_burst().then_some(burst);
            (capacity, burst, self.kind.window(seconds))
        };
        if noticed(&next) == noticed(&now) {
            return;
        }
        let set = self.scene.set();
        let key = set.key("key").expect("keyed");
        match change {
            Change::Tier(tier) => key.assign(NAMES[tier]).expect("a tier"),
            Change::Own(Some(own)) => key.override_capacity("units", own).expect("a capacity"),
            Change::Own(None) => key.clear_override("units").expect("no error"),
            Change::Declared(_) => {
                let set = Self::tiered(self.kind, next.tiers, self.has_overrides);
                let applied = self
                    .scene
                    .segment
                    .apply(&crate::scene::declaration().add_set(set));
                assert!(!applied.expect("applicable").is_empty());
            }
        }
        let beside = Self::plain(self.kind, next.terms());
        let applied = self
            .beside
            .segment
            .apply(&crate::scene::declaration().add_set(beside));
        assert!(!applied.expect("applicable").is_empty());
        *now = next;
    }

    fn advance(&self, time: Duration) {
        self.scene.pass(time);
        self.beside.pass(time);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Take(u64),
    Settle(usize, u64),
    Release(usize),
    Advance(u64),
    Change(Change),
    Restart,
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Tier(usize),
    /// The key's own capacity.
    Own(Option<u64>),
    /// What is declared for the key's tier.
    Declared(Terms),
}

fn tiers() -> impl Strategy<Value = Change> {
    (0_usize..3).prop_map(Change::Tier)
}

fn capacities() -> impl Strategy<Value = Change> {
    prop::option::weighted(0.8, 1_u64..60).prop_map(Change::Own)
}

/// Terms with a burst of their own, or with the capacity as the burst.
fn any_terms() -> impl Strategy<Value = Terms> {
    let terms = (1_u64..40, prop::option::of(1_u64..40), 1_u64..20);
    terms.prop_map(|(capacity, burst, seconds)| (capacity, burst.unwrap_or(capacity), seconds))
}

fn with_declarations(changes: impl Strategy<Value = Change>) -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => changes,
        1 => any_terms().prop_map(Change::Declared),
    ]
}

fn steps(change: impl Strategy<Value = Change>) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0_u64..12).prop_map(Step::Take),
        3 => (any::<usize>(), 0_u64..20).prop_map(|(which, used)| Step::Settle(which, used)),
        1 => any::<usize>().prop_map(Step::Release),
        3 => (0_u64..3_000_000_000).prop_map(Step::Advance),
        2 => change.prop_map(Step::Change),
        1 => Just(Step::Restart),
    ];
    proptest::collection::vec(step, 1..60)
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop::sample::select(vec![
        Kind::Rate(Algorithm::Gcra),
        Kind::Rate(Algorithm::TokenBucket),
        Kind::Rate(Algorithm::LeakyBucket),
        Kind::Rate(Algorithm::FixedWindow),
        Kind::Rate(Algorithm::SlidingWindow),
        Kind::Rate(Algorithm::SlidingWindowCounter),
        Kind::FirstUse,
        Kind::Budget,
        Kind::Concurrency,
    ])
}

/// What a verdict says, without its lifetime.
fn said(verdict: &Verdict<'_>) -> (bool, u64, Option<Duration>, Duration, u64) {
    (
        verdict.admitted,
        verdict.remaining,
        verdict.retry_after,
        verdict.reset_after,
        verdict.burst,
    )
}

fn request(set: &LimitSet, cost: u64) -> shmlimit::Request<'_> {
    set.request().with("units", cost).expect("declared")
}

/// Checks that both answer the same, whatever happens to the key and, at the same time, to the set.
fn go_on_as_one(twins: &Twins, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let kind = twins.kind;
    let mut sets = (twins.scene.set(), twins.beside.set());
    let others = twins.scene.set();
    if !twins.has_overrides {
        others
            .key("neighbour")
            .expect("keyed")
            .assign("two")
            .expect("a tier");
    }
    let permits: RefCell<Vec<(Permit<'static>, Permit<'static>)>> = RefCell::default();
    // A key without a row would begin in its tier with everything.
    let begun = sets.0.request().with("units", 0).expect("declared");
    drop(
        begun
            .for_key("key")
            .expect("keyed")
            .try_acquire()
            .expect("no error"),
    );
    for step in steps {
        match step {
            Step::Take(cost) => {
                let cost = if kind == Kind::Budget { 0 } else { cost };
                let ours = request(&sets.0, cost)
                    .for_key("key")
                    .expect("keyed")
                    .try_acquire();
                let theirs = request(&sets.1, cost).try_acquire();
                match (ours, theirs) {
                    (Ok(ours), Ok(theirs)) => {
                        prop_assert_eq!(ours.is_admitted(), theirs.is_admitted());
                        if let (Ok(ours), Ok(theirs)) = (ours.into_result(), theirs.into_result()) {
                            prop_assert_eq!(
                                ours.verdicts().map(|verdict| said(&verdict)).collect::<Vec<_>>(),
                                theirs
                                    .verdicts()
                                    .map(|verdict| said(&verdict))
                                    .collect::<Vec<_>>()
                            );
                            permits
                                .borrow_mut()
                                .push((ours.into_owned(), theirs.into_owned()));
                        }
                    }
                    (
                        Err(Error::Request(RequestError::NeverAdmissible { max, .. })),
                        Err(Error::Request(RequestError::NeverAdmissible { max: beside, .. })),
                    ) => prop_assert_eq!(max, beside),
                    (ours, theirs) => {
                        let what = format!("{ours:?}, and beside it {theirs:?}");
                        return Err(TestCaseError::fail(what));
                    }
                }
            }
            Step::Settle(which, used) => {
                let mut permits = permits.borrow_mut();
                if permits.is_empty() || kind == Kind::Concurrency {
                    continue;
                }
                let which = which % permits.len();
                let (mut ours, mut theirs) = permits.swap_remove(which);
                let said = |permit: &mut Permit<'_>| {
                    let settled = permit.settle([("units", used)]).expect("not settled yet");
                    (settled.refunded("units"), settled.overdraft("units"))
                };
                prop_assert_eq!(said(&mut ours), said(&mut theirs));
            }
            Step::Release(which) => {
                let mut permits = permits.borrow_mut();
                if !permits.is_empty() {
                    let which = which % permits.len();
                    drop(permits.swap_remove(which));
                }
            }
            Step::Advance(nanos) => twins.advance(Duration::from_nanos(nanos)),
            Step::Change(change) => twins.change(change),
            // A process that has not been notified of anything yet.
            Step::Restart => sets.0 = twins.scene.other().set("api").expect("declared"),
        }
        let look = |verdicts: Result<Vec<Verdict<'_>>, Error>| {
            verdicts.expect("no error").iter().map(said).collect::<Vec<_>>()
        };
        let one = u64::from(kind != Kind::Budget);
        let ours = look(request(&sets.0, one).for_key("key").expect("keyed").peek());
        let theirs = look(request(&sets.1, one).peek());
        prop_assert_eq!(ours, theirs);
    }
    let verdicts = others
        .request()
        .with("units", 0)
        .expect("declared")
        .for_key("neighbour")
        .expect("keyed")
        .peek()
        .expect("no error");
    let now = twins.now.borrow();
    let (capacity, burst, _) = now.tiers[if twins.has_overrides { 0 } else { 2 }];
    let max = if kind.has_burst() { burst } else { capacity };
    if !now.is_declared_anew {
        prop_assert_eq!(verdicts[0].remaining, max);
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_key_whose_tier_changes_goes_on_as_a_set_to_which_that_is_applied(
        kind in kinds(),
        terms in [any_terms(), any_terms(), any_terms()],
        steps in steps(tiers()),
    ) {
        go_on_as_one(&Twins::new(kind, terms, false), steps)?;
    }

    #[test]
    fn a_key_whose_tier_and_declaration_change_goes_on_as_a_set_to_which_that_is_applied(
        kind in kinds(),
        terms in [any_terms(), any_terms(), any_terms()],
        steps in steps(with_declarations(tiers())),
    ) {
        go_on_as_one(&Twins::new(kind, terms, false), steps)?;
    }

    #[test]
    fn a_key_whose_own_capacity_and_declaration_change_goes_on_as_a_set_to_which_that_is_applied(
        kind in kinds(),
        terms in [any_terms(), any_terms(), any_terms()],
        steps in steps(with_declarations(capacities())),
    ) {
        go_on_as_one(&Twins::new(kind, terms, true), steps)?;
    }
}

#[test]
fn what_was_reserved_before_a_change_of_tier_is_not_refunded() {
    let limit = || Limit::rate("units", 10, MINUTE).algorithm(Algorithm::TokenBucket);
    let scene = Scene::new(
        keyed(10)
            .add_limit(limit())
            .add_tier(Tier::new("gold").capacity("units", 100)),
    );
    let set = scene.set();
    let key = set.key("a").expect("keyed");
    let five = set.request().with("units", 5).expect("declared");
    let refunded = |changes: &[&str]| {
        let mut permit = expect_permit(five.for_key("a").expect("keyed").try_acquire());
        for tier in changes {
            key.assign(tier).expect("a tier");
        }
        let refunded = permit
            .settle([("units", 0)])
            .expect("not settled yet")
            .refunded("units");
        key.assign("default").expect("a tier");
        key.reset().run().expect("no error");
        refunded
    };
    assert_eq!(refunded(&[]), 5);
    assert_eq!(refunded(&["default"]), 5, "the same tier is no change");
    assert_eq!(refunded(&["gold"]), 0);
    assert_eq!(refunded(&["gold", "default"]), 0);
}

#[test]
fn what_was_reserved_before_a_change_of_tier_and_one_of_the_definition_is_not_refunded() {
    let of = |gold| {
        let limit = Limit::rate("units", 10, MINUTE).algorithm(Algorithm::TokenBucket);
        keyed(10)
            .add_limit(limit)
            .add_tier(Tier::new("gold").capacity("units", gold))
    };
    let scene = Scene::new(of(100));
    let set = scene.set();
    let key = set.key("a").expect("keyed");
    let five = set.request().with("units", 5).expect("declared");
    let apply = |gold| {
        let applied = scene
            .segment
            .apply(&crate::scene::declaration().add_set(of(gold)));
        assert!(!applied.expect("applicable").is_empty());
    };
    let take = || expect_permit(five.for_key("a").expect("keyed").try_acquire());
    let settle = |mut permit: Permit<'_>| {
        permit
            .settle([("units", 0)])
            .expect("not settled yet")
            .refunded("units")
    };
    key.assign("gold").expect("a tier");
    let permit = take();
    apply(200);
    assert_eq!(settle(permit), 0, "a change of the definition alone");
    let permit = take();
    apply(300);
    key.assign("default").expect("a tier");
    assert_eq!(settle(permit), 0);
}

#[test]
fn a_definition_that_changes_migrates_each_key_by_its_tier() {
    let of = |default, gold| {
        let limit = Limit::calls("requests", default, MINUTE).algorithm(Algorithm::SlidingWindow);
        keyed(100)
            .add_limit(limit.entries(64))
            .add_tier(Tier::new("gold").capacity("requests", gold))
    };
    let scene = Scene::new(of(10, 20));
    let set = scene.set();
    set.key("rich").expect("keyed").assign("gold").expect("a tier");
    let spend = |key: &str, units| {
        let request = set.request().with("requests", units).expect("declared");
        assert!(is_admitted(&request, key));
    };
    spend("rich", 15);
    spend("other", 5);
    let remaining = |key: &str| {
        let verdicts = set
            .request()
            .for_key(key)
            .expect("keyed")
            .peek()
            .expect("no error");
        verdicts[0].remaining
    };
    let changes = scene
        .segment
        .apply(&crate::scene::declaration().add_set(of(10, 30)))
        .expect("applicable");
    assert_eq!(
        changes.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [r#"set "api" / tier "gold" / limits / requests / capacity: declared 30, in the segment 20"#]
    );
    assert_eq!((remaining("rich"), remaining("other")), (15, 5));
    scene
        .segment
        .apply(&crate::scene::declaration().add_set(of(7, 16)))
        .expect("applicable");
    assert_eq!((remaining("rich"), remaining("other")), (1, 2));
}

#[test]
fn a_tier_can_be_added_to_others_while_the_segment_is_in_use() {
    let scene = Scene::new(plans());
    let (set, other) = (scene.set(), scene.other());
    set.key("a").expect("keyed").assign("gold").expect("a tier");
    let more = plans().add_tier(Tier::new("platinum").capacity("requests", 1_000));
    other
        .apply(&crate::scene::declaration().add_set(more))
        .expect("applicable");
    assert_eq!(
        set.tiers().collect::<Vec<_>>(),
        ["default", "gold", "free"],
        "not heard of yet"
    );
    set.key("b")
        .expect("keyed")
        .assign("platinum")
        .expect("it asks what is in force");
    assert_eq!(set.tiers().last(), Some("platinum"));
    let tier = |key: &str| set.key(key).expect("keyed").tier().expect("no error");
    assert_eq!((tier("a"), tier("b")), ("gold".to_owned(), "platinum".to_owned()));
    assert_eq!(admitted(&set, "b"), 1_000);
}

#[test]
fn no_tier_goes_and_the_first_does_not_come_while_the_segment_is_in_use() {
    let refused = |scene: &Scene, set: SetDeclaration| {
        let declaration = crate::scene::declaration().add_set(set);
        expect_differences(scene.segment.apply(&declaration))
    };
    let limit = || Limit::calls("requests", 10, MINUTE);
    let gold = || Tier::new("gold").capacity("requests", 20);
    let without = Scene::new(keyed(10).add_limit(limit()));
    let with = Scene::new(keyed(10).add_limit(limit()).add_tier(gold()));
    for (scene, asked, part) in [
        (
            &without,
            keyed(10).add_limit(limit()).add_tier(gold()),
            "in the segment absent",
        ),
        (&with, keyed(10).add_limit(limit()), "declared absent"),
        (
            &with,
            keyed(10)
                .add_limit(limit())
                .add_tier(Tier::new("silver").capacity("requests", 20)),
            "tier \"gold\": declared absent",
        ),
    ] {
        let why = refused(scene, asked);
        assert!(why.contains(part), "{why}");
    }
}
