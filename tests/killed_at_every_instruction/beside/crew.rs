//! Live processes beside a stopped victim: each of their threads has something to give back, and does so while the
//! victim is stopped, wherever that is.

use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use shmlimit::declare::Kind;
use shmlimit::request::{AcquireFuture, LimitIndex};
use shmlimit::{Error, LimitSet, Outcome, Permit, PermitError, ReserveOutcome, SegmentError, VirtualClock};

use crate::beside::bystanders::Bystander;
use crate::beside::clock;
use crate::beside::gate::{Gate, Step};
use crate::beside::room::{PLACES, UNITS};
use crate::operations::subject::Subject;
use crate::operations::{Operation, SET, everything};

/// How long calls with a result wait for the lock: so short that they find it stuck.
const LOCK_TIMEOUT: Duration = Duration::from_millis(20);

/// The lock timeout of calls without a result: they must not wait for it.
const NOT_WAITED_FOR: Duration = Duration::from_secs(20);

/// How long calls without a result may take: a hundred times the 10 ms that they should.
const BOUND: Duration = Duration::from_secs(1);

/// How long calls with a result may take: a hundred times the lock timeout.
pub const BOUND_WITH_RESULT: Duration = Duration::from_secs(2);

/// How much each of them takes of a rate.
const COST: u64 = 4;

/// Bits that say what a member complains about.
const SLOW: u64 = 1;
const FAILED: u64 = 2;

/// One thread of the crew.
struct Member {
    name: &'static str,
    run: fn(&Post<'_>),
}

const fn member(name: &'static str, run: fn(&Post<'_>)) -> Member {
    Member { name, run }
}

/// The first process makes calls that have a result, the second makes those that have none.
const WITH_RESULT: &[Member] = &[
    member("settle", settle),
    member("ask", ask),
    member("let a wait end", let_a_wait_end),
    member("cancel a reservation", cancel_a_reservation),
    member("renew", renew),
];
const WITHOUT_RESULT: &[Member] = &[
    member("release", release),
    member("drop", drop_a_permit),
    member("cancel a wait", cancel_a_wait),
    member("attach and detach", attach_and_detach),
    member("fill up", fill_up),
];

/// The number of threads.
pub const MEMBERS: usize = WITH_RESULT.len() + WITHOUT_RESULT.len();

/// The crew of one scene. Its processes are killed when this is dropped.
pub struct Crew<'a> {
    gate: &'a Gate,
    alive: Vec<Bystander>,
    condemned: Option<Bystander>,
}

impl<'a> Crew<'a> {
    /// Starts the processes and has them take what they will give back. `None` if they do not get that far.
    pub fn start(path: &Path, gate: &'a Gate, operation: Operation) -> Option<Self> {
        gate.reset();
        let start = |members: &'static [Member], first: usize, timeout: Duration| {
            Bystander::start(|| serve(path, gate, operation, members, first, timeout))
        };
        let alive = vec![
            start(WITH_RESULT, 0, LOCK_TIMEOUT),
            start(WITHOUT_RESULT, WITH_RESULT.len(), NOT_WAITED_FOR),
        ];
        let condemned = Bystander::start(|| {
            let segment = clock::options().0.open(path).expect("the segment");
            let set = segment.set(SET).expect("declared");
            let _held = take_something(&set, MEMBERS + 1);
            gate.arrive();
            gate.wait_for(Step::End);
        });
        let crew = Self {
            gate,
            alive,
            condemned: Some(condemned),
        };
        let is_ready = gate.all_arrive(MEMBERS + 1, Instant::now() + BOUND_WITH_RESULT * 5);
        gate.announce(Step::Prepare);
        (is_ready && crew.all_arrive_within(BOUND_WITH_RESULT * 5)).then_some(crew)
    }

    /// Has the members take the next step, and does not wait for them.
    pub fn announce(&self, step: Step) {
        self.gate.announce(step);
    }

    pub fn all_arrive_within(&self, time: Duration) -> bool {
        self.gate.all_arrive(MEMBERS, Instant::now() + time)
    }

    /// Lets one of them die with what it holds.
    pub fn lose_one(&mut self) {
        self.condemned = None;
    }

    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.alive.iter().map(Bystander::id)
    }

    /// What the members have to complain about.
    pub fn complaints(&self) -> Vec<String> {
        let members = WITH_RESULT.iter().chain(WITHOUT_RESULT).enumerate();
        members
            .filter_map(|(number, member)| {
                let bits = self.gate.complaints(number).load(Ordering::SeqCst);
                let what = match bits {
                    0 => return None,
                    SLOW => "took too long",
                    FAILED => "failed",
                    _ => "took too long and failed",
                };
                Some(format!("`{}` {what}", member.name))
            })
            .collect()
    }
}

fn serve(
    path: &Path,
    gate: &Gate,
    operation: Operation,
    members: &'static [Member],
    first: usize,
    timeout: Duration,
) {
    let (options, clock) = clock::options();
    let segment = options.lock_timeout(timeout).open(path);
    let segment = segment.expect("the segment");
    let set = segment.set(SET).expect("declared");
    std::thread::scope(|scope| {
        for (member, number) in members.iter().zip(first..) {
            let post = Post {
                path,
                gate,
                operation,
                set: &set,
                clock: clock.as_ref(),
                number,
            };
            scope.spawn(move || (member.run)(&post));
        }
    });
}

/// What a member knows.
struct Post<'a> {
    path: &'a Path,
    gate: &'a Gate,
    operation: Operation,
    set: &'a LimitSet,
    /// The clock, if it stands still.
    clock: Option<&'a VirtualClock>,
    number: usize,
}

fn take_something(set: &LimitSet, number: usize) -> Permit<'_> {
    let outcome = Subject::of_another(set, number).try_acquire(&everything(set, COST));
    outcome.expect("works").into_result().expect("there is room")
}

impl<'a> Post<'a> {
    fn admitted(&self) -> Permit<'a> {
        take_something(self.set, self.number)
    }

    /// Says that everything is prepared, and waits for the victim to be stopped.
    fn stand_by(&self) {
        self.stand_by_until_join();
        self.gate.arrive_and_wait_for(Step::Act);
    }

    fn stand_by_until_join(&self) {
        self.gate.arrive_and_wait_for(Step::Prepare);
        self.gate.arrive_and_wait_for(Step::Join);
    }

    /// The member has nothing more to do.
    fn is_done(&self) {
        self.gate.arrive_and_wait_for(Step::Repeat);
        self.has_repeated();
    }

    fn has_repeated(&self) {
        self.gate.arrive_and_wait_for(Step::End);
    }

    fn complain(&self, bit: u64, what: &str) {
        let before = self.gate.complaints(self.number).fetch_or(bit, Ordering::SeqCst);
        if before & bit == 0 && std::env::var_os("SHMLIMIT_PROGRESS").is_some() {
            eprintln!("{}: member {}: {what}", self.operation.name, self.number);
        }
    }

    fn timed<T>(&self, bound: Duration, call: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let answer = call();
        if started.elapsed() > bound {
            self.complain(SLOW, "took too long");
        }
        answer
    }

    /// Makes a call without a result, which must return soon whatever the lock does.
    fn without_result(&self, call: impl FnOnce()) {
        self.timed(BOUND, call);
    }

    /// As [`without_result`](Self::without_result), for calls that report what had been taken back before.
    fn never_stuck(&self, call: impl FnOnce() -> Result<(), Error>) {
        match self.timed(BOUND, call) {
            Ok(()) => {}
            Err(Error::Permit(PermitError::Reclaimed { .. })) if self.operation.has_leases_run_out => {}
            Err(error) => self.complain(FAILED, &error.to_string()),
        }
    }

    /// Makes a call with a result, which may find the lock stuck. If so, it is repeated with the same value when the
    /// victim goes on.
    fn with_result(&self, mut call: impl FnMut() -> Result<(), Error>) {
        let is_stuck = self.is_stuck(&mut call);
        self.gate.arrive_and_wait_for(Step::Repeat);
        if is_stuck {
            let deadline = Instant::now() + BOUND_WITH_RESULT;
            while self.is_stuck(&mut call) {
                if Instant::now() > deadline {
                    return self.complain(FAILED, "is stuck for good");
                }
            }
            self.gate.note_repeated();
        }
    }

    fn is_stuck(&self, call: &mut impl FnMut() -> Result<(), Error>) -> bool {
        match self.timed(BOUND_WITH_RESULT, call) {
            Ok(()) => false,
            Err(Error::Segment(SegmentError::LockStuck { .. })) => true,
            Err(error) => {
                self.complain(FAILED, &error.to_string());
                false
            }
        }
    }

    /// Whether the waiters are ahead of a call decides whether it is admitted, so what it is charged is counted
    /// separately.
    fn note_admission(&self, outcome: Outcome<'_>) {
        if outcome.is_admitted() {
            self.gate.note_admitted();
        }
    }

    /// A future that waits in the victim's queue, if there is one.
    fn future(&self, timeout: Duration) -> Option<Pin<Box<AcquireFuture<'a>>>> {
        if self.operation.waiters == 0 || self.operation.is_served {
            return None;
        }
        let request = everything(self.set, 1);
        let mut future = Box::pin(Subject::of(self.set).acquire_async(&request, timeout));
        let poll = look(&mut future);
        poll.is_pending().then_some(future)
    }
}

fn look<'a>(future: &mut Pin<Box<AcquireFuture<'a>>>) -> Poll<Result<Outcome<'a>, Error>> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

fn settle(post: &Post<'_>) {
    let mut permit = post.admitted();
    let usage: Vec<(LimitIndex, u64)> = post
        .set
        .limits()
        .filter_map(|name| Some((post.set.limit_index(name)?, 1)))
        .collect();
    post.stand_by();
    post.with_result(|| permit.settle(usage.iter().copied()).map(drop));
    drop(permit);
    post.has_repeated();
}

/// Holds nothing, and gives back what it gets.
fn ask(post: &Post<'_>) {
    let request = everything(post.set, 1);
    let subject = Subject::of_another(post.set, post.number);
    post.stand_by();
    post.with_result(|| {
        subject
            .try_acquire(&request)
            .map(|outcome| post.note_admission(outcome))
    });
    post.has_repeated();
}

/// Waits, with the time up when the victim is stopped. If the lock is stuck, the wait ends with an error, and the
/// ticket is given up.
fn let_a_wait_end(post: &Post<'_>) {
    post.stand_by_until_join();
    let mut future = post.future(Duration::from_nanos(1));
    post.gate.arrive_and_wait_for(Step::Act);
    if let Some(clock) = post.clock {
        clock.advance_to(clock.now() + Duration::from_nanos(1));
    }
    if let Some(future) = &mut future {
        match post.timed(BOUND_WITH_RESULT, || look(future)) {
            Poll::Ready(Ok(outcome)) => post.note_admission(outcome),
            Poll::Ready(Err(Error::Segment(SegmentError::LockStuck { .. }))) => {}
            Poll::Ready(Err(error)) => post.complain(FAILED, &error.to_string()),
            Poll::Pending => post.complain(FAILED, "waits on after its time"),
        }
    }
    drop(future);
    post.is_done();
}

fn cancel_a_reservation(post: &Post<'_>) {
    post.stand_by_until_join();
    let request = everything(post.set, 1);
    let takes_places = post.set.limit_index("in_flight").is_some();
    let mut reservation = None;
    if !post.set.is_keyed() && !takes_places && post.set.limit_index("tokens").is_some() {
        let outcome = request.reserve(Duration::from_secs(24 * 3600));
        if let Ok(ReserveOutcome::Reserved(reserved)) = outcome {
            reservation = Some(reserved);
        }
    }
    post.gate.arrive_and_wait_for(Step::Act);
    post.with_result(|| match &mut reservation {
        Some(reservation) => reservation.cancel().map(drop),
        None => Ok(()),
    });
    post.has_repeated();
}

fn release(post: &Post<'_>) {
    let mut permit = post.admitted();
    post.stand_by();
    post.never_stuck(|| permit.release());
    drop(permit);
    post.is_done();
}

fn drop_a_permit(post: &Post<'_>) {
    let permit = post.admitted();
    post.stand_by();
    post.without_result(|| drop(permit));
    post.is_done();
}

/// Renews, and gives back when the victim goes on. Renewing takes the lock only if the lease has run out.
fn renew(post: &Post<'_>) {
    let permit = post.admitted();
    post.stand_by();
    if post.operation.has_leases_run_out {
        post.with_result(|| match permit.heartbeat() {
            Err(Error::Permit(PermitError::Reclaimed { .. })) => Ok(()),
            other => other,
        });
    } else {
        post.never_stuck(|| permit.heartbeat());
        post.gate.arrive_and_wait_for(Step::Repeat);
    }
    drop(permit);
    post.has_repeated();
}

fn cancel_a_wait(post: &Post<'_>) {
    post.stand_by_until_join();
    let future = post.future(NOT_WAITED_FOR);
    post.gate.arrive_and_wait_for(Step::Act);
    post.without_result(|| drop(future));
    post.is_done();
}

fn attach_and_detach(post: &Post<'_>) {
    post.stand_by();
    post.without_result(|| {
        let segment = clock::options().0.lock_timeout(NOT_WAITED_FOR).open(post.path);
        let segment = segment.expect("the segment");
        let set = segment.set(SET).expect("declared");
        drop(segment.snapshot().expect("memory for a copy"));
        drop((set, segment));
    });
    post.is_done();
}

/// Takes what the others have left of the room, so that the victim finds what it would find alone.
fn fill_up(post: &Post<'_>) {
    post.gate.arrive_and_wait_for(Step::Prepare);
    let mut rest = None;
    if !post.set.is_keyed() {
        let segment = clock::options().0.open(post.path).expect("the segment");
        let snapshot = segment.snapshot().expect("memory for a copy");
        let mut request = everything(post.set, 0);
        for limit in &snapshot.sets[0].limits {
            let room = match limit.kind {
                Kind::Concurrency => PLACES,
                Kind::Rate | Kind::Calls => UNITS,
                _ => continue,
            };
            let Some(max) = limit.capacity else { continue };
            let taken = max.saturating_sub(limit.remaining);
            let left = room.saturating_sub(taken);
            request.set_cost(limit.name.as_str(), left).expect("declared");
        }
        let outcome = Subject::of(post.set).try_acquire(&request).expect("works");
        rest = Some(outcome.into_result().expect("there is room"));
    }
    post.gate.arrive_and_wait_for(Step::Join);
    post.gate.arrive_and_wait_for(Step::Act);
    post.without_result(|| drop(rest));
    post.is_done();
}
