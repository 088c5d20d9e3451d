//! Boot time from a counter: the system clock is read once in a while, and the counter in between.
//!
//! An anchor is a pair of readings, one of each clock at the same instant, from which the counter continues. Each
//! thread has anchors of its own, so nothing is shared. Anchors belong to an era of the clocks: a forked child, whose
//! system clock may be that of another time namespace, uses none of its parent's anchors, and a process that has
//! changed its time namespace uses none from before.

use std::cell::Cell;

/// How far the counter may be ahead of the system clock, in nanoseconds. This covers half of the distance at which a
/// pair is still accepted and a tick of the counter, for the anchor and for each pair from which the rate was
/// measured; and 500 millionths of [`SPAN`], by which the kernel may adjust its clock in the meantime.
///
/// It is subtracted from every reading, so that none is ahead, and readings of both kinds are as far apart as the
/// clocks are.
const ERROR: u64 = 5_000;
/// How far a reading may be behind the system clock at most. It is never ahead, unless the kernel adjusts its clock
/// by more than 500 millionths. While it corrects a wrong time it may do so by up to 100,000 millionths, which
/// amounts to 0.5 ms.
pub(crate) const MAX_LAG: u64 = 2 * ERROR;
/// How long an anchor is used.
const SPAN: u64 = 5_000_000;
/// The least distance between the pairs from which a rate is measured. An anchor that has been used for its whole
/// span is that far from the next pair, within its error.
const MIN_SPAN: u64 = SPAN - SPAN / 16;
/// An anchor older than this is not followed by another at once. Threads that read the time less often than about
/// every millisecond just read the system clock, because a pair would cost more than it saves.
const MAX_SPAN: u64 = SPAN + SPAN / 4;
/// The longest distance between two readings of the system clock at which the counter's reading between them is used.
const MAX_PAIR_DISTANCE: u64 = 1_000;
/// How often to try to read a pair before using the system clock for another [`SPAN`].
const TRIES: usize = 3;
/// Consecutive rates may differ by one part in this many; a clock whose rate is adjusted faster is not followed.
const RATE_TOLERANCE: u64 = 1_000;
/// After a longer pause the rate is measured again. Over a shorter one, the average is close to the rate at its end.
const MAX_PAUSE: u64 = 200 * SPAN;
/// The rate from before a pause stays in use if the average over the pause differs by no more than one part in this
/// many.
const PAUSE_TOLERANCE: u64 = 4_000;
/// A counter whose ticks are longer, in nanoseconds, cannot be measured exactly enough.
const MAX_TICK: u64 = 100;
/// After this many rates that disagree with the one before, the thread no longer uses the counter.
const MAX_DISAGREEMENTS: u32 = 8;
/// This many consecutive agreements make up for all disagreements.
const AGREEMENTS: u32 = 100;

/// What an [`AnchoredClock`] reads.
pub(crate) trait ClockSources {
    /// A counter that goes up at a constant rate.
    fn counter(&self) -> u64;
    /// Nanoseconds since boot: exact, but costs more.
    fn system(&self) -> u64;
    /// The era: only readings of the same era may be compared. Zero if it is not known yet.
    fn era_so_far(&self) -> u64;
    /// The era, which is determined now if it was not known; never zero.
    fn era(&self) -> u64;
}

/// The clock of one thread.
#[derive(Debug)]
pub(crate) struct AnchoredClock {
    anchor: Cell<Anchor>,
    trust: Cell<Trust>,
}

#[derive(Clone, Copy, Debug)]
struct Anchor {
    /// The era of the clocks; zero if there never was a pair.
    era: u64,
    counter: u64,
    /// The system clock's reading at `counter`; zero if there is no pair.
    nanos: u64,
    /// Nanoseconds per 2^32 ticks, as last measured; zero if unknown.
    rate: u64,
    /// For how many ticks from `counter` on the anchor can be used; zero until two measured rates agree, and after a
    /// pause.
    horizon: u64,
    /// When to compare the clocks again while the anchor cannot be used, if the thread reads the time soon after
    /// that.
    next_pair: u64,
}

/// How well recent rates have agreed.
#[derive(Clone, Copy, Debug, Default)]
struct Trust {
    disagreements: u32,
    agreements: u32,
}

/// A reading of both clocks at one instant, and one of the system clock just after it.
struct Pair {
    counter: u64,
    nanos: u64,
    after: u64,
}

impl AnchoredClock {
    pub(crate) const fn new() -> Self {
        Self {
            anchor: Cell::new(Anchor::NONE),
            trust: Cell::new(Trust {
                disagreements: 0,
                agreements: 0,
            }),
        }
    }

    /// The boot time in nanoseconds; never ahead of the system clock, and behind it by at most [`MAX_LAG`].
    #[inline]
    pub(crate) fn boot_nanos(&self, sources: &impl ClockSources) -> u64 {
        let anchor = self.anchor.get();
        // If the counter has gone back, this wraps to a value that is far too large.
        let passed = sources.counter().wrapping_sub(anchor.counter);
        // The era of a usable anchor is not zero, so it differs from that of a child that has not determined its own
        // yet.
        if passed < anchor.horizon && anchor.era == sources.era_so_far() {
            // Below 2^64: see `Anchor::serving`. A usable anchor is from an instant some spans after boot.
            return (anchor.nanos - ERROR) + ((passed * anchor.rate) >> 32);
        }
        self.compare(sources).saturating_sub(ERROR)
    }

    /// Reads the system clock, and takes a new anchor when it is time to.
    #[cold]
    fn compare(&self, sources: &impl ClockSources) -> u64 {
        let era = sources.era();
        if self.anchor.get().era != era {
            // What was measured of another clock says nothing about this one.
            self.anchor.set(Anchor { era, ..Anchor::NONE });
            self.trust.set(Trust::default());
        }
        let now = sources.system();
        let anchor = self.anchor.get();
        if anchor.horizon == 0 && now < anchor.next_pair {
            return now;
        }
        let read_before = anchor.nanos.max(anchor.next_pair.saturating_sub(SPAN));
        if now.wrapping_sub(read_before) > MAX_SPAN {
            self.anchor.set(anchor.not_before(now));
            return now;
        }
        let Some(pair) = Pair::read(sources) else {
            self.anchor.set(anchor.not_before(now + SPAN));
            return sources.system();
        };
        let is_after_pause = anchor.span_until(&pair) > 2 * MAX_SPAN;
        let measured = if is_after_pause {
            anchor.rate_over_pause(&pair)
        } else {
            anchor.rate_until(&pair)
        };
        let agrees = measured.is_some_and(|rate| agree(anchor.rate, rate, RATE_TOLERANCE));
        // During a pause the machine may have been suspended, so a disagreement says nothing about the counter.
        let is_trusted = anchor.rate == 0 || is_after_pause && !agrees || self.note(agrees);
        let anew = Anchor {
            era,
            counter: pair.counter,
            nanos: pair.nanos,
            rate: measured.unwrap_or(0),
            horizon: 0,
            next_pair: pair.nanos + SPAN,
        };
        self.anchor.set(match agrees {
            _ if !is_trusted => Anchor { era, ..Anchor::NONE }.not_before(u64::MAX),
            true => anew.serving(),
            false => anew,
        });
        pair.after
    }

    /// Notes whether a rate agreed with the one before. Returns whether the counter can still be used.
    fn note(&self, agrees: bool) -> bool {
        let mut trust = self.trust.get();
        if agrees {
            trust.agreements += 1;
            if trust.agreements >= AGREEMENTS {
                trust = Trust::default();
            }
        } else {
            trust.agreements = 0;
            trust.disagreements += 1;
        }
        self.trust.set(trust);
        trust.disagreements < MAX_DISAGREEMENTS
    }
}

impl Anchor {
    const NONE: Self = Self {
        era: 0,
        counter: 0,
        nanos: 0,
        rate: 0,
        horizon: 0,
        next_pair: 0,
    };

    /// The same anchor, no longer usable except for measuring the rate to the next pair.
    fn not_before(self, next_pair: u64) -> Self {
        Self {
            horizon: 0,
            next_pair,
            ..self
        }
    }

    /// The same anchor, usable while ticks times rate stays below [`SPAN`] nanoseconds, times 2^32.
    fn serving(self) -> Self {
        let horizon = (SPAN << 32) / self.rate;
        Self { horizon, ..self }
    }

    /// The time from this pair to a later one; far too long if the other is earlier.
    fn span_until(&self, pair: &Pair) -> u64 {
        pair.nanos.wrapping_sub(self.nanos)
    }

    /// The rate from this pair to a later one.
    fn rate_until(&self, pair: &Pair) -> Option<u64> {
        let span = self.span_until(pair);
        if self.nanos == 0 || span < MIN_SPAN {
            return None;
        }
        let ticks = pair
            .counter
            .checked_sub(self.counter)
            .filter(|ticks| *ticks > 0)?;
        let rate = (u128::from(span) << 32) / u128::from(ticks);
        u64::try_from(rate)
            .ok()
            .filter(|rate| (1..=MAX_TICK << 32).contains(rate))
    }

    /// The rate from before a pause, if it fits the pause as well. The average over the pause is not used itself: the
    /// machine may have been suspended for part of it.
    fn rate_over_pause(&self, pair: &Pair) -> Option<u64> {
        let average = self.rate_until(pair)?;
        let is_short = self.span_until(pair) <= MAX_PAUSE;
        (is_short && agree(self.rate, average, PAUSE_TOLERANCE)).then_some(self.rate)
    }
}

impl Pair {
    /// Accurate to within half of [`MAX_PAIR_DISTANCE`]; `None` if this thread was interrupted every time.
    fn read(sources: &impl ClockSources) -> Option<Self> {
        (0..TRIES).find_map(|_| {
            let before = sources.system();
            let counter = sources.counter();
            let after = sources.system();
            let distance = after.wrapping_sub(before);
            (distance <= MAX_PAIR_DISTANCE).then(|| Self {
                counter,
                nanos: before + distance / 2,
                after,
            })
        })
    }
}

/// Whether two rates differ by at most one part in `tolerance`.
fn agree(rate: u64, other: u64, tolerance: u64) -> bool {
    rate.abs_diff(other) <= rate / tolerance
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::{AnchoredClock, ClockSources, ERROR, MAX_LAG, SPAN};

    /// A machine on which reading a clock takes a while, with a counter that can be tampered with.
    struct Machine {
        /// In 2^-32 of a nanosecond, so that rates are exact.
        now: Cell<u128>,
        ticks: Cell<u128>,
        /// Ticks in 2^32 nanoseconds.
        frequency: Cell<u64>,
        /// Nanoseconds that reading either clock takes.
        reading: Cell<u64>,
        read_system: Cell<u64>,
        era: Cell<u64>,
    }

    impl Machine {
        fn new(frequency_hz: u64) -> Self {
            Self {
                now: Cell::new(1_000_000_000 << 32),
                ticks: Cell::new(77 << 32),
                frequency: Cell::new(((u128::from(frequency_hz) << 32) / 1_000_000_000) as u64),
                reading: Cell::new(20),
                read_system: Cell::new(0),
                era: Cell::new(1),
            }
        }

        fn nanos(&self) -> u64 {
            (self.now.get() >> 32) as u64
        }

        fn pass(&self, nanos: u64) {
            self.now.set(self.now.get() + (u128::from(nanos) << 32));
            self.ticks
                .set(self.ticks.get() + u128::from(nanos) * u128::from(self.frequency.get()));
        }

        /// Lets the clocks be compared often enough that the counter is used, if it can be.
        fn settle(&self, clock: &AnchoredClock) {
            for _ in 0..200 {
                self.pass(SPAN / 50);
                clock.boot_nanos(self);
            }
        }

        /// What the clock returns when it does not use the counter.
        fn exact(&self) -> u64 {
            self.nanos() - ERROR
        }

        /// Whether the next reading is by the counter.
        fn is_counted(&self, clock: &AnchoredClock) -> bool {
            let before = self.read_system.get();
            clock.boot_nanos(self);
            self.read_system.get() == before
        }

        /// Whether the counter is used soon: at the end of an anchor's span, the system clock is read once instead.
        fn counts_again(&self, clock: &AnchoredClock) -> bool {
            (0..10).any(|_| {
                self.pass(SPAN / 50);
                self.is_counted(clock)
            })
        }
    }

    impl ClockSources for Machine {
        fn counter(&self) -> u64 {
            self.pass(self.reading.get());
            (self.ticks.get() >> 32) as u64
        }

        fn system(&self) -> u64 {
            self.read_system.set(self.read_system.get() + 1);
            self.pass(self.reading.get());
            self.nanos()
        }

        fn era_so_far(&self) -> u64 {
            self.era.get()
        }

        fn era(&self) -> u64 {
            // Like a forked child: it has no era until it asks for one, and then gets one that no ancestor had.
            if self.era.get() == 0 {
                self.era.set(3);
            }
            self.era.get()
        }
    }

    #[test]
    fn reads_the_counter_once_two_measured_rates_agree() {
        for frequency in [
            12_000_000,
            24_000_000,
            1_000_000_000,
            2_445_000_000,
            6_000_000_000,
        ] {
            let (machine, clock) = (Machine::new(frequency), AnchoredClock::new());
            assert!(!machine.is_counted(&clock));
            machine.settle(&clock);
            assert!(machine.is_counted(&clock), "{frequency} Hz");
            let settled = machine.read_system.get();
            for _ in 0..10_000 {
                machine.pass(7_001);
                let before = machine.nanos();
                let read = clock.boot_nanos(&machine);
                assert!(read <= machine.nanos(), "{frequency} Hz: ahead");
                assert!(read + MAX_LAG >= before, "{frequency} Hz: behind");
            }
            let readings = machine.read_system.get() - settled;
            // 70 ms in spans of 5: three readings for each, and some more.
            assert!(
                readings < 100,
                "{frequency} Hz: the system clock was read {readings} times"
            );
        }
    }

    #[test]
    fn what_was_measured_in_another_era_is_forgotten_at_the_first_reading() {
        for (child_knows, hours) in [(false, 1_i64), (true, 1), (false, -1), (true, -1)] {
            let (machine, clock) = (Machine::new(3_000_000_000), AnchoredClock::new());
            machine.pass(10 * 3_600_000_000_000);
            machine.settle(&clock);
            assert!(machine.counts_again(&clock));
            // A child in a time namespace with a different clock; the counter goes on as before.
            machine.era.set(if child_knows { 4 } else { 0 });
            let offset = i128::from(hours) * (3_600_000_000_000 << 32);
            machine.now.set(machine.now.get().wrapping_add_signed(offset));
            assert_eq!(clock.boot_nanos(&machine), machine.exact());
            assert!(!machine.is_counted(&clock), "a rate takes two pairs");
            machine.settle(&clock);
            assert!(machine.counts_again(&clock));
        }
    }

    #[test]
    fn a_counter_of_long_ticks_is_not_used() {
        let (machine, clock) = (Machine::new(1_000_000), AnchoredClock::new());
        machine.settle(&clock);
        assert!(!machine.is_counted(&clock));
    }

    #[test]
    fn a_counter_that_stands_still_is_never_ahead_and_given_up() {
        let (machine, clock) = (Machine::new(3_000_000_000), AnchoredClock::new());
        machine.settle(&clock);
        machine.frequency.set(0);
        machine.pass(3 * SPAN);
        // The counter is believed until it has passed the span; a suspended machine looks the same.
        let stopped = clock.boot_nanos(&machine);
        assert!(stopped < machine.nanos());
        machine.frequency.set(3 << 32);
        machine.pass(SPAN);
        assert_eq!(clock.boot_nanos(&machine), machine.exact());
        assert!(!machine.is_counted(&clock), "its rate was not what it had been");
    }

    #[test]
    fn a_counter_that_jumps_back_is_compared_at_once() {
        let (machine, clock) = (Machine::new(3_000_000_000), AnchoredClock::new());
        machine.settle(&clock);
        machine.ticks.set(1 << 32);
        assert_eq!(clock.boot_nanos(&machine), machine.exact());
        assert!(!machine.is_counted(&clock));
    }

    #[test]
    fn a_counter_that_jumps_ahead_is_ahead_by_less_than_a_span_and_for_less_than_one() {
        for jump in [SPAN / 2, 2 * SPAN, 1_000 * SPAN] {
            let (machine, clock) = (Machine::new(1_000_000_000), AnchoredClock::new());
            machine.settle(&clock);
            machine.ticks.set(machine.ticks.get() + (u128::from(jump) << 32));
            assert!(clock.boot_nanos(&machine) < machine.nanos() + SPAN, "{jump}");
            machine.pass(SPAN);
            assert_eq!(clock.boot_nanos(&machine), machine.exact(), "{jump}");
        }
    }

    #[test]
    fn counters_of_two_processors_that_differ_are_given_up_after_a_few_comparisons() {
        // In thousandths of a span: how far the counters are apart, and how long the thread stays on one of them.
        for apart in [500, 1_500, 8_000] {
            for stay in [3_100, 3_400, 3_700, 4_000, 4_300, 11_000, 60_500] {
                let (machine, clock) = (Machine::new(1_000_000_000), AnchoredClock::new());
                let apart = u128::from(SPAN * apart / 1_000) << 32;
                let settle = |moves: u64, must_be_counted: Option<bool>| {
                    for step in 0..moves {
                        // The thread moves to the other processor and back again.
                        let ticks = machine.ticks.get();
                        machine.ticks.set(if step % 2 == 0 {
                            ticks + apart
                        } else {
                            ticks - apart
                        });
                        for _ in 0..stay / 20 {
                            machine.pass(SPAN / 50);
                            let is_counted = machine.is_counted(&clock);
                            assert!(must_be_counted.is_none_or(|must| must == is_counted));
                        }
                    }
                };
                settle(40, None);
                settle(20, Some(false));
            }
        }
    }

    #[test]
    fn a_counter_that_goes_back_again_and_again_is_given_up() {
        let (machine, clock) = (Machine::new(3_000_000_000), AnchoredClock::new());
        for _ in 0..20 {
            machine.settle(&clock);
            machine.ticks.set(1 << 32);
        }
        machine.settle(&clock);
        assert!(!machine.is_counted(&clock));
    }

    #[test]
    fn a_clock_that_is_adjusted_now_and_then_is_followed_again() {
        let (machine, clock) = (Machine::new(1_000_000_000), AnchoredClock::new());
        let nominal = machine.frequency.get();
        for _ in 0..20 {
            // As a time server does for a moment to correct a wrong time.
            machine.frequency.set(nominal + nominal / 20);
            machine.settle(&clock);
            machine.frequency.set(nominal);
            for _ in 0..40 {
                machine.settle(&clock);
            }
            assert!(machine.is_counted(&clock));
        }
    }

    #[test]
    fn a_thread_that_seldom_asks_reads_the_system_clock_once() {
        let (machine, clock) = (Machine::new(1_000_000_000), AnchoredClock::new());
        for calls in 1..100 {
            machine.pass(SPAN / 2);
            assert_eq!(clock.boot_nanos(&machine), machine.exact());
            assert_eq!(machine.read_system.get(), calls);
        }
    }

    #[test]
    fn after_a_pause_one_comparison_is_enough() {
        let (machine, clock) = (Machine::new(1_000_000_000), AnchoredClock::new());
        machine.settle(&clock);
        for pause in [2 * SPAN, 7 * SPAN, 190 * SPAN] {
            machine.pass(pause);
            assert_eq!(clock.boot_nanos(&machine), machine.exact());
            assert!(!machine.is_counted(&clock), "compared");
            assert!(machine.is_counted(&clock), "after {pause} ns");
        }
        machine.pass(1_000 * SPAN);
        for _ in 0..3 {
            assert!(
                !machine.is_counted(&clock),
                "what was long ago says nothing of now"
            );
        }
    }

    #[test]
    fn a_suspension_within_a_pause_does_not_change_the_rate() {
        let (machine, clock) = (Machine::new(1_000_000_000), AnchoredClock::new());
        machine.settle(&clock);
        // Too small a part of the pause to be noticed.
        machine.pass(190 * SPAN);
        machine.now.set(machine.now.get() + (u128::from(SPAN / 25) << 32));
        for _ in 0..2 {
            clock.boot_nanos(&machine);
        }
        assert!(machine.is_counted(&clock));
        for _ in 0..10 {
            machine.pass(SPAN / 11);
            let before = machine.nanos();
            let read = clock.boot_nanos(&machine);
            assert!(read <= machine.nanos(), "ahead by {}", read - machine.nanos());
            assert!(read + MAX_LAG >= before, "behind by {}", before - read);
        }
    }

    #[test]
    fn a_suspension_is_behind_for_a_span_of_the_counter_at_most_and_does_not_give_it_up() {
        let (machine, clock) = (Machine::new(1_000_000_000), AnchoredClock::new());
        machine.settle(&clock);
        for _ in 0..20 {
            // While the machine is suspended, the system clock goes on and the counter may not.
            machine.now.set(machine.now.get() + (60_000_000_000 << 32));
            assert!(clock.boot_nanos(&machine) <= machine.nanos());
            machine.pass(SPAN);
            assert_eq!(clock.boot_nanos(&machine), machine.exact());
            machine.settle(&clock);
            assert!(machine.is_counted(&clock));
        }
    }

    #[test]
    fn a_thread_that_is_interrupted_in_every_pair_reads_the_system_clock() {
        let (machine, clock) = (Machine::new(1_000_000_000), AnchoredClock::new());
        machine.reading.set(5_000);
        for _ in 0..2_000 {
            machine.pass(10_000);
            assert_eq!(clock.boot_nanos(&machine), machine.exact());
        }
        assert!(machine.read_system.get() < 2_200, "not tried each time");
        machine.reading.set(20);
        machine.settle(&clock);
        assert!(machine.is_counted(&clock));
    }

    proptest! {
        #[test]
        fn no_reading_is_ahead_or_further_behind_than_stated(
            frequency in 10_000_000_u64..6_000_000_000,
            courses in proptest::collection::vec(
                (
                    -250_i64..=250,
                    10_u64..400,
                    proptest::collection::vec(
                        prop_oneof![50 => 0_u64..300_000, 1 => 0_u64..30_000_000, 1 => 0_u64..1_500_000_000],
                        1..300,
                    ),
                ),
                1..6,
            ),
        ) {
            let (machine, clock) = (Machine::new(frequency), AnchoredClock::new());
            let nominal = machine.frequency.get();
            for (millionths, reading, pauses) in courses {
                // The kernel adjusts the rate of its clock: seen from there, the counter's rate changes by as much.
                let adjusted = i128::from(nominal) * i128::from(1_000_000 + millionths) / 1_000_000;
                machine.frequency.set(adjusted as u64);
                machine.reading.set(reading);
                for pause in pauses {
                    machine.pass(pause);
                    let before = machine.nanos();
                    let read = clock.boot_nanos(&machine);
                    prop_assert!(read <= machine.nanos(), "ahead by {}", read - machine.nanos());
                    prop_assert!(read + MAX_LAG >= before, "behind by {}", before - read);
                }
            }
        }
    }

    #[test]
    fn the_stated_error_covers_pairs_and_adjustments() {
        // The anchor's pair, and both pairs of the rate, which are as far apart as the anchor is used.
        let of_a_pair = super::MAX_PAIR_DISTANCE / 2 + super::MAX_TICK;
        let of_pairs = of_a_pair + 2 * of_a_pair * SPAN / super::MIN_SPAN;
        let of_adjustments = SPAN / 1_000_000 * 500;
        assert!(of_pairs + of_adjustments <= ERROR);
        // After a pause of at least two and a half spans, the old rate is as close to the average as the tolerance
        // allows.
        let of_average = 2 * of_a_pair * SPAN / (2 * super::MAX_SPAN);
        let of_agreement = SPAN / super::PAUSE_TOLERANCE;
        assert!(of_a_pair + of_average + of_agreement + of_adjustments <= ERROR);
    }
}
