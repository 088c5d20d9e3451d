//! How much of each key is shown: too little to be used in place of the key, unless the user asks for all of it.

use clap::Args;
use shmlimit::snapshot::{KeyLabel, KeySnapshot, SegmentSnapshot};

use crate::text::key;

/// Whether keys are shown whole.
#[derive(Args, Clone, Copy, Debug)]
pub struct Reveal {
    /// Show all that is stored of each key
    ///
    /// Keys are often secrets, such as API keys, and output ends up in logs and tickets. So by default only the first
    /// bytes of each key are shown, a quarter of them and at most four, with its length and its fingerprint, which tells
    /// it from others.
    #[arg(long)]
    reveal: bool,
}

impl Reveal {
    /// Shows everything, for tests of code that shows keys.
    #[cfg(test)]
    pub const ALL: Self = Self { reveal: true };

    /// Cuts a key to what is shown of it.
    pub fn label(self, label: &mut KeyLabel) {
        if let (false, Some(kept)) = (self.reveal, &mut label.kept) {
            kept.truncate(key::harmless(kept));
        }
    }

    /// The part of a typed key that is shown.
    pub fn typed(self, typed: &[u8]) -> String {
        if self.reveal {
            key::whole(typed)
        } else {
            key::typed(typed)
        }
    }

    /// Cuts a row's key to what is shown of it.
    pub fn row(self, mut row: KeySnapshot) -> KeySnapshot {
        self.label(&mut row.key);
        row
    }

    /// Cuts the keys of holds and tickets to what is shown of them.
    pub fn users(self, snapshot: &mut SegmentSnapshot) {
        for set in &mut snapshot.sets {
            let holds = set.holds.iter_mut().map(|hold| &mut hold.key);
            let tickets = set.tickets.iter_mut().map(|ticket| &mut ticket.key);
            for key in holds.chain(tickets).flatten() {
                self.label(key);
            }
        }
    }
}
