//! The fixed window: a count that starts again when the window turns.

use crate::limit::window::calendar::Calendar;
use crate::limit::{
    Assessment, CapacityTerms, Charge, InvalidLimit, Mark, Now, RuleOperations, State, StateMut,
};

/// At most `capacity` units in each window, and up to twice that in a span of a window's length across a boundary.
///
/// State: the units used; where the window they belong to starts; and, for wall-clock windows, the monotonic instant
/// at which it was opened. A count of zero means that no window is open, whatever the other words say; the first
/// charge opens one.
///
/// **If the wall clock is set back** to before the start of the open window, that window stays open with its count,
/// so that the step grants nothing, and ends where it would have ended. But a step of several windows must not lock
/// everybody out until the old time comes round again. In that case the count stands until the window's length has
/// passed on the monotonic clock since it was opened (by then it would have ended without the step too), and the next
/// window begins by the wall clock as it now reads. That takes at most two windows, writes nothing at the step, and
/// keeps the bound of two capacities. A step forward turns the window early, as it must.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FixedWindow {
    capacity: u64,
    alignment: Alignment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alignment {
    /// Windows start at multiples of this many nanoseconds since the Unix epoch.
    Utc(u64),
    /// A window starts with the first charge after the previous window, and lasts this many nanoseconds.
    FirstUse(u64),
    Calendar(Calendar),
}

/// A window that is open at an instant.
struct Open {
    used: u64,
    /// Nanoseconds until it turns, positive.
    turns_in: u64,
}

impl FixedWindow {
    const USED: usize = 0;
    const START: usize = 1;
    const OPENED: usize = 2;

    /// Windows of `window` nanoseconds that start at its multiples since the Unix epoch.
    pub(crate) fn utc(capacity: u64, window: u64) -> Result<Self, InvalidLimit> {
        Self::new(capacity, Alignment::Utc(positive_window(window)?))
    }

    /// Windows of `window` nanoseconds that start with their first use.
    pub(crate) fn first_use(capacity: u64, window: u64) -> Result<Self, InvalidLimit> {
        Self::new(capacity, Alignment::FirstUse(positive_window(window)?))
    }

    pub(crate) fn calendar(capacity: u64, calendar: Calendar) -> Result<Self, InvalidLimit> {
        calendar.check()?;
        Self::new(capacity, Alignment::Calendar(calendar))
    }

    fn new(capacity: u64, alignment: Alignment) -> Result<Self, InvalidLimit> {
        InvalidLimit::unless_positive(capacity, "capacity")?;
        Ok(Self { capacity, alignment })
    }

    fn open(&self, state: &(impl State + ?Sized), now: Now) -> Option<Open> {
        let used = state.load(Self::USED);
        if used == 0 {
            return None;
        }
        let start = state.load(Self::START);
        let turns_in = match self.alignment {
            Alignment::FirstUse(_) => self.end(start).saturating_sub(now.monotonic),
            Alignment::Utc(_) | Alignment::Calendar(_) => {
                let end = self.end_by_wall_clock(start, state.load(Self::OPENED), now);
                end.saturating_sub(now.utc)
            }
        };
        (turns_in > 0).then_some(Open { used, turns_in })
    }

    /// Whether the window that is open now is the one that counted the charge.
    ///
    /// If windows start with a use, it is if both end at the same instant. With wall-clock windows, the charge must
    /// come after the window was opened, by the monotonic clock. A charge at that very instant may belong to the
    /// previous window instead; the mark then tells, because that window has turned by now.
    fn is_of_open(&self, state: &(impl State + ?Sized), now: Now, charge: &Charge) -> bool {
        let turned_at = charge
            .mark
            .map_or(0, |mark| charge.instant.saturating_add(mark.second));
        match self.alignment {
            Alignment::FirstUse(_) => turned_at == self.end(state.load(Self::START)),
            Alignment::Utc(_) | Alignment::Calendar(_) => {
                let opened = state.load(Self::OPENED);
                opened < charge.instant || (opened == charge.instant && now.monotonic < turned_at)
            }
        }
    }

    /// The start of the wall-clock window that contains `utc`.
    fn start(&self, utc: u64) -> u64 {
        match self.alignment {
            Alignment::Calendar(calendar) => calendar.period(utc).start,
            Alignment::Utc(window) | Alignment::FirstUse(window) => utc - utc % window,
        }
    }

    /// No window is longer than this many nanoseconds.
    fn longest(&self) -> u64 {
        match self.alignment {
            Alignment::Calendar(calendar) => calendar.longest_period(),
            Alignment::Utc(window) | Alignment::FirstUse(window) => window,
        }
    }

    /// The end of the window that starts at `start`. A window that would end beyond 64 bits never does.
    fn end(&self, start: u64) -> u64 {
        match self.alignment {
            Alignment::Calendar(calendar) => calendar.period(start).end,
            Alignment::Utc(window) | Alignment::FirstUse(window) => start.saturating_add(window),
        }
    }

    /// When the window from `start`, opened at the monotonic instant `opened`, ends by the wall clock as it is now
    /// set.
    fn end_by_wall_clock(&self, start: u64, opened: u64, now: Now) -> u64 {
        let end = self.end(start);
        let length_passed = opened.saturating_add(end.saturating_sub(start));
        let overdue = now.monotonic.saturating_sub(length_passed);
        if start <= now.utc {
            // Overdue since before the wall clock reached `start`: it has been here before.
            let came_round_again = now.monotonic >= length_passed && overdue >= now.utc - start;
            return if came_round_again { start } else { end };
        }
        // When the length has passed, by the wall clock. The first window boundary at or after that ends the window.
        let by_wall = now
            .utc
            .saturating_sub(overdue)
            .saturating_add(length_passed.saturating_sub(now.monotonic));
        if by_wall > start {
            end
        } else {
            self.end(self.start(by_wall.saturating_sub(1)))
        }
    }
}

impl RuleOperations for FixedWindow {
    fn state_words(&self) -> usize {
        match self.alignment {
            Alignment::FirstUse(_) => 2,
            Alignment::Utc(_) | Alignment::Calendar(_) => 3,
        }
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    #[inline]
    fn assess(&self, state: &(impl State + ?Sized), now: Now, cost: u64) -> Assessment {
        // The largest count on top of which the cost still fits.
        let Some(admitting) = self.capacity.checked_sub(cost) else {
            return Assessment::Refused { retry_after: None };
        };
        match self.open(state, now) {
            Some(open) if open.used > admitting => Assessment::Refused {
                retry_after: Some(open.turns_in),
            },
            _ => Assessment::Admissible,
        }
    }

    /// The count saturates. Above the capacity, everything is refused until the window turns.
    #[inline]
    fn charge(&self, state: &mut (impl StateMut + ?Sized), now: Now, cost: u64) {
        if cost == 0 {
            return;
        }
        if let Some(open) = self.open(state, now) {
            state.store(Self::USED, open.used.saturating_add(cost));
            return;
        }
        match self.alignment {
            Alignment::FirstUse(_) => state.store(Self::START, now.monotonic),
            Alignment::Utc(_) | Alignment::Calendar(_) => {
                state.store(Self::START, self.start(now.utc));
                state.store(Self::OPENED, now.monotonic);
            }
        }
        state.store(Self::USED, cost);
    }

    #[inline]
    fn mark(&self, state: &(impl State + ?Sized), now: Now) -> Mark {
        match self.open(state, now) {
            Some(open) => Mark {
                first: open.used,
                second: open.turns_in,
            },
            None => Mark::default(),
        }
    }

    /// Whether no later instant will find a window open. For wall-clock windows this assumes that the clock is not
    /// set back again; if it has been set back, the window must be so long overdue that setting the clock forward
    /// cannot reopen it.
    #[inline]
    fn is_replenished(&self, state: &(impl State + ?Sized), now: Now) -> bool {
        if state.load(Self::USED) == 0 {
            return true;
        }
        let start = state.load(Self::START);
        let end = self.end(start);
        match self.alignment {
            Alignment::FirstUse(_) => end <= now.monotonic,
            Alignment::Utc(_) | Alignment::Calendar(_) => {
                end <= now.utc || {
                    let longest = self.longest();
                    let length_passed = state.load(Self::OPENED).saturating_add(end.saturating_sub(start));
                    let overdue = now.monotonic.checked_sub(length_passed);
                    // Closer to the epoch than that, periods are cut off, and nothing is promised.
                    now.utc >= longest && overdue.is_some_and(|overdue| overdue >= longest - 1)
                }
            }
        }
    }

    /// Gives back while the window that counted the charge lasts. If everything it counted is given back, it is over,
    /// and the next charge opens a new one.
    fn refund(&self, state: &mut (impl StateMut + ?Sized), now: Now, unused: u64, charge: &Charge) -> u64 {
        let Some(open) = self.open(state, now) else {
            return 0;
        };
        if !self.is_of_open(state, now, charge) {
            return 0;
        }
        let units = unused.min(charge.cost).min(open.used);
        if units > 0 {
            state.store(Self::USED, open.used - units);
        }
        units
    }

    fn reset(&self, state: &mut (impl StateMut + ?Sized)) {
        state.store(Self::USED, 0);
    }

    fn with_capacity(&self, capacity: u64, _terms: CapacityTerms) -> Result<Self, InvalidLimit> {
        Ok(Self { capacity, ..*self })
    }

    fn reads_utc(&self) -> bool {
        !matches!(self.alignment, Alignment::FirstUse(_))
    }

    /// A lower bound, in nanoseconds, on when all of `amount` units can have been taken, in whatever portions. When a
    /// window that is not open turns is unknown, and so is the length of a calendar's periods; both count as zero.
    fn earliest(&self, state: &(impl State + ?Sized), now: Now, amount: u64) -> u64 {
        let Open { used, turns_in } = self.open(state, now).unwrap_or(Open { used: 0, turns_in: 0 });
        // Usage above the capacity ends with its window: none of it counts in the next.
        let excess = amount.saturating_sub(self.capacity.saturating_sub(used));
        let Some(later) = excess.div_ceil(self.capacity).checked_sub(1) else {
            return 0;
        };
        let window = match self.alignment {
            Alignment::Utc(window) | Alignment::FirstUse(window) => window,
            Alignment::Calendar(_) => 0,
        };
        turns_in.saturating_add(window.saturating_mul(later))
    }

    /// Whether both cut their windows the same way; the lengths may differ.
    fn can_migrate(&self, old: &Self) -> bool {
        matches!(
            (self.alignment, old.alignment),
            (Alignment::Utc(_), Alignment::Utc(_))
                | (Alignment::FirstUse(_), Alignment::FirstUse(_))
                | (Alignment::Calendar(_), Alignment::Calendar(_))
        )
    }

    /// What the open window counted stays counted until that window would have turned and until the new window that
    /// contains `now` turns, whichever is later. If the new windows have fixed places in time, it stays counted until
    /// the first of their boundaries at or after the old window's end, so that each of them still holds at most the
    /// capacity. Changing back and forth never moves the end beyond the first boundary that both have in common.
    ///
    /// A shorter window from the first use may start later than now, so that it ends when the old one would have.
    /// When the old window was opened is then no longer known, except that it was no later than now; so a longer
    /// window need not end later than if it started now. Otherwise each change back and forth would move the end by
    /// the difference. Changes that follow one another faster than the longer window still move the end along, to at
    /// most one longer window after the latest change.
    fn migrate(&self, old: &Self, state: &mut (impl StateMut + ?Sized), now: Now) {
        if self.alignment == old.alignment {
            return;
        }
        let Some(open) = old.open(state, now) else {
            // A longer window must not reopen what has turned.
            if state.load(Self::USED) != 0 {
                state.store(Self::USED, 0);
            }
            return;
        };
        match self.alignment {
            Alignment::FirstUse(window) => {
                let start = state.load(Self::START);
                let earliest = now.monotonic.saturating_add(open.turns_in);
                let latest = earliest.max(now.monotonic.saturating_add(window));
                let end = self.end(start);
                if end < earliest || end > latest {
                    state.store(Self::START, end.clamp(earliest, latest).saturating_sub(window));
                }
            }
            Alignment::Utc(_) | Alignment::Calendar(_) => {
                let end = now.utc.saturating_add(open.turns_in);
                // This is after now, so the new window that contains its last instant turns no earlier than the one
                // that contains now.
                let start = self.start(end.saturating_sub(1));
                // The window may start later than now. Count it as opened when the wall clock will reach its start;
                // otherwise it would look as if that clock had been set back.
                let opened = now.monotonic.saturating_add(start.saturating_sub(now.utc));
                state.store(Self::START, start);
                state.store(Self::OPENED, opened);
            }
        }
    }
}

fn positive_window(window: u64) -> Result<u64, InvalidLimit> {
    if window == 0 {
        Err(InvalidLimit::Zero("window"))
    } else {
        Ok(window)
    }
}
