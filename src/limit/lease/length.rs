//! How long leases last if no length is declared.

use crate::units::NANOS_PER_SECOND;

/// No length is chosen below this, in nanoseconds.
const SHORTEST: u64 = NANOS_PER_SECOND / 10;

/// None is chosen above this.
const LONGEST: u64 = 10 * NANOS_PER_SECOND;

/// Lengths are whole milliseconds.
const PRECISION: u64 = 1_000_000;

/// A burst comes back in this many leases. Hosts hold what they use in 1.25 leases, and have up to 0.57 more spent and
/// not reported: less than two, so that there is room for both, and nothing that comes back is lost.
const LEASES_OF_BURST: u64 = 2;

/// A window is at least this many leases, so that a host that dies takes no more than a twelfth of the window with it.
const LEASES_OF_WINDOW: u64 = 16;

/// How long places are leased for: soon after a host has died its places come back, and hosts that wait take turns of
/// half of this.
const OF_PLACES: u64 = 2 * NANOS_PER_SECOND;

/// How units come back to a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Supply {
    /// Evenly: a burst in this many nanoseconds.
    Evenly { replenished_in: u64 },
    /// With each window of this many nanoseconds.
    InWindows { length: u64 },
    /// When they are released.
    Released,
}

/// The length of leases for which none is declared, in nanoseconds. It depends only on the declaration, so it is the same
/// for all hosts.
pub(crate) fn automatic_length(supply: Supply) -> u64 {
    let length = match supply {
        Supply::Evenly { replenished_in } => replenished_in / LEASES_OF_BURST,
        Supply::InWindows { length } => length / LEASES_OF_WINDOW,
        Supply::Released => OF_PLACES,
    };
    (length - length % PRECISION).clamp(SHORTEST, LONGEST)
}
