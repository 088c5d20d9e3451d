//! What can be wrong with a declaration.

use std::io;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::path::PathBuf;

use crate::message::debug_is_message;

/// What is wrong with a declaration: where, what was given, and what to do about it.
///
/// `place` reads like `set "openai" / limit "tokens" / window`, as does
/// [`Difference::path`](crate::declare::Difference::path).
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum DeclarationError {
    /// The file could not be read.
    #[error("cannot read the declaration {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The text is not TOML, or a field is unknown, missing or of the wrong type.
    #[error("{origin} is not a declaration: {reason}")]
    Syntax {
        /// Where the text came from.
        origin: String,
        /// What is wrong and on which line; may span several lines.
        reason: String,
    },
    /// The declaration cannot be written as TOML, because TOML strings are Unicode.
    #[error("{place}: {given} is not Unicode and cannot be written as TOML: choose another")]
    NotUnicode {
        /// The field.
        place: String,
        /// Its value, as far as it can be shown.
        given: String,
    },
    /// A name is empty or too long, or has control characters. For a set, a limit or a tier also: a part of it
    /// between `/` is empty or begins with `.`, as parts of paths can.
    #[error("{place}: {given:?} is not a name: {rule}")]
    Name {
        /// What the name is for.
        place: String,
        /// The name.
        given: String,
        /// What a name must be like.
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
        /// The smallest allowed value.
        min: u64,
        /// The largest allowed value.
        max: u64,
    },
    /// The field cannot have this value.
    #[error("{place}: {given} {problem}")]
    Value {
        /// The field.
        place: String,
        /// What was declared.
        given: String,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// A field that the limit needs is missing.
    #[error("{place} is missing: {advice}")]
    Missing {
        /// The field.
        place: String,
        /// What to do.
        advice: String,
    },
    /// A field that has no meaning together with the others.
    #[error("{place}: {given} has no meaning here: {advice}")]
    Misplaced {
        /// The field.
        place: String,
        /// What was declared.
        given: String,
        /// What to do.
        advice: String,
    },
    /// The burst of a [`Gcra`](crate::Algorithm::Gcra), token bucket or leaky bucket is too large to be counted
    /// exactly over its window until the segment's clock has run for 292 years. Over a window of at most 292 years
    /// every burst is counted exactly, and over a longer one every burst of up to 2^63 units.
    #[error(
        "{place}: over so long a window a burst of {given} units cannot be counted exactly: declare a burst of {max} \
         units or less, or a window of at most 292 years"
    )]
    InexactBurst {
        /// The limit.
        place: String,
        /// The burst, in units.
        given: u64,
        /// The largest burst that can be declared with this capacity and window, in units.
        max: u64,
    },
    /// The URL of the store that hosts share is invalid. The message does not repeat it, because it may contain a
    /// password.
    #[error("{place} {problem}")]
    FleetUrl {
        /// The field.
        place: String,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// The algorithm cannot work with this, although each field may be right by itself.
    #[error("{place}: {reason}")]
    Unsuitable {
        /// The limit.
        place: String,
        /// What is wrong, and what to do.
        reason: String,
    },
}

debug_is_message!(DeclarationError);

// Errors are read and never changed, so a panic elsewhere cannot leave one half changed. Not derived, because
// `std::io::Error` is neither.
impl UnwindSafe for DeclarationError {}
impl RefUnwindSafe for DeclarationError {}
