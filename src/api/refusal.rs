//! Why limits refused a request, and their state.

use std::fmt;
use std::time::Duration;

use super::request_events::{RequestEventKind, RequestEvents};
use super::set::limit_set::LimitSet;
use crate::choices::Scope;
use crate::engine::{Decided, Decision, Details, NEVER, RefusalReason};
use crate::message::debug_is_message;
use crate::shm::probes;
use crate::units::milliseconds;

/// A request was refused, and nothing was taken.
///
/// A refusal is an ordinary value: it can be kept, sent to other threads, and returned from a function as its error.
/// It is a type of its own, so `downcast` tells it from an [`Error`](crate::Error). It keeps the segment attached
/// while it exists. Its answers are computed when they are asked for.
///
/// ```
/// # use std::time::Duration;
/// use shmlimit::{Declaration, Limit, LimitSet, Refusal, Segment, SetDeclaration};
///
/// fn send(mail: &LimitSet) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
///     let _permit = mail.request().try_acquire()?.into_result()?;
///     Ok(()) // sent
/// }
///
/// # let directory = tempfile::tempdir()?;
/// # let declaration = Declaration::new().add_set(SetDeclaration::new("mail")
/// #     .add_limit(Limit::calls("sent", 1, Duration::from_secs(60))));
/// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
/// let mail = segment.set("mail")?; // one a minute
/// assert!(send(&mail).is_ok());
/// let error = send(&mail).expect_err("the second of a minute");
/// let refusal: &Refusal = error.downcast_ref().expect("not a failure");
/// assert_eq!(refusal.binding(), Some("sent"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Refusal {
    set: LimitSet,
    details: Details,
}

debug_is_message!(Refusal);

// Below clippy's threshold for a large error, so functions can return it as their error without a box.
const _: () = assert!(size_of::<Refusal>() < 128);

impl Refusal {
    #[inline]
    pub(crate) fn new(set: &LimitSet, decision: Decision) -> Self {
        Self {
            set: set.clone(),
            details: decision.into_details(),
        }
    }

    /// Like [`new`](Self::new), but also reports the refusal to the observer, if there is one.
    #[inline]
    pub(crate) fn of(set: &LimitSet, decision: Decision, label: Option<&str>) -> Self {
        fire_probe(set, &decision);
        if set.shared().request_events.is_none() {
            // Built in the caller's place: moving it would take as long as deciding.
            return Self::new(set, decision);
        }
        Self::reported(set, decision, label)
    }

    #[cold]
    fn reported(set: &LimitSet, decision: Decision, label: Option<&str>) -> Self {
        let refusal = Self::new(set, decision);
        if let Some(events) = &set.shared().request_events {
            events.denied(set.position(), &refusal, label);
        }
        refusal
    }

    /// The set that refused.
    pub fn set(&self) -> &LimitSet {
        &self.set
    }

    /// The binding limit. `None` if every [hold](crate::SetDeclaration::holds) of the set was taken, the table of
    /// keys had no row for a new key, or the set or the key was [throttled](crate::Permit::throttled).
    ///
    /// If several limits refused, it is one that time alone does not replenish, or else the one that takes the longest.
    pub fn binding(&self) -> Option<&str> {
        binding(&self.set, &self.details)
    }

    /// Why the request was refused.
    pub fn reason(&self) -> RefusalReason {
        self.set.engine_set().refusal_reason(&self.details)
    }

    /// How long until the request would be admitted if no other process took anything: never earlier, and always at
    /// exactly that instant, with two exceptions. `None` if time alone does not help.
    ///
    /// Behind others in the queue it is a lower bound: neither the first waiter nor the first 16 waiters followed by
    /// this request can be admitted earlier, provided they stay and give nothing back. It takes longer if the queue
    /// is longer, or if the waiters hold what they take while they work. A waiter that has died stays in the queue
    /// until its death is noticed.
    ///
    /// With [credit](crate::Limit::credit) of an algorithm that does not refund, it is an upper bound if this process
    /// has part of a batch left, but less than the request needs: the remainder is not counted, because it may be
    /// reclaimed and lost in the meantime.
    ///
    /// For a new key that found no row in the table, if the set was declared to evict the least used: the time until
    /// the first limited key among its candidate rows is no longer limited.
    pub fn retry_after(&self) -> Option<Duration> {
        retry_after(&self.set, &self.details)
    }

    /// The answer of each requested limit.
    pub fn verdicts(&self) -> impl Iterator<Item = Verdict<'_>> {
        self.details
            .iter()
            .map(|(index, decided)| Verdict::refused(&self.set, &self.details, index, decided))
    }
}

/// The limit that bound a refused request. See [`Refusal::binding`].
pub(crate) fn binding<'a>(set: &'a LimitSet, details: &Details) -> Option<&'a str> {
    let (index, _) = details.binding()?;
    name(set, index)
}

/// Fires the probe for tracers of the host.
#[inline(always)]
pub(crate) fn fire_probe(set: &LimitSet, details: &Details) {
    probes::refused::fire(|| {
        let limit = binding(set, details).unwrap_or_default();
        let reason = set.engine_set().refusal_reason(details).as_str();
        let nanos = |wait: Duration| i64::try_from(wait.as_nanos()).unwrap_or(i64::MAX);
        let retry_after = retry_after(set, details).map_or(-1, nanos);
        let path = set.shared().engine.path();
        (path, set.name(), limit, reason, retry_after)
    });
}

/// How long a refused request would have to wait. See [`Refusal::retry_after`].
pub(crate) fn retry_after(set: &LimitSet, details: &Details) -> Option<Duration> {
    let wait = match details.binding() {
        Some((_, NEVER)) => None,
        Some((_, wait)) => Some(wait),
        None => details.cause().ends_in(),
    };
    wait.map(|wait| wait_of_callers(set, wait))
}

/// How long callers should wait for an instant that was computed from one reading of the clock and will be checked
/// against another; zero if it has passed.
pub(crate) fn wait_of_callers(set: &LimitSet, wait: u64) -> Duration {
    Duration::from_nanos(set.shared().engine.wait_by_any_reading(wait))
}

/// A refusal is not a failure: see [`Error`](crate::Error) for those.
impl std::error::Error for Refusal {}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (set, engine_set) = (self.set.name(), self.set.engine_set());
        match (self.reason(), self.binding()) {
            (RefusalReason::Throttled, _) if engine_set.has_overall() => {
                write!(f, "set `{set}` or this key of it is throttled")?;
            }
            (RefusalReason::Throttled, _) if engine_set.is_keyed() => {
                write!(f, "this key of set `{set}` is throttled")?;
            }
            (RefusalReason::Throttled, _) => write!(f, "set `{set}` is throttled")?,
            (RefusalReason::QueueFull, _) => write!(f, "the queue of set `{set}` is full")?,
            (_, Some(limit)) => write!(f, "set `{set}` refused by limit `{limit}`")?,
            (RefusalReason::HoldsFull, _) => write!(
                f,
                "set `{set}` refused: as many permits are out as it has holds for"
            )?,
            (_, None) => write!(f, "set `{set}` refused: its table of keys is full")?,
        }
        if let Some(wait) = self.retry_after() {
            write!(f, ", retry after {:?}", Duration::from_millis(milliseconds(wait)))?;
        }
        let (size, use_of_it) = match self.reason() {
            RefusalReason::QueueFull => ("waiters", "for more requests to wait at once"),
            RefusalReason::HoldsFull => ("holds", "for more permits to be out at once"),
            RefusalReason::TableFull => ("max_keys", "for more keys"),
            _ => return Ok(()),
        };
        write!(f, "; declare more `{size}` {use_of_it}")
    }
}

/// The answer of one limit, and its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict<'a> {
    /// The limit's name.
    pub limit: &'a str,
    /// The key's [tier](crate::Tier): `default` if the set has no tiers or the key is in none.
    pub tier: &'a str,
    /// Whether the key has the limit for itself, or [all keys](crate::Limit::scope) have it together.
    pub scope: Scope,
    /// Whether the limit admits the cost.
    pub admitted: bool,
    /// Units that could be taken now. What this request has just taken is already subtracted.
    pub remaining: u64,
    /// For a [peek](crate::Request::peek): units held by dead processes, or for longer than their lease. They count as
    /// free, because a request that needs them gets them. Zero in the answer to a request itself.
    pub of_dead: u64,
    /// Zero if admitted. Otherwise how long until the cost would be admitted if no other process took anything, or
    /// `None` if time alone does not help.
    pub retry_after: Option<Duration>,
    /// How long until the limit is completely replenished, if no process takes anything.
    pub reset_after: Duration,
    /// Units that could be taken at once if no process had taken anything: the maximum of `remaining`. For an
    /// [adaptive](crate::Limit::adaptive) limit, its current capacity.
    pub burst: u64,
}

impl<'a> Verdict<'a> {
    /// The answer of a limit to a request that was refused, or that only peeked.
    pub(crate) fn refused(set: &'a LimitSet, details: &Details, index: usize, decided: &Decided) -> Self {
        let verdict = Self::admitted(set, details, index, decided);
        match decided.wait() {
            0 => verdict,
            NEVER => Self {
                admitted: false,
                retry_after: None,
                ..verdict
            },
            wait => Self {
                admitted: false,
                retry_after: Some(wait_of_callers(set, wait)),
                ..verdict
            },
        }
    }

    /// The answer of a limit to an admitted request.
    pub(crate) fn admitted(set: &'a LimitSet, details: &Details, index: usize, decided: &Decided) -> Self {
        let stood = set.engine_set().standing(details, index, decided.mark);
        let (standing, burst) = stood.unzip();
        Self {
            limit: name(set, index).unwrap_or_default(),
            tier: set.tier_name(details.definition.tier),
            scope: set.engine_set().scope(index),
            admitted: true,
            remaining: standing.map_or(0, |standing| standing.remaining),
            retry_after: Some(Duration::ZERO),
            reset_after: Duration::from_nanos(standing.map_or(0, |standing| standing.reset_after)),
            of_dead: 0,
            burst: burst.unwrap_or(0),
        }
    }
}

fn name(set: &LimitSet, index: usize) -> Option<&str> {
    set.engine_set()
        .limits
        .get(index)
        .map(|limit| limit.name.as_str())
}

impl RequestEvents {
    #[cold]
    pub(crate) fn denied(&self, set: usize, refusal: &Refusal, label: Option<&str>) {
        self.tell(set, 0, refusal.set().name(), label, || RequestEventKind::Denied {
            limit: refusal.binding(),
            reason: refusal.reason(),
            retry_after: refusal.retry_after(),
        });
    }
}
