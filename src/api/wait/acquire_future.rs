//! Waiting in the queue as a future.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::background_worker;
use super::waiters::Waiter;
use crate::api::permit::Outcome;
use crate::api::request::Request;
use crate::api::set::limit_set::LimitSet;
use crate::api::set::set_reference::SetReference;
use crate::engine::{
    Acquired, Costs, Deadline, Decision, KeyIdentity, PollResult, SegmentEngine, Target, WaitAs, WaitBy,
    WaitStart,
};
use crate::error::{Error, SegmentError};
use crate::shm::wake::futex::FutexValue;

/// A request that waits in the queue. See [`Request::acquire_async`].
///
/// Dropping it before it completes leaves the queue. Anything granted in the meantime is given back, if its
/// algorithm still refunds it.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct AcquireFuture<'a> {
    set: SetReference<'a>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Asked(Result<Box<Asked>, Error>),
    Completed,
}

/// The request, and how far it has come.
#[derive(Debug)]
struct Asked {
    costs: Costs,
    key: Option<KeyIdentity>,
    decision: Decision,
    timeout: Option<Duration>,
    deadline: Deadline,
    /// The store's latest answer before the wait began, if the request waits only until the next answer.
    answer: Option<FutexValue>,
    /// Set while it waits with a ticket.
    waiter: Option<Arc<Waiter>>,
    /// When the wait for the first ticket began, by [`SegmentEngine::wait_nanos`].
    began: Option<u64>,
}

impl<'a> AcquireFuture<'a> {
    pub(crate) fn new(request: &Request<'a>, timeout: Option<Duration>) -> Self {
        let asked = Asked::new(request, timeout).map(Box::new);
        Self {
            set: SetReference::Borrowed(request.set()),
            stage: Stage::Asked(asked),
        }
    }

    /// The same future, but neither it nor its permit borrows anything: for spawned tasks. Each keeps the segment
    /// attached on its own.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// # let declaration = Declaration::new().add_set(
    /// #     SetDeclaration::new("pool").add_limit(Limit::concurrency("connections", 2)));
    /// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// let pool = segment.set("pool")?;
    /// let waiting = pool.request().acquire_async(Duration::from_secs(30)).into_owned();
    /// let task = tokio::spawn(async move {
    ///     let permit = waiting.await?.into_result()?;
    ///     // talk to the database
    ///     drop(permit);
    ///     Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// });
    /// # task.await.expect("no panic").expect("a connection");
    /// # Ok::<(), shmlimit::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn into_owned(mut self) -> AcquireFuture<'static> {
        AcquireFuture {
            set: self.set.to_owned(),
            // The original is left with nothing to give up when dropped.
            stage: std::mem::replace(&mut self.stage, Stage::Completed),
        }
    }
}

impl<'a> Future for AcquireFuture<'a> {
    type Output = Result<Outcome<'a>, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let set = &this.set;
        let answer = match &mut this.stage {
            Stage::Asked(Ok(asked)) => match asked.poll(set, context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(answer) => answer,
            },
            Stage::Asked(Err(_)) => Ok(false),
            Stage::Completed => {
                return Poll::Ready(Err(Error::Segment(SegmentError::Internal {
                    set: set.name().to_owned(),
                    what: "a future was polled after it had completed",
                })));
            }
        };
        let completed = std::mem::replace(&mut this.stage, Stage::Completed);
        Poll::Ready(match (answer, completed) {
            (Ok(is_admitted), Stage::Asked(Ok(asked))) => {
                let label = asked.costs.label.as_deref();
                let acquired = Acquired::after(asked.began, set.shared().engine.wait_nanos(), is_admitted);
                Ok(set.outcome_of(acquired, asked.decision, label))
            }
            (_, Stage::Asked(Err(error))) | (Err(error), _) => Err(error),
            (Ok(_), Stage::Completed) => Err(Error::Segment(SegmentError::Internal {
                set: set.name().to_owned(),
                what: "a future completed twice",
            })),
        })
    }
}

impl Drop for AcquireFuture<'_> {
    fn drop(&mut self) {
        if let Stage::Asked(Ok(asked)) = &mut self.stage
            && let Some(waiter) = asked.waiter.take()
        {
            background_worker::withdraw(&waiter);
            if waiter.is_own()
                && let Some(waiting) = waiter.end()
            {
                let engine = &self.set.shared().engine;
                engine.cancel(self.set.engine_set().shard(waiting.queue().0), &waiting);
            }
        }
    }
}

impl Asked {
    fn new(request: &Request<'_>, timeout: Option<Duration>) -> Result<Self, Error> {
        let (set, target, costs) = (request.set(), request.target()?, request.costs()?);
        Ok(Self {
            costs: costs.clone(),
            key: target.key.copied(),
            decision: Decision::pending(costs, set.engine_set().notes_beside),
            timeout,
            deadline: set.shared().engine.deadline_after(timeout),
            answer: None,
            waiter: None,
            began: None,
        })
    }

    /// Whether everything was taken, as soon as that is decided.
    fn poll(&mut self, set: &LimitSet, context: &mut Context<'_>) -> Poll<Result<bool, Error>> {
        let engine = &set.shared().engine;
        loop {
            let Some(waiter) = &self.waiter else {
                match self.begin(set, engine) {
                    Ok(Some(is_admitted)) => return Poll::Ready(Ok(is_admitted)),
                    // Look once: a grant made before the background thread started to sleep for this ticket woke
                    // nobody.
                    Ok(None) => continue,
                    Err(error) => return Poll::Ready(Err(error)),
                }
            };
            if !waiter.is_own() {
                // Either this is a forked child and the ticket is the parent's, or this process has lost its slot and
                // the ticket with it.
                background_worker::withdraw(waiter);
                self.waiter = None;
                continue;
            }
            let mut look_by = None;
            let polled = waiter.with(context.waker(), |waiting, was_woken| {
                let now = crate::shm::time::clock::boot_nanos();
                let shard = set.engine_set().shard(waiting.queue().0);
                let target = Target {
                    set: set.engine_set(),
                    key: self.key.as_ref(),
                };
                let is_answered = was_woken
                    && self.answer.is_some()
                    && engine.cold_wait(target, &self.costs).is_ok_and(|left| left == 0);
                let is_late = is_answered || now >= self.deadline.on_boot_clock();
                // Once woken, the future looks in any case: the thread may have found an error that the future must
                // report.
                if !is_late && !was_woken && !engine.needs_look(shard, waiting, now) {
                    return Ok(PollResult::Waiting);
                }
                let polled = engine.look(target, &self.costs, &mut self.decision, waiting, is_late);
                look_by = Some(waiting.next_look());
                polled
            });
            match polled {
                Some(Ok(PollResult::Waiting)) => {
                    if let Some(instant) = look_by {
                        background_worker::look_by(waiter, instant);
                    }
                    return Poll::Pending;
                }
                Some(Ok(PollResult::Admitted)) => return self.complete(Ok(true)),
                Some(Ok(PollResult::Refused)) => return self.complete(Ok(false)),
                Some(Err(error)) => return self.complete(Err(Error::from(error))),
                Some(Ok(PollResult::Lost)) | None => {
                    let _ = self.complete(Ok(false));
                }
            }
        }
    }

    /// The first step: either a decision, or a ticket that the background thread sleeps for.
    fn begin(&mut self, set: &LimitSet, engine: &SegmentEngine) -> Result<Option<bool>, Error> {
        let target = Target {
            set: set.engine_set(),
            key: self.key.as_ref(),
        };
        if self.timeout == Some(Duration::ZERO) {
            // Read first, so that an answer that comes after the look is not missed.
            self.answer = engine.latest_answer();
            let cold_wait = engine.cold_wait(target, &self.costs)?;
            if cold_wait == 0 {
                let admitted = engine.try_acquire(target, &self.costs, &mut self.decision)?;
                set.see_to_batches();
                return Ok(Some(admitted));
            }
            // A poll must not block, so the request waits in the queue until the store has answered.
            let cold_wait = Duration::from_nanos(cold_wait);
            self.timeout = Some(cold_wait);
            self.deadline = engine.deadline_after(self.timeout);
        }
        let how = WaitAs {
            wait_by: WaitBy::ProcessFutex,
            deadline: self.deadline,
        };
        let started = engine.begin_waiting(target, &self.costs, &mut self.decision, how)?;
        set.see_to_batches();
        let waiting = match started {
            WaitStart::Decided(is_admitted) => return Ok(Some(is_admitted)),
            WaitStart::Waiting(waiting) => waiting,
        };
        self.began.get_or_insert(waiting.began());
        // Stored first, so that whatever happens next, the ticket leaves the queue with this future.
        let waiter = self.waiter.insert(Waiter::new(set, waiting, self.answer));
        let attended = background_worker::attend(waiter, waiting.next_look());
        if let Err(error) = attended {
            self.waiter = None;
            engine.cancel(set.engine_set().shard(waiting.queue().0), &waiting);
            return Err(error);
        }
        Ok(None)
    }

    fn complete(&mut self, answer: Result<bool, Error>) -> Poll<Result<bool, Error>> {
        if let Some(waiter) = self.waiter.take() {
            background_worker::withdraw(&waiter);
            waiter.end();
        }
        Poll::Ready(answer)
    }
}
