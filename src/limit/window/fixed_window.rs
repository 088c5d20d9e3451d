//! The fixed window: a count that starts again when the window turns.

use crate::limit::window::calendar::Calendar;
use crate::limit::{
    Assessment, CapacityTerms, Charge, InvalidLimit, Mark, Now, RuleOperations, State, StateMut,
};

/// At most `capacity` units in each window; up to twice that in a stretch of a window's length across a boundary.
///
/// State: the units used, where the window that they belong to starts and, for windows by the wall clock, the
/// monotonic instant at which it was opened. A count of zero means that no window is open, whatever the other words
/// say; the first charge opens one.
///
/// **When the wall clock is set back** before the start of the open window, that window stays open with its count, so
/// that the step grants nothing, and ends where it would have ended. But a step of several windows must not lock
/// every process out until the old time comes round again: then the count stands until the window's length has passed
/// on the monotonic clock since it was opened (by when it would have ended without the step) and the next window begins
/// by the wall clock as it now is. That is within two windows, writes nothing at the step, and keeps the bound of two
/// capacities. A step forward turns the window early, as it must.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FixedWindow {
    capacity: u64,
    alignment: Alignment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alignment {
    /// Windows start at multiples of this many nanoseconds since the Unix epoch.
    Utc(u64),
    /// A window starts with the first charge after the one before it, and lasts this many nanoseconds.
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

    /// Windows of `window` nanoseconds that start with the first use.
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

    /// Whether the window that is open now is the one that the charge was counted in.
    ///
    /// Where windows begin with a use, both end at one instant. By the wall clock, a charge comes after the window was
    /// opened, by the monotonic clock. At that very instant, which may be the last of the window before as well, the mark
    /// tells: that window has turned by now.
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

    /// Where the wall-clock window that holds `utc` starts.
    fn start(&self, utc: u64) -> u64 {
        match self.alignment {
            Alignment::Calendar(calendar) => calendar.period(utc).start,
            Alignment::Utc(window) | Alignment::FirstUse(window) => utc - utc % window,
        }
    }

    /// Nanoseconds that no window exceeds.
    fn longest(&self) -> u64 {
        match self.alignment {
            Alignment::Calendar(calendar) => calendar.longest_period(),
            Alignment::Utc(window) | Alignment::FirstUse(window) => window,
        }
    }

    /// Where the window that starts at `start` ends. Beyond 64 bits it never does.
    fn end(&self, start: u64) -> u64 {
        match self.alignment {
            Alignment::Calendar(calendar) => calendar.period(start).end,
            Alignment::Utc(window) | Alignment::FirstUse(window) => start.saturating_add(window),
        }
    }

    /// Where the window from `start`, opened at the monotonic instant `opened`, ends by the wall clock as it is now
    /// set.
    fn end_by_wall_clock(&self, start: u64, opened: u64, now: Now) -> u64 {
        let end = self.end(start);
        let length_passed = opened.saturating_add(end.saturating_sub(start));
        let overdue = now.monotonic.saturating_sub(length_passed);
        if start <= now.utc {
            // Overdue since before the wall clock came to `start`: it has been here before.
            let came_round_again = now.monotonic >= length_passed && overdue >= now.utc - start;
            return if came_round_again { start } else { end };
        }
        // When the length has passed, by the wall clock. Window boundaries at or after that end the window.
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

    /// The count saturates; above the capacity it refuses everything until the window turns.
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

    /// Whether no later instant finds a window open. By the wall clock, later means that it is not set back; where it
    /// was, the window must be so long overdue that it cannot be opened again by setting the clock forward.
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
                    // Before that much time since the epoch the periods are cut off, and nothing is promised.
                    now.utc >= longest && overdue.is_some_and(|overdue| overdue >= longest - 1)
                }
            }
        }
    }

    /// While the window lasts that counted the charge. Where all that it counted is given back, it is over: the next
    /// charge opens one.
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

    /// Nanoseconds before which `amount` units cannot all have been taken, in whatever portions. Of a window that is not
    /// open it is not known when it turns, and neither is how long periods of a calendar are: these count as nothing.
    fn earliest(&self, state: &(impl State + ?Sized), now: Now, amount: u64) -> u64 {
        let Open { used, turns_in } = self.open(state, now).unwrap_or(Open { used: 0, turns_in: 0 });
        // What was charged above the capacity ends with its window: none of it counts in the next.
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

    /// Whether the windows of both are cut in the same way, be they of different lengths.
    fn can_migrate(&self, old: &Self) -> bool {
        matches!(
            (self.alignment, old.alignment),
            (Alignment::Utc(_), Alignment::Utc(_))
                | (Alignment::FirstUse(_), Alignment::FirstUse(_))
                | (Alignment::Calendar(_), Alignment::Calendar(_))
        )
    }

    /// What the open window counted stays counted until that window would have turned, and until the new window that
    /// holds `now` turns, whichever is later. Where the new windows have their places in time, it stays until the
    /// first of their boundaries at or after the old one's end, so that each of them still holds the capacity at most.
    /// Changes to and fro never move the end beyond the first boundary that both have in common.
    ///
    /// A shorter window from the first use may start later than now, to end when the old one would have. When that one
    /// was opened is not known any more: no later than now, so a longer window need not end later than if it started
    /// now. Otherwise each change to and fro would move the end by the difference. Changes that follow one another faster
    /// than the longer window still move it along, to one of these from the latest.
    fn migrate(&self, old: &Self, state: &mut (impl StateMut + ?Sized), now: Now) {
        if self.alignment == old.alignment {
            return;
        }
        let Some(open) = old.open(state, now) else {
            // A longer window must not open again what has turned.
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
                // It ends after now, so the new window that holds its last instant turns no earlier than the one that
                // holds now.
                let start = self.start(end.saturating_sub(1));
                // The window may start later than now. It counts as opened when the wall clock will show its start:
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
