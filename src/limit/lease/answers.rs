//! What happens when the store answers, or does not.

use super::Leased;
use super::pacing::JITTER;
use super::record::LeaseWord;
use crate::limit::{Now, State, StateMut};

/// The store's answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Answer {
    pub(crate) sequence: u64,
    pub(crate) granted: u64,
    /// In nanoseconds from before the attempt was sent.
    pub(crate) remaining: u64,
    pub(crate) share: u64,
    pub(crate) grant_number: u64,
    /// In nanoseconds from before the attempt was sent.
    pub(crate) drained_in: u64,
    /// What the store has left for all hosts; zero if they want more than that.
    pub(crate) available: u64,
    /// The most places that may be taken anew.
    pub(crate) ceiling: u64,
    /// How many hosts want something of the limit.
    pub(crate) hosts: u64,
    /// By key: for how long the store has no unit to grant, in nanoseconds from before the attempt was sent.
    pub(crate) free_in: u64,
    /// Set if the store grants nothing for a while, because it may have lost something.
    pub(crate) quarantine: Option<Quarantine>,
}

/// A time in which the store grants nothing new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Quarantine {
    /// The code of the problem, for readers of the state. Not zero.
    pub(crate) code: u64,
    /// In nanoseconds.
    pub(crate) remaining: u64,
}

/// Why no answer came that grants anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// What it was, and what the store named with it, for readers of the state. Not zero.
    pub(crate) code: u64,
    /// Whether this counts as an outage of the store.
    pub(crate) is_outage: bool,
    /// The identity that the host uses from now on, if the store's account of it is later than its own. Not zero.
    pub(crate) new_identity: Option<u64>,
}

/// The effect of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Installed {
    /// Units that can be spent from now on.
    pub(crate) granted: u64,
}

/// How much faster the store's clock may run than this host's: one part in this many.
const CLOCK_RATES: u64 = 1000;

/// How long answers take is a moving mean, in which each answer counts for one part in this many.
const ROUND_TRIPS: u64 = 8;

/// Shortens a duration measured by the store, so that it ends here no later than there, whatever the clocks' rates.
fn by_slow_clock(nanos: u64) -> u64 {
    nanos - nanos.div_ceil(CLOCK_RATES)
}

/// Lengthens a duration measured by the store, so that it ends here no earlier than there.
fn by_fast_clock(nanos: u64) -> u64 {
    nanos.saturating_add(nanos.div_ceil(CLOCK_RATES))
}

impl Leased {
    /// Puts an answer into force. `attempt_at` is when the attempt that it answers began, on the segment clock.
    /// Returns `None` and changes nothing if the answer does not belong to the current request.
    pub(crate) fn install(
        &self,
        state: &mut (impl StateMut + ?Sized),
        now: Now,
        attempt_at: u64,
        answer: Answer,
    ) -> Option<Installed> {
        if answer.sequence == 0 || self.get(state, LeaseWord::Asked) != answer.sequence {
            return None;
        }
        let wanted = self.get(state, LeaseWord::AskedWanted);
        let granted = answer.granted.min(wanted);
        if self.is_by_key() {
            self.count_from_answer(state);
            let free_at = attempt_at.saturating_add(answer.free_in);
            self.put(state, LeaseWord::FreeAt, free_at);
        }
        let spent = self.get(state, LeaseWord::Spent);
        let until = attempt_at.saturating_add(by_slow_clock(answer.remaining));
        let kept = if self.is_held() {
            // Places that the store has let go in the meantime are not kept.
            if self.is_valid(state, now) {
                self.get(state, LeaseWord::Allowance)
            } else {
                0
            }
        } else {
            // What the outage policy has admitted since is not taken from what was granted.
            let kept = self
                .get(state, LeaseWord::AskedSpent)
                .saturating_add(self.get(state, LeaseWord::AskedHeld))
                .saturating_add(self.ungranted_since_asked(state));
            // What was kept of a lease that is over cannot be spent any more, and what was spent beyond it is owed.
            if self.is_valid(state, now) && self.get(state, LeaseWord::SelfGranted) == 0 {
                kept
            } else {
                kept.min(spent)
            }
        };
        self.put(state, LeaseWord::Asked, 0);
        self.put(state, LeaseWord::Reported, self.get(state, LeaseWord::AskedSpent));
        let allowance = kept.saturating_add(granted);
        let self_granted = self.self_granted_left(state, now);
        let is_enough = granted > 0
            && if self.is_held() {
                // Places that were taken by policy are not lost to a grant that is smaller.
                allowance >= self.in_use(state)
            } else {
                // The last units of a window are handed out one by one, so what is granted of it seldom lasts.
                self.is_in_windows()
                    || self.lasts_until_asked_again(granted, wanted)
                    || self_granted.is_some_and(|left| left < granted)
            };
        match answer.quarantine {
            Some(quarantine) => self.begin_outage(state, now, quarantine.code),
            None => self.end_outage(state, now, is_enough),
        }
        self.put(state, LeaseWord::AnsweredAt, now.monotonic);
        self.note_round_trip(state, now.monotonic.saturating_sub(attempt_at));
        self.put(state, LeaseWord::Share, answer.share.min(self.capacity));
        if self.is_held() {
            self.put(state, LeaseWord::Ceiling, answer.ceiling);
        }
        self.put(state, LeaseWord::Hosts, answer.hosts);
        let drained_at = attempt_at.saturating_add(by_slow_clock(answer.drained_in));
        self.put(state, LeaseWord::DrainedAt, drained_at);
        self.put(state, LeaseWord::Short, u64::from(granted < wanted));
        self.put(state, LeaseWord::Available, answer.available);
        let pace = self.pace();
        let retry_at = match answer.quarantine {
            // What is leased is renewed before it is over.
            Some(quarantine) => {
                let over_at = now.monotonic.saturating_add(quarantine.remaining);
                let looked_at_after = if self.is_by_key() {
                    self.reports_gathered_for()
                } else {
                    0
                };
                let renewed_at = until.saturating_sub(pace + looked_at_after);
                if renewed_at > now.monotonic {
                    over_at.min(renewed_at)
                } else {
                    over_at
                }
            }
            None if granted < wanted || self.is_out(state, now) => {
                let paced = now
                    .monotonic
                    .saturating_add(pace)
                    .saturating_add(self.jitter(state, pace / JITTER));
                if self.is_in_windows() {
                    // By then the window has turned in the store as well, because its answer was given before now.
                    paced.min(by_fast_clock(answer.remaining).saturating_add(now.monotonic))
                } else {
                    paced
                }
            }
            None => 0,
        };
        self.put(state, LeaseWord::RetryAt, retry_at);
        if self_granted.is_some() && self.is_out(state, now) {
            // Were this forgotten, the host would grant itself as much again. So the store takes back what it has granted,
            // because the next request says that nothing of it is held.
            return Some(Installed { granted: 0 });
        }
        let is_something = allowance > if self.is_held() { 0 } else { spent };
        let is_leased = until > now.monotonic && is_something;
        self.end(state);
        if !is_leased {
            if self.is_in_windows() && granted < wanted && until > now.monotonic {
                // That nothing is left holds until the window ends.
                self.put(state, LeaseWord::ValidUntil, until);
            }
            return Some(Installed { granted: 0 });
        }
        self.put(state, LeaseWord::Allowance, allowance);
        self.put(state, LeaseWord::ValidUntil, until);
        // What is leased until the window's end has to last until then. The next window will be asked for, and requests
        // are paced.
        let ends_soon = self.is_in_windows() && self.is_cut(state) && until - now.monotonic <= 2 * pace;
        let low_water = if ends_soon { 0 } else { self.left(state) / 2 };
        self.put(state, LeaseWord::LowWater, low_water);
        if granted > 0 {
            self.put(state, LeaseWord::GrantNumber, answer.grant_number);
            self.put(state, LeaseWord::SpentAtGrant, spent);
            self.put(state, LeaseWord::TakenOfGrant, 0);
            self.add(state, LeaseWord::Grants, 1);
        }
        Some(Installed { granted })
    }

    /// Notes how long an answer took: the mean moves by a part of the difference.
    fn note_round_trip(&self, state: &mut (impl StateMut + ?Sized), took: u64) {
        let took = took.max(1);
        let mean = match self.get(state, LeaseWord::RoundTrip) {
            0 => took,
            mean => mean - mean / ROUND_TRIPS + took / ROUND_TRIPS,
        };
        self.put(state, LeaseWord::RoundTrip, mean.max(1));
    }

    /// How much of what was spent since the latest request was kept no store has granted.
    fn ungranted_since_asked(&self, state: &(impl State + ?Sized)) -> u64 {
        self.get(state, LeaseWord::Ungranted)
            .saturating_sub(self.get(state, LeaseWord::AskedUngranted))
    }

    /// Notes that an attempt to send request `sequence` failed, and when the next attempt may begin. Returns whether
    /// that request is the unanswered one.
    pub(crate) fn fail(
        &self,
        state: &mut (impl StateMut + ?Sized),
        now: Now,
        sequence: u64,
        problem: Problem,
        retry_at: u64,
    ) -> bool {
        if sequence == 0 || self.get(state, LeaseWord::Asked) != sequence {
            return false;
        }
        self.add(state, LeaseWord::Failures, 1);
        self.put(state, LeaseWord::RetryAt, retry_at);
        if problem.is_outage {
            self.begin_outage(state, now, problem.code);
        } else {
            self.put(state, LeaseWord::Problem, problem.code);
            self.put(state, LeaseWord::OutSince, 0);
            self.put(state, LeaseWord::PolicyUntil, 0);
        }
        if let Some(identity) = problem.new_identity {
            self.go_on_as_another(state, identity);
        }
        true
    }

    /// Continues as another host to the store. The former account belongs to somebody else: a copy of this host, or
    /// this host as it was before it was restored. So nothing is leased under that account any more. What has not been
    /// reported yet counts as spent by the new host before its first request, and is charged.
    fn go_on_as_another(&self, state: &mut (impl StateMut + ?Sized), identity: u64) {
        let spent = self.get(state, LeaseWord::Spent);
        let unreported = spent.saturating_sub(self.get(state, LeaseWord::Reported));
        let ungranted = self.ungranted_since_asked(state).min(unreported);
        for word in [
            LeaseWord::Sequence,
            LeaseWord::Asked,
            LeaseWord::AskedSpent,
            LeaseWord::AskedRefunded,
            LeaseWord::AskedHeld,
            LeaseWord::AskedWanted,
            LeaseWord::AskedUngranted,
            LeaseWord::Refunded,
            LeaseWord::Reported,
            LeaseWord::SpentAtGrant,
            LeaseWord::Began,
        ] {
            self.put(state, word, 0);
        }
        self.put(state, LeaseWord::Identity, identity);
        self.put(state, LeaseWord::Spent, unreported);
        self.put(state, LeaseWord::Ungranted, ungranted);
        self.end(state);
    }
}
