//! `limitctl throttle`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use clap::Args;

use super::note_if_new;
use crate::arguments::{self, Access, SegmentPath};
use crate::exit::{ExitCode, Failure};
use crate::output;
use crate::text::{human, key, sanitise};

/// Admit nothing for a while
///
/// Until the time is over, requests of all processes are refused, or wait: after a provider has answered 429 with Retry-After, or to keep out a key that does harm. What is held stays held, and those who wait keep their places:
///
///     limitctl throttle /dev/shm/gateway.limits chat 30s
///
///     limitctl throttle --key acme /dev/shm/gateway.limits tenants 10m
///
/// A longer time that is already set stays. `limitctl reset` ends it, and replenishes the limits. A keyed set is throttled as a whole only if it has limits of all keys.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub struct Throttle {
    #[command(flatten)]
    access: Access,

    /// Only this key of a keyed set
    ///
    /// Exactly the bytes that programs use, even if the segment stores no keys.
    #[arg(long, value_name = "KEY")]
    key: Option<OsString>,

    #[command(flatten)]
    segment: SegmentPath,

    /// The set
    ///
    /// One of the names that `limitctl inspect` shows.
    set: String,

    /// For how long, such as 30s or 10m
    ///
    /// A bare number counts seconds. 31 days at most.
    #[arg(value_parser = arguments::duration)]
    time: Duration,
}

impl Throttle {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let segment = self.access.options().open(&self.segment.path)?;
        let set = segment.set(&self.set)?;
        let mut whose = set.name().to_owned();
        let mut unknown = "";
        let throttled_for = match &self.key {
            Some(typed) => {
                let typed = typed.as_bytes();
                whose.push_str(&format!(", key {}", key::typed(typed)));
                let its_key = set.key(typed)?;
                unknown = note_if_new(&segment, &self.set, typed)?;
                its_key.throttle(self.time)?;
                let row = segment.key_snapshot(&self.set, typed)?;
                row.map(|row| row.throttled_for)
            }
            None => {
                set.throttle(self.time)?;
                let sets = segment.snapshot()?.sets;
                let its = sets.into_iter().find(|snapshot| snapshot.name == self.set);
                its.map(|snapshot| snapshot.throttled_for)
            }
        };
        let Some(time) = throttled_for else {
            return Err(Failure::problem(format!(
                "{whose}: not throttled, because every row that the key could have is taken; the key is refused as long as \
                 that is so"
            )));
        };
        let done = if time.is_zero() {
            "not throttled".to_owned()
        } else {
            format!("nothing is admitted for {}", human::duration(time))
        };
        output::print(&format!(
            "{}\n",
            sanitise::line(&format!("{whose}: {done}{unknown}"))
        ))?;
        Ok(ExitCode::DONE)
    }
}
