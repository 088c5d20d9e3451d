//! `limitctl reset`.

use std::path::PathBuf;

use clap::Args;
use shmlimit::LimitSet;

use crate::arguments::Access;
use crate::exit::{ExitCode, Failure};
use crate::output;
use crate::text::sanitise;

/// Replenish limits
///
/// Replenishes limits, as if nothing had been taken yet. What processes hold stays held. A reset of all limits of a
/// poisoned set heals it.
#[derive(Args, Debug)]
pub struct Reset {
    #[command(flatten)]
    access: Access,

    /// Also set the counters of the set to zero
    ///
    /// Also sets the counters of the set, and of all its limits, to zero.
    #[arg(long)]
    counters: bool,

    /// The segment
    ///
    /// The file of the segment.
    path: PathBuf,

    /// The set; every set unless given
    ///
    /// The name of the set; every set unless given.
    set: Option<String>,

    /// Limits of the set; all of them unless given
    ///
    /// The names of limits of the set; all of them unless given.
    #[arg(value_name = "LIMIT")]
    limits: Vec<String>,
}

impl Reset {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let segment = self.access.options().open(&self.path)?;
        let sets: Vec<LimitSet> = match &self.set {
            Some(name) => vec![segment.set(name)?],
            None => segment.sets().collect(),
        };
        let limits: Vec<&str> = self.limits.iter().map(String::as_str).collect();
        let mut text = String::new();
        for set in sets {
            set.reset(&limits, self.counters)?;
            let replenished: Vec<&str> = set
                .limits()
                .filter(|name| limits.is_empty() || limits.contains(name))
                .collect();
            text.push_str(&sanitise::line(&format!(
                "{}: replenished {}",
                set.name(),
                replenished.join(", ")
            )));
            text.push_str(if self.counters {
                "; zeroed the counters\n"
            } else {
                "\n"
            });
        }
        output::print(&text)?;
        Ok(ExitCode::Done)
    }
}
