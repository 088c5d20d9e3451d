//! Hosts that wait for their share of the places of a concurrency limit.

const QUEUED: usize = 64;

/// Hosts that have less than an even share and want more, in the order in which they came, with the instant at which
/// each last asked.
#[derive(Clone, Debug, Default)]
pub(super) struct PlaceQueue {
    waiting: Vec<(u64, u64)>,
}

impl PlaceQueue {
    /// Notes that a host asks. Hosts that have not asked for longer than `patience` no longer wait. Returns how many
    /// are ahead of it.
    pub(super) fn note(&mut self, host: u64, is_waiting: bool, now: u64, patience: u64) -> u64 {
        self.waiting
            .retain(|(other, asked_at)| *other == host || now - asked_at <= patience);
        if !is_waiting {
            self.leave(host);
        }
        let place = self.waiting.iter().position(|(other, _)| *other == host);
        let ahead = place.unwrap_or(self.waiting.len());
        match self.waiting.get_mut(ahead) {
            Some(waiting) => waiting.1 = now,
            None if is_waiting && ahead < QUEUED => self.waiting.push((host, now)),
            None => {}
        }
        ahead as u64
    }

    /// Removes a host that has its share.
    pub(super) fn leave(&mut self, host: u64) {
        self.waiting.retain(|(other, _)| *other != host);
    }

    pub(super) fn is_waited_in_by_others(&self, host: u64) -> bool {
        self.waiting.iter().any(|(other, _)| *other != host)
    }
}
