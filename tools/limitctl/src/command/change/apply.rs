//! `limitctl apply`.

use std::path::PathBuf;

use clap::Args;

use crate::arguments::{SegmentPath, declaration_for};
use crate::change::Change;
use crate::exit::{ExitCode, Failure};

/// Change a live segment to what a declaration says
///
/// For all processes that use it, at once, without taking anything from anyone and without giving anything away: what
/// was counted stays counted, what is held stays held, and a raised limit does not grant the past.
///
/// Capacities, windows, bursts, offsets and time zones of calendar windows, leases, the bounds of adaptive limits, near_limit, refund, shadow, the size of batches, collect_within, metadata and when_full can change, gcra, token_bucket and leaky_bucket can become one another, and tiers can be added behind those that there are. The rest needs another segment: where anything of that differs, all of it is named, nothing is changed, and the exit code is 4. Sizes that the declaration does not name stay as they are.
///
/// Programs that open the segment with another declaration, and apply it, leave what this changes, until their declaration is of a higher version. A version in the declaration comes into force with it, also a lower one; without one, the version stays.
#[derive(Args, Debug)]
pub struct Apply {
    #[command(flatten)]
    change: Change,

    #[command(flatten)]
    segment: SegmentPath,

    /// The declaration, in TOML
    ///
    /// As for `limitctl create`, with all sets of the segment. Its path and mode, if it has them, play no part.
    declaration: PathBuf,
}

impl Apply {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let asked = declaration_for(&self.segment.path, &self.declaration)?;
        self.change.carry_out(&self.segment.path, |_| Ok(asked))
    }
}
