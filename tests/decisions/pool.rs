//! Pools: which set is chosen, what happens if it refuses, and how a fork affects the choice.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::scene::expect_permit;
use crate::scene::process::{Child, SharedWords, TIMEOUT, eventually, in_own_process};
use shmlimit::pool::{Chosen, PoolStrategy};
use shmlimit::{
    Declaration, Error, Limit, LimitPool, Permit, Refusal, RequestError, Segment, SetDeclaration,
};

const HOUR: Duration = Duration::from_secs(3600);

fn create(directory: &Path, sets: impl IntoIterator<Item = SetDeclaration>) -> Segment {
    let declaration = sets.into_iter().fold(Declaration::new(), Declaration::add_set);
    Segment::create(directory.join("limits"), &declaration).expect("a segment")
}

/// A pool of sets, each with these limits, named `0`, `1` and so on.
fn pool(directory: &Path, strategy: PoolStrategy, limits: impl IntoIterator<Item = Limit>) -> LimitPool {
    let named = |(index, limit): (usize, Limit)| SetDeclaration::new(index.to_string()).add_limit(limit);
    let segment = create(directory, limits.into_iter().enumerate().map(named));
    pool_of(&segment, strategy)
}

/// A pool of all sets of a segment.
fn pool_of(segment: &Segment, strategy: PoolStrategy) -> LimitPool {
    let count = segment.snapshot().expect("a copy").sets.len();
    let sets = (0..count).map(|index| segment.set(&index.to_string()).expect("declared"));
    LimitPool::new(sets, strategy).expect("some sets")
}

fn plenty() -> Limit {
    Limit::calls("requests", 1_000_000, HOUR)
}

fn places(count: u64) -> Limit {
    Limit::concurrency("places", count)
}

/// A pool of three sets that take turns.
fn three_in_turn(directory: &Path) -> LimitPool {
    pool(
        directory,
        PoolStrategy::RoundRobin,
        std::iter::repeat_with(plenty).take(3),
    )
}

/// The member that a default request is given to.
fn choose(pool: &LimitPool) -> usize {
    let chosen = pool.request().try_acquire().expect("works");
    assert!(chosen.outcome.is_admitted());
    chosen.index
}

fn admitted(chosen: Chosen<'_>) -> (usize, Permit<'_>) {
    (chosen.index, chosen.outcome.into_result().expect("admitted"))
}

fn refused(chosen: Chosen<'_>) -> (usize, Refusal) {
    (chosen.index, chosen.outcome.into_result().expect_err("refused"))
}

/// How many requests each set has refused.
fn refusals(pool: &LimitPool, segment: &Segment) -> Vec<u64> {
    let snapshot = segment.snapshot().expect("a copy");
    let refused = snapshot
        .sets
        .iter()
        .map(|set| set.counts.refused_rate + set.counts.refused_concurrency);
    refused.take(pool.len()).collect()
}

#[test]
fn a_pool_of_nothing_is_an_error() {
    assert!(matches!(
        LimitPool::new([], PoolStrategy::Random),
        Err(Error::Request(RequestError::EmptyPool))
    ));
}

#[test]
fn members_take_turns() {
    let directory = tempfile::tempdir().expect("a directory");
    let pool = three_in_turn(directory.path());
    let first = choose(&pool);
    for turn in 1..10 {
        assert_eq!(choose(&pool), (first + turn) % 3);
    }
}

#[test]
fn turns_begin_with_the_member_of_the_worker() {
    let directory = tempfile::tempdir().expect("a directory");
    let pool = three_in_turn(directory.path()).start_at(5);
    let chosen: Vec<usize> = (0..4).map(|_| choose(&pool)).collect();
    assert_eq!(chosen, [2, 0, 1, 2]);
    assert_eq!(choose(&pool.clone()), 2, "a clone begins there, too");
}

#[test]
fn a_clone_carries_the_definition_and_not_the_position() {
    let directory = tempfile::tempdir().expect("a directory");
    let pool = three_in_turn(directory.path());
    let first = choose(&pool);
    assert_ne!(choose(&pool), first);
    let clone = pool.clone();
    assert_eq!(clone.strategy(), PoolStrategy::RoundRobin);
    assert_eq!(choose(&clone), first);
}

#[test]
fn a_permit_carries_the_metadata_of_the_set_that_was_chosen() {
    let directories = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let regions = ["east", "west"];
    let sets = [0, 1].map(|index| {
        let set = SetDeclaration::new("api")
            .add_metadata("region", regions[index])
            .add_limit(plenty());
        let segment = create(directories[index].path(), [set]);
        segment.set("api").expect("declared")
    });
    let pool = LimitPool::new(sets, PoolStrategy::RoundRobin).expect("two segments");
    for _ in 0..4 {
        let (index, permit) = admitted(pool.request().try_acquire().expect("works"));
        assert_eq!(permit.set().metadata()["region"], regions[index]);
        assert_eq!(
            pool.get(index).expect("a member").metadata()["region"],
            regions[index]
        );
    }
    assert!(pool.get(2).is_none());
}

#[test]
fn a_member_can_be_asked_by_its_index() {
    let directory = tempfile::tempdir().expect("a directory");
    let limit = || Limit::rate("tokens", 100, HOUR);
    let pool = pool(directory.path(), PoolStrategy::RoundRobin, [limit(), limit()]);
    let request = pool.request().with("tokens", 100).expect("declared");
    let own = request.get(1).expect("two requests");
    assert!(own.try_acquire().expect("works").is_admitted());
    assert!(!own.try_acquire().expect("works").is_admitted());
    assert!(request.get(2).is_none());
}

#[test]
fn without_failover_a_refusal_is_the_answer() {
    let directory = tempfile::tempdir().expect("a directory");
    let pool = pool(directory.path(), PoolStrategy::RoundRobin, [places(1), places(1)]);
    let request = pool.request();
    let (first, _held) = admitted(request.try_acquire().expect("works"));
    let (second, permit) = admitted(request.try_acquire().expect("works"));
    drop(permit);
    assert_eq!(refused(request.try_acquire().expect("works")).0, first);
    assert_eq!(admitted(request.try_acquire().expect("works")).0, second);
}

#[test]
fn failover_takes_elsewhere_what_one_refuses() {
    let directory = tempfile::tempdir().expect("a directory");
    for strategy in [
        PoolStrategy::RoundRobin,
        PoolStrategy::Random,
        PoolStrategy::LeastLoaded,
    ] {
        let directory = tempfile::tempdir_in(directory.path()).expect("a directory");
        let pool = pool(directory.path(), strategy, [places(1), places(2), places(3)]).failover(true);
        let request = pool.request();
        let mut held = Vec::new();
        let mut taken = BTreeMap::new();
        for _ in 0..6 {
            let (index, permit) = admitted(request.try_acquire().expect("works"));
            *taken.entry(index).or_insert(0) += 1;
            held.push(permit);
        }
        assert_eq!(taken, [(0, 1), (1, 2), (2, 3)].into(), "{strategy:?}");
        assert!(!request.try_acquire().expect("works").outcome.is_admitted());
    }
}

#[test]
fn where_all_refuse_each_was_asked_once_and_the_shortest_wait_is_the_answer() {
    let directory = tempfile::tempdir().expect("a directory");
    let calls = |hours| Limit::calls("requests", 1, hours * HOUR);
    let named = |(index, limit)| SetDeclaration::new(format!("{index}")).add_limit(limit);
    let limits = [calls(3), calls(1), calls(2)];
    let segment = create(directory.path(), limits.into_iter().enumerate().map(named));
    let pool = pool_of(&segment, PoolStrategy::RoundRobin).failover(true);
    let request = pool.request();
    for _ in 0..3 {
        assert!(request.try_acquire().expect("works").outcome.is_admitted());
    }
    let before = refusals(&pool, &segment);
    let (index, refusal) = refused(request.try_acquire().expect("works"));
    assert_eq!(index, 1);
    assert!(refusal.retry_after().expect("a retry time") <= HOUR);
    let after = refusals(&pool, &segment);
    let asked: Vec<u64> = after
        .iter()
        .zip(before)
        .map(|(after, before)| after - before)
        .collect();
    assert_eq!(asked, [1, 1, 1]);
}

#[test]
fn a_wait_that_ends_is_shorter_than_one_for_others() {
    let directory = tempfile::tempdir().expect("a directory");
    let pool = pool(
        directory.path(),
        PoolStrategy::RoundRobin,
        [places(1), Limit::calls("requests", 1, HOUR)],
    )
    .failover(true);
    let request = pool.request();
    let _held = [(); 2].map(|()| admitted(request.try_acquire().expect("works")).1);
    for _ in 0..2 {
        assert_eq!(refused(request.try_acquire().expect("works")).0, 1);
    }
}

#[test]
fn failover_passes_over_what_could_never_admit_the_request() {
    let directory = tempfile::tempdir().expect("a directory");
    let rate = |capacity| Limit::rate("tokens", capacity, HOUR);
    let pool = pool(directory.path(), PoolStrategy::RoundRobin, [rate(10), rate(100)]).failover(true);
    let request = pool.request().with("tokens", 50).expect("declared");
    for _ in 0..2 {
        assert_eq!(admitted(request.try_acquire().expect("works")).0, 1);
    }
    let mut request = pool.request().with("tokens", 101).expect("declared");
    assert!(matches!(
        request.try_acquire(),
        Err(Error::Request(RequestError::NeverAdmissible { .. }))
    ));
    assert!(matches!(
        request.acquire(None),
        Err(Error::Request(RequestError::NeverAdmissible { .. }))
    ));
    request.set_cost("tokens", 10).expect("declared");
    assert_eq!(admitted(request.acquire(None).expect("works")).0, 0);
}

#[test]
fn the_least_loaded_member_is_the_one_with_the_largest_share_left() {
    let directory = tempfile::tempdir().expect("a directory");
    let pool = pool(
        directory.path(),
        PoolStrategy::LeastLoaded,
        [places(10), places(4), Limit::calls("requests", 100, HOUR)],
    );
    let take = |index: usize, limit: &str, units| {
        let set = pool.get(index).expect("a member");
        let request = set.request().with(limit, units).expect("declared");
        expect_permit(request.try_acquire())
    };
    let _half = take(0, "places", 5);
    let _quarter = take(1, "places", 1);
    let _two_fifths = take(2, "requests", 40);
    let (index, permit) = admitted(pool.request().try_acquire().expect("works"));
    assert_eq!(index, 1);
    // Now half of that set is held as well.
    let (index, _) = admitted(pool.request().try_acquire().expect("works"));
    assert_eq!(index, 2);
    drop(permit);
    let (index, _) = admitted(pool.request().try_acquire().expect("works"));
    assert_eq!(index, 1);
}

#[test]
fn members_that_are_loaded_alike_take_turns() {
    let directory = tempfile::tempdir().expect("a directory");
    let pool = pool(
        directory.path(),
        PoolStrategy::LeastLoaded,
        [places(4), places(4), places(4)],
    );
    let chosen: BTreeSet<usize> = (0..3).map(|_| choose(&pool)).collect();
    assert_eq!(chosen, [0, 1, 2].into());
}

#[test]
fn chance_leaves_no_member_out() {
    let directory = tempfile::tempdir().expect("a directory");
    let pool = pool(
        directory.path(),
        PoolStrategy::Random,
        [plenty(), plenty(), plenty()],
    );
    let mut chosen = BTreeSet::new();
    eventually("each member is chosen", || {
        chosen.insert(choose(&pool));
        chosen.len() == 3
    });
}

#[test]
fn names_are_resolved_in_every_member_that_has_them() {
    let directory = tempfile::tempdir().expect("a directory");
    let rate = |name: &str| Limit::rate(name, 100, HOUR);
    let segment = create(
        directory.path(),
        [
            SetDeclaration::new("0")
                .add_limit(rate("other"))
                .add_limit(rate("tokens")),
            SetDeclaration::new("1").add_limit(rate("tokens")),
        ],
    );
    let strict = pool_of(&segment, PoolStrategy::RoundRobin);
    let lenient = LimitPool::new(
        strict.iter().map(|set| set.clone().strict(false)),
        PoolStrategy::RoundRobin,
    )
    .expect("two sets");
    let request = lenient.request().with("tokens", 30).expect("declared");
    for _ in 0..2 {
        let (_, permit) = admitted(request.try_acquire().expect("works"));
        assert_eq!(permit.taken().collect::<Vec<_>>(), [("tokens", 30)]);
    }
    assert!(lenient.request().with("other", 1).is_ok());
    let answer = strict.request().with("other", 1);
    assert!(matches!(answer, Err(Error::Request(RequestError::UnknownLimit { set, .. })) if set == "1"));
}

/// Takes the only place of every member, calls `wait`, and frees the place for which it waits.
fn wait_for_a_place(directory: &Path, wait: impl Fn(&LimitPool) -> usize + Sync) {
    let named = |index: u32| SetDeclaration::new(index.to_string()).add_limit(places(1));
    let segment = create(directory, (0..3).map(named));
    let pool = pool_of(&segment, PoolStrategy::RoundRobin).failover(true);
    let request = pool.request();
    let mut held: BTreeMap<usize, Permit<'_>> = (0..3)
        .map(|_| admitted(request.try_acquire().expect("works")))
        .collect();
    let lines = || -> Vec<usize> {
        let snapshot = segment.snapshot().expect("a copy");
        snapshot.sets.iter().map(|set| set.tickets.len()).collect()
    };
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| wait(&pool));
        eventually("a request waits", || lines().iter().sum::<usize>() == 1);
        let waited_for = lines()
            .iter()
            .position(|count| *count == 1)
            .expect("a request waits");
        drop(held.remove(&waited_for));
        assert_eq!(waiter.join().expect("no panic"), waited_for);
    });
}

#[test]
fn where_all_refuse_a_request_waits_at_one() {
    let directory = tempfile::tempdir().expect("a directory");
    wait_for_a_place(directory.path(), |pool| {
        admitted(pool.request().acquire(TIMEOUT).expect("works")).0
    });
}

#[test]
fn where_all_refuse_a_future_waits_at_one() {
    fn is_send<T: Future + Send>(future: T) -> T {
        future
    }
    let directory = tempfile::tempdir().expect("a directory");
    wait_for_a_place(directory.path(), |pool| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        let request = pool.request();
        let future = is_send(request.acquire_async(TIMEOUT));
        admitted(runtime.block_on(future).expect("works")).0
    });
}

#[test]
fn no_request_waits_at_one_where_another_has_room() {
    let directory = tempfile::tempdir().expect("a directory");
    let pool = pool(
        directory.path(),
        PoolStrategy::RoundRobin,
        [places(1), places(2), places(1)],
    )
    .failover(true);
    let request = pool.request();
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(admitted(request.acquire(None).expect("works")));
    }
    assert!(
        !request
            .acquire(Duration::from_millis(1))
            .expect("works")
            .outcome
            .is_admitted()
    );
}

#[test]
fn forked_workers_start_at_different_members() {
    let test = "pool::forked_workers_start_at_different_members";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        const WORKERS: usize = 4;
        let pool = pool(
            directory,
            PoolStrategy::RoundRobin,
            (0..WORKERS).map(|_| plenty()),
        );
        // The workers do not start at the parent's position.
        choose(&pool);
        let chosen = SharedWords::new(WORKERS);
        let all_have_chosen = || chosen.iter().all(|word| word.load(Ordering::Acquire) != 0);
        let workers: Vec<Child> = (0..WORKERS)
            .map(|worker| {
                Child::fork(|| {
                    chosen[worker].store(1 + choose(&pool) as u64, Ordering::Release);
                    eventually("all have chosen", all_have_chosen);
                })
            })
            .collect();
        for worker in workers {
            worker.succeed();
        }
        let members: BTreeSet<u64> = chosen.iter().map(|word| word.load(Ordering::Acquire)).collect();
        assert_eq!(members.len(), WORKERS, "{members:?}");
    });
}

#[test]
fn chance_differs_in_forked_children() {
    let test = "pool::chance_differs_in_forked_children";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let pool = pool(directory, PoolStrategy::Random, [plenty(), plenty()]);
        choose(&pool);
        // Sixty-four choices between two make a word. Two such words are not equal by chance.
        let choices = || (0..64).fold(0, |word, _| (word << 1) | choose(&pool) as u64);
        let words = SharedWords::new(2);
        for word in &*words {
            Child::fork(|| word.store(choices(), Ordering::Release)).succeed();
        }
        let [first, second] = [0, 1].map(|child| words[child].load(Ordering::Acquire));
        let own = choices();
        assert!(first != second && first != own && second != own);
    });
}
