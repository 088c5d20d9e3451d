//! Charging now for later use.

use std::time::Duration;

use super::Request;
use crate::api::permit::Permit;
use crate::api::refusal::Refusal;
use crate::engine::{Decision, Reserved};
use crate::error::Error;
use crate::units::nanos_from_duration;

/// The answer to [`Request::reserve`]. A refusal is not an error.
// `Reserved` is the usual variant, and boxing it would cost an allocation.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
#[must_use]
pub enum ReserveOutcome<'a> {
    /// Everything was charged.
    Reserved(Reservation<'a>),
    /// Nothing was changed.
    Refused(Refusal),
}

impl<'a> ReserveOutcome<'a> {
    /// The reservation, or the refusal as the error of a `Result`, so that `?` returns it.
    ///
    /// # Errors
    ///
    /// The refusal.
    pub fn into_result(self) -> Result<Reservation<'a>, Refusal> {
        match self {
            Self::Reserved(reservation) => Ok(reservation),
            Self::Refused(refusal) => Err(refusal),
        }
    }
}

/// A cost that has been charged and may be used after [`delay`](Self::delay). Dropping the reservation keeps the
/// charge.
#[derive(Debug)]
#[must_use = "what was reserved stays charged, whether it is used or not"]
pub struct Reservation<'a> {
    permit: Permit<'a>,
    delay: Duration,
    /// By [`SegmentEngine::wait_nanos`](crate::engine::SegmentEngine::wait_nanos).
    due: u64,
}

impl<'a> Reservation<'a> {
    /// How long to wait before use, counted from the time of the reservation. Zero if it may be used at once.
    pub fn delay(&self) -> Duration {
        self.delay
    }

    /// How much of the delay is left.
    pub fn remaining_delay(&self) -> Duration {
        Duration::from_nanos(self.due.saturating_sub(self.now()))
    }

    /// Gives back whatever its algorithm still refunds of what was reserved (see [`Permit::settle`]). Returns false,
    /// and changes nothing, if it came too late: a reservation counts as used once its delay is over.
    ///
    /// If one limit of several made the reservation wait, the others were charged as of the same instant. Their cost
    /// comes back, but they are not free again before that instant.
    ///
    /// # Errors
    ///
    /// See [`Permit::settle`]; as there, it can be retried.
    pub fn cancel(&mut self) -> Result<bool, Error> {
        if self.now() >= self.due {
            return Ok(false);
        }
        self.permit.cancel()?;
        Ok(true)
    }

    fn now(&self) -> u64 {
        self.permit.set().shared().engine.wait_nanos()
    }

    /// The permit, to settle once the actual usage is known.
    pub fn into_permit(self) -> Permit<'a> {
        self.permit
    }
}

impl<'a> Request<'a> {
    /// Charges everything that the request names now, if all of it can be had within `max_delay`, and says how long
    /// to wait before using it: for callers that do the waiting or scheduling themselves.
    ///
    /// Meant for rate and calls limits. Algorithms that count in windows (`fixed_window`, `sliding_window`,
    /// `sliding_window_counter`) cannot charge a window that has not begun: with one of them in the request, it
    /// succeeds only if the request can be met at once, and is refused otherwise. Waiters in the queue are not
    /// overtaken.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Limit, ReserveOutcome, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// # let declaration = Declaration::new().add_set(SetDeclaration::new("mail")
    /// #     .add_limit(Limit::calls("sent", 1, Duration::from_secs(1))));
    /// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
    /// let mail = segment.set("mail")?;
    /// for second in 0..3 {
    ///     match mail.request().reserve(Duration::from_secs(60))? {
    ///         ReserveOutcome::Reserved(reservation) => assert!(reservation.delay().as_secs() <= second),
    ///         ReserveOutcome::Refused(refusal) => println!("more than a minute: {refusal}"),
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestError::NotReservable`](crate::RequestError::NotReservable) if the request takes from a concurrency
    /// limit or the set has a budget, and the errors of [`try_acquire`](Self::try_acquire).
    pub fn reserve(&self, max_delay: Duration) -> Result<ReserveOutcome<'a>, Error> {
        let (set, target, costs) = (self.set, self.target()?, self.costs()?);
        let mut decision = Decision::pending(costs, set.engine_set().notes_beside);
        let max = nanos_from_duration(max_delay).unwrap_or(u64::MAX);
        let engine = &set.shared().engine;
        Ok(match engine.reserve(target, costs, &mut decision, max)? {
            Reserved::After(delay) => ReserveOutcome::Reserved(Reservation {
                permit: Permit::new(self.set, decision),
                delay: Duration::from_nanos(delay),
                due: engine.wait_nanos().saturating_add(delay),
            }),
            Reserved::Refused => ReserveOutcome::Refused(Refusal::of(set, decision, self.label_text())),
        })
    }
}
