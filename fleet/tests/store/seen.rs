//! Which answers the traces of the models have produced.

use shmlimit_fleet::StoreAnswer;

/// How often each answer was seen: traces that never produce an answer do not test it.
#[derive(Debug, Default)]
pub struct Seen {
    pub granted: usize,
    pub refused: usize,
    pub repeated: usize,
    pub lapsed: usize,
    pub quarantine: usize,
    pub declared: usize,
    pub stale: usize,
    pub fell: usize,
    /// Records that were gone when their key came back, which only happens with limits by key.
    pub gone: usize,
}

impl Seen {
    pub fn note(&mut self, answer: &StoreAnswer, held: u64, is_repeat: bool) {
        match answer {
            StoreAnswer::Granted(grant) if !grant.reply.quarantine.is_zero() => self.quarantine += 1,
            StoreAnswer::Granted(grant) if grant.kept < held => self.lapsed += 1,
            StoreAnswer::Granted(_) if is_repeat => self.repeated += 1,
            StoreAnswer::Granted(grant) if grant.reply.granted > 0 => self.granted += 1,
            StoreAnswer::Granted(_) => self.refused += 1,
            StoreAnswer::Declared { .. } => self.declared += 1,
            StoreAnswer::Stale { .. } => self.stale += 1,
            StoreAnswer::SpentFell { .. } => self.fell += 1,
            _ => panic!("{answer:?}"),
        }
    }
}
