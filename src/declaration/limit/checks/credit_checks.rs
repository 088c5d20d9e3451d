//! What credit requires of its limit and its set.

use crate::choices::Kind;
use crate::declaration::limit::credit::Credit;
use crate::declaration::limit::{Algorithm, Limit};
use crate::declaration::location::{Location, check_range};
use crate::declaration::set::SetDeclaration;
use crate::engine::terms::plan::MAX_BATCH;
use crate::error::DeclarationError;

impl SetDeclaration {
    /// Requires that batches of the declared credit can be drawn on their own. Each limit has been checked.
    pub(in crate::declaration) fn check_credit(&self, place: &Location<'_>) -> Result<(), DeclarationError> {
        let Some(limit) = self.limits.iter().find(|limit| limit.credit.is_some()) else {
            return Ok(());
        };
        let place = Location {
            limit: Some(&limit.name),
            ..*place
        };
        let misplaced = |advice: &str| Err(limit.misplaced(&place, "credit", advice));
        if self.limits.len() > 1 {
            return misplaced(
                "a set with credit has one limit, because a request of several is decided in one step under the lock; \
                 remove it, or declare the limit in a set of its own",
            );
        }
        if self.keyed.is_some() && limit.credit.as_ref().is_some_and(Credit::is_auto) {
            return misplaced(
                "automatic batches need a limit that all requests share, and a keyed set has one for each key; declare the \
                 size of batches, such as credit = { batch = 10 }, or a set without keys",
            );
        }
        if self.shadow == Some(true) || limit.shadow == Some(true) {
            return misplaced(
                "a limit in shadow refuses nothing, so there is nothing to draw in advance; remove it, or the shadow",
            );
        }
        Ok(())
    }
}

impl Limit {
    /// Lets each process draw units of a calls or rate limit in batches, and admit requests from its batch without
    /// the lock. `check`, `try_acquire` and `acquire` do so on their own; there is nothing else to call.
    ///
    /// - **Size.** Declared ([`Credit::batch`]) or automatic ([`Credit::auto`]): remaining / (16 x processes), with what
    ///   remains, and the number of processes that have a batch of the limit, as they are when the batch is drawn.
    /// - **Bound.** In any window at most what [`bound`](Self::bound) says without credit, plus batch - 1 for each
    ///   process (in a keyed set, for each process and key). With [`window_coupled`](Credit::window_coupled) no
    ///   window sees more than the capacity. Automatic batches of *n* processes together are at most
    ///   burst / 16 x (1 + 1/2 + ... + 1/*n*): a sixteenth of the burst for one process, less than three tenths for
    ///   64, less than four for 256.
    /// - **Which requests.** Those that cost at least 1 and less than a batch. If the size is automatic, near the
    ///   limit some of them are charged to the limit itself too, when nothing would be left of a batch. All others,
    ///   as well as [`reserve`](crate::Request::reserve) and [`check_many`](crate::Request::check_many), are
    ///   charged to the limit itself.
    /// - **One batch for each process and key**, shared by all its handles and threads. Two copies of the library in
    ///   one process count as two processes, and a forked child draws a batch of its own.
    /// - **The queue is not overtaken.** Before a request waits, it takes back the batches of all processes, even of
    ///   stopped ones, and no process draws another while a request waits.
    /// - **A request that needs more than is left of a batch** gives the rest back and draws again, if unspent units
    ///   come back; otherwise the rest is spent along with it. A refusal says how long it takes until the limit admits
    ///   all of the request.
    /// - **Unspent units come back** for GCRA, token bucket and leaky bucket, unless the limit says
    ///   [`refund(false)`](Self::refund), except for what time has replenished: when the process has not used its
    ///   batch for one to two seconds, when it closes its last handle, and when it dies; the last counts as
    ///   [`reclaimed`](crate::snapshot::LimitCounts::reclaimed). For windows they stay charged.
    /// - **A permit that is settled** with less than it took gets back what any permit does, if unspent units come
    ///   back: what time has not replenished since the batch was drawn. Up to batch - 1 of it goes into that batch,
    ///   if the process still has it; the limit gets the rest. Anything beyond what it took is charged to the limit.
    /// - **A [reset](crate::LimitSet::reset)** takes the batches away, and a [change](crate::Segment::apply) ends
    ///   them: automatic ones are taken back at once; others come back when their process asks again or leaves them
    ///   unused. While a process has batches, it notices a [removal](crate::SegmentError::Removed) of the segment
    ///   within a second or two.
    /// - **Counters.** `taken` counts what was drawn, `refunded` what was given back, `admitted` the requests.
    ///   `admitted` lags behind by the requests admitted from each batch since it was drawn, fewer than a batch for
    ///   each, until the next draw or return. `near` is counted when a batch is drawn, and a verdict says what
    ///   remained then.
    /// - **Memory.** A process keeps batches of at most 2,048 keys per set, in 256 KiB; beyond that it gives back
    ///   those that it drew first. Each batch takes a [hold](crate::SetDeclaration::holds), and its key keeps its
    ///   row; if no hold is free, the request is charged to the limit itself.
    ///
    /// Only for the single limit of a set without [tiers](SetDeclaration::add_tier), [`shadow`](Self::shadow) or
    /// [`prefix`](Self::prefix). The size of batches can be changed in a live segment, including to automatic and back.
    pub fn credit(mut self, credit: Credit) -> Self {
        self.credit = Some(credit);
        self
    }

    /// Requires that batches can be drawn from the limit.
    pub(in crate::declaration) fn check_credit(&self, place: &Location<'_>) -> Result<(), DeclarationError> {
        let Some(credit) = &self.credit else {
            return Ok(());
        };
        let demand = |holds: bool, advice: &str| {
            let misplaced = || self.misplaced(place, "credit", advice);
            holds.then_some(()).ok_or_else(misplaced)
        };
        demand(
            matches!(self.kind, Kind::Calls | Kind::Rate),
            "only calls and rate limits can be drawn in advance; remove it, or declare kind = \"calls\"",
        )?;
        demand(
            !self.capacity.is_unlimited(),
            "what is unlimited needs no batches; remove it",
        )?;
        demand(
            self.prefix.is_none(),
            "a batch is for one key, not for its networks; remove it, or `prefix`",
        )?;
        demand(
            credit.window_coupled != Some(true) || self.effective_algorithm() == Some(Algorithm::FixedWindow),
            "only a fixed window has windows that a batch can end with; remove `window_coupled`, or declare algorithm \
             = \"fixed_window\"",
        )?;
        let Some(batch) = credit.batch else {
            demand(
                self.effective_algorithm().is_some_and(Algorithm::keeps_backlog),
                "automatic batches need a limit whose units come back bit by bit, not window by window; declare the size \
                 of batches, such as credit = { batch = 10 }, or algorithm = \"gcra\", \"token_bucket\" or \"leaky_bucket\"",
            )?;
            return demand(
                credit.window_coupled.is_none(),
                "automatic batches are for limits without windows; remove `window_coupled`",
            );
        };
        check_range(|| place.field("credit / batch"), batch, 1, MAX_BATCH)
    }
}
