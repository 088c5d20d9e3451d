//! Arguments that verbs share.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use shmlimit::{Declaration, OpenOptions};

use crate::exit::{ExitCode, Failure};
use crate::output;
use crate::text::human;

/// Parses a time such as `500ms`; a bare number counts seconds, as for flock and timeout.
pub fn duration(text: &str) -> Result<Duration, String> {
    if text
        .chars()
        .all(|character| character.is_ascii_digit() || character == '.')
        && let Ok(seconds) = text.parse()
    {
        return Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string());
    }
    humantime::parse_duration(text).map_err(|error| error.to_string())
}

/// Parses the time between two looks at a segment.
pub fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration(text)?;
    if (MIN_INTERVAL..=MAX_INTERVAL).contains(&interval) {
        Ok(interval)
    } else {
        Err(format!(
            "it must be between {} and {}",
            human::duration(MIN_INTERVAL),
            human::duration(MAX_INTERVAL)
        ))
    }
}

const MIN_INTERVAL: Duration = Duration::from_millis(10);
const MAX_INTERVAL: Duration = Duration::from_secs(86_400);

/// A segment to look at, and how to print what is found.
#[derive(Args, Clone, Debug)]
pub struct Looking {
    #[command(flatten)]
    pub form: Form,

    #[command(flatten)]
    pub segment: SegmentPath,
}

/// Which segment.
#[derive(Args, Clone, Debug)]
pub struct SegmentPath {
    /// The segment
    ///
    /// A file made by `limitctl create` or a program, or a directory with one per set. Symbolic links are not followed.
    #[arg(value_name = "SEGMENT")]
    pub path: PathBuf,
}

/// Reads the declaration in `file`, which is for `segment`. If that fails and the two seem to be named the other way
/// round, the message says so.
pub fn declaration_for(segment: &Path, file: &Path) -> Result<Declaration, Failure> {
    Declaration::from_toml_file(file).map_err(|error| {
        let mut failure = Failure::from(error);
        if segment.extension().is_some_and(|extension| extension == "toml") {
            let (segment, file) = (human::path(segment), human::path(file));
            let hint = format!("; the segment is named before its declaration: `{file} {segment}`");
            failure.message.push_str(&hint);
        }
        failure
    })
}

/// How a verb prints what it found or did.
#[derive(Args, Clone, Copy, Debug)]
pub struct Form {
    /// Print JSON
    ///
    /// It says the same as the text. Amounts are in the units in which the limits count, times in seconds.
    #[arg(long)]
    pub json: bool,
}

/// What a verb found or did: serialised for `--json`, and as text.
pub trait Report: Serialize {
    fn text(&self) -> String;
}

impl Form {
    pub fn print(self, report: &impl Report) -> Result<ExitCode, Failure> {
        if self.json {
            output::print_json(report)?;
        } else {
            output::print(&report.text())?;
        }
        Ok(ExitCode::DONE)
    }
}

/// Which files a verb that writes accepts.
#[derive(Args, Clone, Copy, Debug)]
pub struct Trust {
    /// Accept a file that someone else may have planted
    ///
    /// That is one that anyone may write to, or one of another user in a directory that others may write to. Anyone who
    /// can write to the file can crash this program.
    #[arg(long)]
    trust_any_owner: bool,
}

/// How a verb attaches to a segment.
#[derive(Args, Clone, Copy, Debug)]
pub struct Access {
    #[command(flatten)]
    trust: Trust,

    /// How long to wait for the lock of a set, such as 500ms or 5s
    ///
    /// Locks are held for well under a microsecond, so it only ever waits for a process that is stopped or writes a core
    /// dump.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    lock_timeout: Duration,
}

impl Trust {
    pub fn options(self) -> OpenOptions {
        OpenOptions::new().trust_any_owner(self.trust_any_owner)
    }
}

impl Access {
    pub fn options(self) -> OpenOptions {
        self.trust.options().lock_timeout(self.lock_timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_number_counts_seconds() {
        for (text, millis) in [
            ("0", 0),
            ("2", 2000),
            ("0.25", 250),
            ("250ms", 250),
            ("1m 1s", 61_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", ".", "-1", "1e3", "inf", "soon", "99999999999999999999999"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
