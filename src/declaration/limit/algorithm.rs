//! The algorithms of calls and rate limits.

use crate::words::words;

/// How a calls or rate limit decides. `gcra` by default.
///
/// | what is limited | which one | why |
/// |---|---|---|
/// | calls to a provider that counts a sliding window ("10 in any 2 seconds") | [`SlidingWindow`](Self::SlidingWindow) | it never admits more than the capacity in any window |
/// | the same, with too many calls to log each (beyond 65,536 in a window), or with so many keys that 2 KiB for each [is too much](crate::Declaration::memory) | [`Gcra`](Self::Gcra) with a small burst, and capacity + burst - 1 within what the provider counts | two words of state, and you declare what passes at once |
/// | calls to a provider that has a token bucket, or says "requests per minute, with bursts" | [`TokenBucket`](Self::TokenBucket) with its numbers | it is the same rule |
/// | a server of your own | [`Gcra`](Self::Gcra) with a burst that the server can take at once; a concurrency limit beside it | cheap, smooth, and [`retry_after`](crate::Verdict::retry_after) is exact |
/// | a daily quota, counted the way it is billed | [`FixedWindow`](Self::FixedWindow) with [`Window::Day`](crate::Window::Day) and its [time zone](crate::Limit::time_zone) | it starts again at midnight, as the bill does |
/// | many keys with large capacities, where a rough count will do | [`SlidingWindowCounter`](Self::SlidingWindowCounter) | its state does not grow with the capacity |
///
/// [`Gcra`](Self::Gcra), [`TokenBucket`](Self::TokenBucket) and [`LeakyBucket`](Self::LeakyBucket) are one rule with
/// one state, and admit the same for the same capacity, window and burst. Each name matches what its users expect:
///
/// | name | what the parameters are called elsewhere |
/// |---|---|
/// | [`Gcra`](Self::Gcra) | a rate, and a burst tolerance |
/// | [`TokenBucket`](Self::TokenBucket) | tokens that are refilled at a rate, up to the size of the bucket |
/// | [`LeakyBucket`](Self::LeakyBucket) | a bucket that drains at a rate, and its size: [`Limit::leaky_bucket`](crate::Limit::leaky_bucket) takes these |
///
/// So a live limit can be [changed](crate::Segment::apply) from one of these to another and keeps what was used.
///
/// # What comes back
///
/// What a request reserved and did not use comes back when it is [settled](crate::Permit::settle) or
/// [cancelled](crate::Reservation::cancel), unless the limit says [`refund(false)`](crate::Limit::refund):
///
/// | algorithm | comes back |
/// |---|---|
/// | [`Gcra`](Self::Gcra), [`TokenBucket`](Self::TokenBucket), [`LeakyBucket`](Self::LeakyBucket) | except for what time has replenished since |
/// | [`FixedWindow`](Self::FixedWindow), including calendar windows | until the window in which it was charged ends |
/// | [`SlidingWindow`](Self::SlidingWindow) | for one window after it was charged, if at most a [few dozen](crate::Limit::entries) charges are remembered before it, or after it; otherwise nothing |
/// | [`SlidingWindowCounter`](Self::SlidingWindowCounter) | while the sub-window in which it was charged still counts; from the oldest, only the share that counts |
///
/// So a rate with a [unit](crate::Limit::unit) in a calendar window is a hard budget for money: reserve the most that a call
/// may cost, and settle what it did cost.
///
/// ```
/// # use shmlimit::{Algorithm, Declaration, Limit, Segment, SetDeclaration, Window};
/// # let directory = tempfile::tempdir()?;
/// let dollars = Limit::rate("dollars", "20.00", Window::Day).unit("0.01").algorithm(Algorithm::FixedWindow);
/// # let declaration = Declaration::new().add_set(SetDeclaration::new("model").add_limit(dollars));
/// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
/// let model = segment.set("model")?;
/// let at_most = model.request().with("dollars", 1_500)?; // in cents
/// let mut first = at_most.try_permit()?;
/// assert!(!at_most.try_acquire()?.is_admitted(), "more than 20 dollars might be spent");
/// first.settle([("dollars", 225)])?;
/// assert!(at_most.try_acquire()?.is_admitted());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # What is admitted
///
/// [`Limit::bound`](crate::Limit::bound) gives the most that each admits in any stretch of time as long as one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Theoretical arrival time: capacity per window, replenished continuously, up to the burst at once. Admits at most
    /// capacity + burst - 1 in any window.
    #[default]
    Gcra,
    /// A bucket that refills continuously, up to the burst. Admits at most capacity + burst - 1 in any window.
    TokenBucket,
    /// A bucket that drains continuously and refuses what would overflow it. Admits at most capacity + burst - 1 in any
    /// window.
    LeakyBucket,
    /// A counter per window. Twice the capacity may pass across a boundary.
    FixedWindow,
    /// A log of what was taken. At most the capacity in any window. With more requests in a window than the log has
    /// [entries](crate::Limit::entries), units come back late, by up to a 1024th of the window, or a 64th for a key.
    SlidingWindow,
    /// Sub-windows, the oldest weighted by the share of it that remains: cheap at any capacity. They begin at
    /// multiples of their length since the Unix epoch, by the wall clock at the creation of the segment. Admits at most
    /// 2 x capacity - 1 in any window, and the capacity in any stretch shorter by a sub-window. `retry_after` may
    /// exceed the window by up to one sub-window, depending on where the instant falls between their boundaries.
    SlidingWindowCounter,
}

words!(Algorithm, "an algorithm", {
    Gcra = "gcra",
    TokenBucket = "token_bucket",
    LeakyBucket = "leaky_bucket",
    FixedWindow = "fixed_window",
    SlidingWindow = "sliding_window",
    SlidingWindowCounter = "sliding_window_counter",
});

impl Algorithm {
    /// Whether it is one of the three names of the backlog rule, which has a burst apart from its capacity.
    pub(in crate::declaration) fn keeps_backlog(self) -> bool {
        matches!(self, Self::Gcra | Self::TokenBucket | Self::LeakyBucket)
    }
}

/// Where the windows of a fixed window start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Align {
    /// At multiples of the window since the Unix epoch.
    #[default]
    Utc,
    /// At the first use after the last window ended.
    FirstUse,
}

words!(Align, "an alignment", {
    Utc = "utc",
    FirstUse = "first_use",
});
