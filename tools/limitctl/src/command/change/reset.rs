//! `limitctl reset`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::Args;
use shmlimit::request::KeyReset;
use shmlimit::{Error, LimitSet, RequestError};

use crate::arguments::{Access, SegmentPath};
use crate::exit::{ExitCode, Failure};
use crate::output;
use crate::text::{key, sanitise};

/// Replenish limits
///
/// Afterwards it is as if nothing had been taken yet. What processes hold stays held. Resetting all limits of a
/// poisoned set makes it usable again.
#[derive(Args, Debug)]
pub struct Reset {
    #[command(flatten)]
    access: Access,

    /// Also set the counters of the set to zero
    ///
    /// That covers the counters of all its limits, including those that are not named.
    #[arg(long)]
    counters: bool,

    /// Only for this key of a keyed set
    ///
    /// Exactly the bytes that programs use, even if the segment stores no keys. If the limits of the set count networks,
    /// an address, which stands for all networks that contain it. Requests that wait for them are served.
    #[arg(long, value_name = "KEY", requires = "set", conflicts_with = "counters")]
    key: Option<OsString>,

    #[command(flatten)]
    segment: SegmentPath,

    /// The set; every set unless given
    ///
    /// One of the names that `limitctl inspect` shows.
    set: Option<String>,

    /// Limits of the set; all of them unless given
    ///
    /// Names that `limitctl inspect` shows for the set.
    #[arg(value_name = "LIMIT")]
    limits: Vec<String>,
}

impl Reset {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let segment = self.access.options().open(&self.segment.path)?;
        let sets: Vec<LimitSet> = match &self.set {
            Some(name) => vec![segment.set(name)?],
            None => segment.sets().collect(),
        };
        let limits: Vec<&str> = self.limits.iter().map(String::as_str).collect();
        for set in sets {
            let replenished: Vec<&str> = set
                .limits()
                .filter(|name| limits.is_empty() || limits.contains(name))
                .collect();
            let mut whose = set.name().to_owned();
            if let Some(key) = &self.key {
                whose.push_str(&format!(", key {}", key::typed(key.as_bytes())));
                if !reset_key(&set, key, &limits)? {
                    output::print(&format!("{}: has used nothing\n", sanitise::line(&whose)))?;
                    continue;
                }
            } else {
                let mut reset = set.reset();
                if !limits.is_empty() {
                    reset = reset.limits(limits.iter().copied());
                }
                if self.counters {
                    reset = reset.counters();
                }
                reset.run()?;
            }
            let done = sanitise::line(&format!("{whose}: replenished {}", replenished.join(", ")));
            let counters = if self.counters {
                "; zeroed the counters"
            } else {
                ""
            };
            // Printed at once, because another set may be locked by a process that does not release it.
            output::print(&format!("{done}{counters}\n"))?;
        }
        Ok(ExitCode::DONE)
    }
}

/// Replenishes the named limits, or all of them if none is named, of a key or of all networks that contain an address.
/// Returns whether any of these had a row.
fn reset_key(set: &LimitSet, key: &OsStr, limits: &[&str]) -> Result<bool, Error> {
    match set.key(key.as_bytes()) {
        Err(error @ Error::Request(RequestError::AddressRequired { .. })) => {
            let address = key::address(key).ok_or(error)?;
            only(set.address(address)?.reset(), limits).run()
        }
        key => only(key?.reset(), limits).run(),
    }
}

fn only<'a>(reset: KeyReset<'a>, limits: &[&str]) -> KeyReset<'a> {
    if limits.is_empty() {
        reset
    } else {
        reset.limits(limits.iter().copied())
    }
}
