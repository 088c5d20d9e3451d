//! One attempt to decide a request, and its answer.

/// The answer to one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// As wide as a pointer to an error, so that either is returned in registers.
#[repr(usize)]
pub(in crate::engine) enum Answer {
    Admitted,
    Refused,
    /// It would be a refusal, but something that is held is in the way, and it is time to see whether all holders are
    /// alive. Not counted.
    RetryAfterReclaim,
    /// A cost is above what its limit can ever admit, or the key cannot have a capacity that the request names.
    Impossible,
    /// It would be a refusal, but the request can wait. Not counted.
    MustWait,
    /// Too little is leased, but the store is about to answer. Not counted.
    AwaitsLease,
}

/// What to do with a request that the limits do not admit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Attempt {
    /// Refuse it, unless it is time to look for dead holders first.
    First,
    /// Refuse it.
    Last,
    /// Refuse it. It has waited in vain with this ticket, which is still in the queue.
    Late(u64),
    /// Let it wait, unless it is time to look for dead holders first.
    BeforeWaiting,
    /// Let it wait.
    Waiting,
}
