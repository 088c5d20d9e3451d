//! `limitctl apply`.

use std::path::PathBuf;

use clap::Args;

use crate::arguments::{SegmentPath, declaration_for};
use crate::change::Change;
use crate::exit::{ExitCode, Failure};

/// Change a live segment to what a declaration says
///
/// The change takes effect at once for all processes that use the segment. It takes nothing from anyone and gives
/// nothing away: what was counted stays counted, what is held stays held, and a raised limit grants nothing for the past.
///
/// Capacities, windows, bursts, offsets and time zones of calendar windows, leases, the bounds of adaptive limits,
/// near_limit, refund, shadow, batch sizes, weights of tiers, collect_within, metadata and when_full can change. gcra,
/// token_bucket and leaky_bucket can replace one another, and tiers can be added after the existing ones. Anything else
/// needs another segment: if anything of that kind differs, each difference is named, nothing is changed, and the exit
/// code is 4. Sizes that the declaration does not name stay as they are.
///
/// Programs that open the segment with another declaration and would apply it leave this change alone until their
/// declaration has a higher version. If the declaration has a version, it comes into force too, even a lower one;
/// otherwise the version stays.
#[derive(Args, Debug)]
pub struct Apply {
    #[command(flatten)]
    change: Change,

    #[command(flatten)]
    segment: SegmentPath,

    /// The declaration, in TOML
    ///
    /// As for `limitctl create`, with all sets of the segment. Its path and mode, if any, are ignored.
    declaration: PathBuf,
}

impl Apply {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let asked = declaration_for(&self.segment.path, &self.declaration)?;
        self.change.carry_out(&self.segment.path, |_| Ok(asked))
    }
}
