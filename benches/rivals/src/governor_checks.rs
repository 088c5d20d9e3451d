//! governor, which limits one process, applies the same rule (GCRA) to one atomic word, without a lock.

use std::hint::black_box;
use std::num::NonZeroU32;

use governor::clock::{Clock, MonotonicClock};
use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};

use crate::common::operations::Operation;

const GOVERNOR: &str = "governor";

/// The name of the operation with which one acquire of three limits is compared.
pub const THREE_CHECKS: &str = "3 checks";

type Limiter<C> = RateLimiter<NotKeyed, InMemoryState, C, NoOpMiddleware<<C as Clock>::Instant>>;

/// Checks that are admitted, and one that is refused.
pub fn checks() -> Vec<Operation> {
    let plenty = || Quota::per_second(NonZeroU32::MAX);
    let one = RateLimiter::direct(plenty());
    let three = [(); 3].map(|()| RateLimiter::direct(plenty()));
    let by_system_clock = RateLimiter::direct_with_clock(plenty(), MonotonicClock);
    let three_by_system_clock = [(); 3].map(|()| RateLimiter::direct_with_clock(plenty(), MonotonicClock));
    let spent = RateLimiter::direct(Quota::per_hour(NonZeroU32::MIN));
    assert!(spent.check().is_ok());
    vec![
        Operation::new(GOVERNOR, "1 check", move || admit(&one)),
        Operation::new(GOVERNOR, THREE_CHECKS, move || three.iter().for_each(admit)),
        Operation::new(
            GOVERNOR,
            "1 check, system clock instead of its counter",
            move || {
                admit(&by_system_clock);
            },
        ),
        Operation::new(
            GOVERNOR,
            "3 checks, system clock instead of its counter",
            move || {
                three_by_system_clock.iter().for_each(admit);
            },
        ),
        Operation::new(GOVERNOR, "1 check, refused", move || {
            assert!(black_box(black_box(&spent).check()).is_err());
        }),
    ]
}

#[inline]
fn admit<C: Clock>(limiter: &Limiter<C>) {
    assert!(black_box(black_box(limiter).check()).is_ok());
}
