//! What has a hold: permits, batches of credit, granted tickets, and nothing else, whatever is asked and whatever is
//! declared.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::scene;
use crate::scene::clock::Scene;
use shmlimit::declare::{Adaptive, Credit, WhenFull};
use shmlimit::{Error, Key, Keyed, Limit, LimitSet, Permit, Request, SetDeclaration, Tier};

const MINUTE: Duration = Duration::from_secs(60);
const CAPACITY: u64 = 100;
const KEY: &str = "192.0.2.1";

/// A limit of every kind with every option, named `units`. Some combinations are invalid.
fn limits() -> Vec<Limit> {
    let mut limits = vec![
        Limit::concurrency("units", CAPACITY),
        Limit::concurrency("units", CAPACITY).lease(MINUTE),
        Limit::budget("units", CAPACITY, MINUTE),
    ];
    limits.extend(
        [Adaptive::Aimd, Adaptive::Gradient, Adaptive::Vegas].map(|adaptive| {
            Limit::concurrency("units", CAPACITY)
                .adaptive(adaptive)
                .ceiling(CAPACITY)
        }),
    );
    for algorithm in scene::ALGORITHMS {
        limits.push(Limit::calls("units", CAPACITY, MINUTE).algorithm(algorithm));
        limits.push(Limit::rate("units", CAPACITY, MINUTE).algorithm(algorithm));
    }
    let options: [fn(Limit) -> Limit; 5] = [
        |limit| limit,
        |limit| limit.shadow(true),
        |limit| limit.prefix(24, 48),
        |limit| limit.credit(Credit::batch(10)),
        |limit| limit.credit(Credit::auto()),
    ];
    let of_options = options.map(|option| limits.clone().into_iter().map(option).collect::<Vec<_>>());
    of_options.concat()
}

/// Every valid set of one of these limits, alone and together with another limit of each kind.
fn declarations() -> Vec<SetDeclaration> {
    let keyed = |set: SetDeclaration| set.keyed(Keyed::new(100).when_full(WhenFull::EvictOldest));
    let of_sets: [&dyn Fn(SetDeclaration) -> SetDeclaration; 5] = [
        &|set| set,
        &keyed,
        &|set| set.keyed(Keyed::new(100).overrides(true)),
        &|set| keyed(set).add_tier(Tier::new("gold").capacity("units", 2 * CAPACITY)),
        &|set| set.labels(true),
    ];
    let beside: [&dyn Fn(SetDeclaration) -> SetDeclaration; 3] = [
        &|set| set,
        &|set| set.add_limit(Limit::concurrency("places", CAPACITY)),
        &|set| set.add_limit(Limit::calls("calls", CAPACITY, MINUTE)),
    ];
    let mut sets = Vec::new();
    for limit in limits() {
        for of_set in of_sets {
            for beside in beside {
                let set = of_set(beside(SetDeclaration::new("api").add_limit(limit.clone())));
                if scene::declaration().add_set(set.clone()).validate().is_ok() {
                    sets.push(set);
                }
            }
        }
    }
    sets
}

/// The handle whose limits are used.
struct Subject<'a> {
    set: &'a LimitSet,
    key: Option<Key<'a>>,
    /// For the key, if there is one.
    request: Request<'a>,
}

/// Calls a method of the key, or of the set if there is no key.
macro_rules! ask {
    ($subject:expr, $verb:ident($($argument:expr),*)) => {
        match &$subject.key {
            Some(key) => key.$verb($($argument),*),
            None => $subject.set.$verb($($argument),*),
        }
    };
}

/// Does something, and returns the permits that remain. It is an error if what it does is not possible for the subject.
type Verb = for<'a> fn(&Subject<'a>) -> Result<Vec<Permit<'a>>, Error>;

fn finished<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => panic!("there is room"),
    }
}

const VERBS: [(&str, Verb); 20] = [
    ("try_acquire", |it| {
        let admitted = it.request.try_acquire()?.into_result();
        Ok(admitted.into_iter().collect())
    }),
    ("acquire", |it| {
        let admitted = it.request.acquire(MINUTE)?.into_result();
        Ok(admitted.into_iter().collect())
    }),
    ("acquire_while", |it| {
        let admitted = it.request.acquire_while(MINUTE, || true)?.into_result();
        Ok(admitted.into_iter().collect())
    }),
    ("acquire_async", |it| {
        let admitted = finished(it.request.acquire_async(MINUTE))?.into_result();
        Ok(admitted.into_iter().collect())
    }),
    ("acquire_async, owned", |it| {
        let admitted = finished(it.request.acquire_async(MINUTE).into_owned())?.into_result();
        Ok(admitted.into_iter().collect())
    }),
    ("acquire_async, dropped", |it| {
        drop(it.request.acquire_async(MINUTE));
        Ok(Vec::new())
    }),
    ("reserve", |it| {
        let reserved = it.request.reserve(MINUTE)?.into_result();
        Ok(reserved.into_iter().map(|it| it.into_permit()).collect())
    }),
    ("settle", |it| {
        let mut permit = scene::expect_permit(it.request.try_acquire());
        let _ = permit.settle([("units", 3)]);
        Ok(vec![permit])
    }),
    ("heartbeat", |it| {
        let permit = scene::expect_permit(it.request.try_acquire());
        permit.heartbeat()?;
        Ok(vec![permit])
    }),
    ("debit by a permit", |it| {
        let mut permit = scene::expect_permit(it.request.try_acquire());
        let _ = permit.debit("units", 3);
        Ok(vec![permit])
    }),
    ("release", |it| {
        scene::expect_permit(it.request.try_acquire()).release()?;
        Ok(Vec::new())
    }),
    ("cancel", |it| {
        scene::expect_permit(it.request.try_acquire()).cancel()?;
        Ok(Vec::new())
    }),
    ("throttled", |it| {
        scene::expect_permit(it.request.try_acquire()).throttled(MINUTE)?;
        Ok(Vec::new())
    }),
    ("check", |it| it.request.check().map(|_| Vec::new())),
    ("check_many", |it| {
        it.request.check_many(&[KEY, "other"]).map(|_| Vec::new())
    }),
    ("check of an address", |it| {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        it.request.for_address(address)?.check().map(|_| Vec::new())
    }),
    ("debit", |it| ask!(it, debit("units", 3)).map(|_| Vec::new())),
    ("looks", |it| {
        let _ = it.request.peek()?;
        ask!(it, forecast()).map(|_| Vec::new())
    }),
    ("throttle", |it| ask!(it, throttle(MINUTE)).map(|()| Vec::new())),
    ("changes of the key", |it| {
        if let Some(key) = &it.key {
            let _ = key.assign("gold");
            let _ = key.override_capacity("units", 50);
            let _ = key.clear_override("units");
            key.reset().run()?;
        }
        Ok(Vec::new())
    }),
];

#[test]
fn whatever_is_asked_of_whatever_is_declared_the_holds_are_those_of_the_permits_that_are_out() {
    let mut seen = std::collections::BTreeMap::new();
    for declared in declarations() {
        let text = scene::declaration()
            .add_set(declared.clone())
            .to_toml()
            .expect("valid");
        let (is_by_address, draws) = (text.contains("prefix"), text.contains("credit"));
        let scene = Scene::new(declared.waiters(4));
        let set = scene.set();
        let holds = || scene.snapshot().holds.len();
        for (verb, act) in VERBS {
            // Whatever was taken before is replenished.
            scene.pass(10 * MINUTE);
            let mut request = set.request();
            for limit in set.limits() {
                // The request asks budgets, but charges them nothing.
                let _ = request.set_cost(limit, 2);
            }
            let has_key = set.is_keyed() && !is_by_address;
            if has_key {
                request.set_key(KEY).expect("keyed");
            }
            let subject = Subject {
                set: &set,
                key: has_key.then(|| set.key(KEY).expect("a key")),
                request,
            };
            if is_by_address != (verb == "check of an address") {
                continue;
            }
            let Ok(permits) = act(&subject) else {
                assert!(holds() <= usize::from(draws), "{verb} in vain: {text}");
                continue;
            };
            *seen.entry(verb).or_insert(0) += 1;
            let gives_back = set
                .declared_limits()
                .iter()
                .any(|limit| limit.kind() == shmlimit::declare::Kind::Concurrency);
            if draws {
                // The batch has a hold, whichever request is admitted from it.
                assert!(holds() <= 1, "{verb}: {text}");
            } else {
                let expected = if gives_back { permits.len() } else { 0 };
                assert_eq!(holds(), expected, "{verb}: {text}");
                drop(permits);
                assert_eq!(holds(), 0, "{verb}, dropped: {text}");
            }
        }
    }
    for (verb, _) in VERBS {
        assert!(seen.contains_key(verb), "{verb} has a meaning somewhere");
    }
}

#[test]
fn a_granted_ticket_has_a_hold_and_a_waiting_one_has_none() {
    let scene = Scene::new(SetDeclaration::new("api").add_limit(Limit::concurrency("places", 1)));
    let set = scene.set();
    let permit = scene::expect_permit(set.request().try_acquire());
    let mut waiting = Box::pin(set.request().acquire_async(None));
    let poll = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll.is_pending());
    let owners = || {
        let copy = scene.snapshot();
        (
            copy.holds.len(),
            copy.tickets.iter().filter(|it| it.granted).count(),
        )
    };
    assert_eq!(owners(), (1, 0));
    drop(permit);
    assert_eq!(owners(), (1, 1));
    drop(waiting);
    assert_eq!(owners(), (0, 0));
}
