//! One attempt to decide a request, and its answer.

/// What one look at the set came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// As wide as a pointer to an error, so that an answer or an error comes back in registers.
#[repr(usize)]
pub(in crate::engine) enum Answer {
    Admitted,
    Refused,
    /// What is held would have to be given back, and it is time to see whether all holders live. Not counted as a
    /// refusal yet.
    RetryAfterReclaim,
    /// A cost is above what a limit can ever admit.
    Impossible,
    /// It would be a refusal, but the request can wait. Not counted.
    MustWait,
}

/// What becomes of a request that the limits do not admit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Attempt {
    /// It is refused, unless it is time to look for dead holders first.
    First,
    /// It is refused.
    Last,
    /// It is refused, and has waited in vain with that ticket, which is still in the queue.
    Late(u64),
    /// It waits, unless it is time to look for dead holders first.
    BeforeWaiting,
    /// It waits.
    Waiting,
}
