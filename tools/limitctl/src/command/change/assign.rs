//! `limitctl assign`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::Args;

use super::note_if_new;
use crate::arguments::{Access, SegmentPath};
use crate::exit::{ExitCode, Failure};
use crate::output;
use crate::text::{key, sanitise};

/// Put a key of a keyed set into a tier
///
/// It stays there until it is assigned to another tier or a request names one. What it has used migrates as with `limitctl apply`, and its waiters are served by the new limits:
///
///     limitctl assign /dev/shm/gateway.limits tenants acme gold
///
/// Under gcra, token_bucket and leaky_bucket, what is left stays, and refills at the new rate; `limitctl reset --key` replenishes it at once.
///
/// The key keeps its row until it is back in the tier `default`, unless the set is declared to evict.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub struct Assign {
    #[command(flatten)]
    access: Access,

    #[command(flatten)]
    segment: SegmentPath,

    /// The set
    ///
    /// One of the names that `limitctl inspect` shows.
    set: String,

    /// The key
    ///
    /// Exactly the bytes that programs use, even if the segment stores no keys.
    key: OsString,

    /// The tier
    ///
    /// One that `limitctl inspect` shows for the set, or default.
    tier: String,
}

impl Assign {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let segment = self.access.options().open(&self.segment.path)?;
        let set = segment.set(&self.set)?;
        let key = set.key(self.key.as_bytes())?;
        let before = key.tier()?;
        let unknown = note_if_new(&segment, &self.set, self.key.as_bytes())?;
        key.assign(&self.tier)?;
        let whose = format!("{}, key {}", set.name(), key::typed(self.key.as_bytes()));
        let change = if before == self.tier {
            format!("is in {before}")
        } else {
            format!("from {before} to {}", self.tier)
        };
        output::print(&format!(
            "{}\n",
            sanitise::line(&format!("{whose}: {change}{unknown}"))
        ))?;
        Ok(ExitCode::DONE)
    }
}
