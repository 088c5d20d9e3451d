//! What cannot be read as what it should be.

/// A text that is none of a [`Window`](crate::Window), an [`Amount`](crate::Amount), an
/// [`Algorithm`](crate::Algorithm) or another of the words of declarations.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not {what}: {advice}")]
#[non_exhaustive]
pub struct ParseError {
    /// The text.
    pub given: String,
    /// What it should be, such as `a window`.
    pub what: &'static str,
    /// How that is written.
    pub advice: &'static str,
}

impl ParseError {
    pub(crate) fn new(given: &str, what: &'static str, advice: &'static str) -> Self {
        Self {
            given: given.to_owned(),
            what,
            advice,
        }
    }
}
