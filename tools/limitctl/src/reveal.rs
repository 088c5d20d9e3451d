//! How much of keys is shown: so little that what is shown cannot be used in their place, unless it is asked for.

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
    /// Shows everything. For tests of what shows keys.
    #[cfg(test)]
    pub const ALL: Self = Self { reveal: true };

    /// What is shown of a key.
    pub fn label(self, label: &mut KeyLabel) {
        if let (false, Some(kept)) = (self.reveal, &mut label.kept) {
            kept.truncate(key::harmless(kept));
        }
    }

    /// What is shown of a key that was typed.
    pub fn typed(self, typed: &[u8]) -> String {
        if self.reveal {
            key::whole(typed)
        } else {
            key::typed(typed)
        }
    }

    /// What is shown of a row's key.
    pub fn row(self, mut row: KeySnapshot) -> KeySnapshot {
        self.label(&mut row.key);
        row
    }

    /// What is shown of those who hold something of a key, or wait for it.
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
