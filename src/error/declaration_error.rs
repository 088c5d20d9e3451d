//! What can be wrong with a declaration.

use std::io;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::path::PathBuf;

/// What is wrong with a declaration: where, what was given, and what to do about it.
///
/// `place` reads like `set "openai" / limit "tokens" / window`, the same way as
/// [`Difference::path`](crate::Difference::path).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeclarationError {
    /// The file could not be read.
    #[error("cannot read the declaration {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The text is not TOML, or has a field that is unknown, missing or of the wrong type.
    #[error("{origin} is not a declaration: {reason}")]
    Syntax {
        /// Where the text came from.
        origin: String,
        /// What is wrong and in which line, over several lines.
        reason: String,
    },
    /// The declaration cannot be written as TOML, whose strings are Unicode.
    #[error("{place}: {given} is not Unicode and cannot be written as TOML: choose another")]
    NotUnicode {
        /// The field.
        place: String,
        /// Its value, as far as it can be shown.
        given: String,
    },
    /// A name is empty or too long, or has control characters; of a set, a limit or a tier also: a part of
    /// it between `/` is empty or begins with `.`, as those of paths may.
    #[error("{place}: {given:?} is not a name: {rule}")]
    Name {
        /// What is named.
        place: String,
        /// The name.
        given: String,
        /// What a name there must be.
        rule: &'static str,
    },
    /// Two sets of a declaration, or two limits of a set, have the same name.
    #[error("{place} is declared twice: give each a name of its own")]
    Duplicate {
        /// The second of them.
        place: String,
    },
    /// A number, or the number of things declared, is out of range.
    #[error("{place}: {given} is out of range: choose from {min} to {max}")]
    OutOfRange {
        /// The field.
        place: String,
        /// What was declared.
        given: u64,
        /// The least that is allowed.
        min: u64,
        /// The most that is allowed.
        max: u64,
    },
    /// A value cannot be what the field needs.
    #[error("{place}: {given} {problem}")]
    Value {
        /// The field.
        place: String,
        /// What was declared.
        given: String,
        /// What is wrong with it and what to do.
        problem: String,
    },
    /// A field that the limit needs is not there.
    #[error("{place} is missing: {advice}")]
    Missing {
        /// The field.
        place: String,
        /// What to do.
        advice: String,
    },
    /// A field that has no meaning beside the others.
    #[error("{place}: {given} has no meaning here: {advice}")]
    Misplaced {
        /// The field.
        place: String,
        /// What was declared.
        given: String,
        /// What to do.
        advice: String,
    },
    /// The burst of a [`Gcra`](crate::Algorithm::Gcra), token bucket or leaky bucket is larger than what is counted
    /// exactly over its window until the segment's clock has run for 292 years. Over a window of at most 292 years every
    /// burst is counted exactly, and over a longer one every burst of up to 2^63 units.
    #[error(
        "{place}: over so long a window a burst of {given} units cannot be counted exactly: declare a burst of {max} \
         units or less, or a window of at most 292 years"
    )]
    InexactBurst {
        /// The limit.
        place: String,
        /// The burst, in units.
        given: u64,
        /// The largest that can be declared with this capacity and window, in units.
        max: u64,
    },
    /// The URL of the store that hosts share cannot be one. The message does not repeat it, because it may hold a password.
    #[error("{place} {problem}")]
    FleetUrl {
        /// The field.
        place: String,
        /// What is wrong with it and what to do.
        problem: String,
    },
    /// What the algorithm cannot decide by, though each field may be right by itself.
    #[error("{place}: {reason}")]
    Unsuitable {
        /// The limit.
        place: String,
        /// What is wrong and what to do.
        reason: String,
    },
}

// An error is read, and not changed: a panic elsewhere leaves it whole. Not derived, because `std::io::Error` is neither.
impl UnwindSafe for DeclarationError {}
impl RefUnwindSafe for DeclarationError {}
