//! Reading declarations from TOML, and writing them.

use std::fs;
use std::path::Path;
use std::str::FromStr;

use serde::Serialize;
use toml::Table;

use super::{Declaration, known_fields};
use crate::error::DeclarationError;

/// Like [`from_toml`](Declaration::from_toml).
impl FromStr for Declaration {
    type Err = DeclarationError;

    fn from_str(text: &str) -> Result<Self, DeclarationError> {
        Self::from_toml(text)
    }
}

impl Declaration {
    /// Reads a declaration and validates it.
    ///
    /// # Errors
    ///
    /// [`DeclarationError::Syntax`] if the text is not TOML or does not have the documented fields and types, and the
    /// errors of [`validate`](Self::validate).
    pub fn from_toml(text: &str) -> Result<Self, DeclarationError> {
        Self::parse(text, "the text")
    }

    /// Reads a declaration from a file and validates it.
    ///
    /// # Errors
    ///
    /// The errors of [`from_toml`](Self::from_toml), and [`DeclarationError::Unreadable`] if the file cannot be read
    /// or is not UTF-8.
    pub fn from_toml_file(path: impl AsRef<Path>) -> Result<Self, DeclarationError> {
        let path = path.as_ref();
        let text = fs::read_to_string(path).map_err(|source| DeclarationError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text, &path.display().to_string())
    }

    fn parse(text: &str, origin: &str) -> Result<Self, DeclarationError> {
        let declaration: Self = toml::from_str(text).map_err(|error| {
            let mut reason = error.to_string().trim_end().to_owned();
            if let Some(advice) = known_fields::advice(error.message()) {
                reason.push_str(": ");
                reason.push_str(&advice);
            }
            DeclarationError::Syntax {
                origin: origin.to_owned(),
                reason,
            }
        })?;
        declaration.validate()?;
        Ok(declaration)
    }

    /// The declaration as TOML in canonical form: the same text for all declarations that mean the same, with every
    /// default written out, so that it keeps its meaning if defaults change. A leaky bucket declared by `rate` and
    /// `interval` is written that way.
    ///
    /// # Errors
    ///
    /// The errors of [`validate`](Self::validate), and [`DeclarationError::NotUnicode`] for a path that TOML cannot
    /// express.
    pub fn to_toml(&self) -> Result<String, DeclarationError> {
        self.validate()?;
        self.canonical_toml()
    }

    /// The canonical form of a declaration that has been validated.
    pub(super) fn canonical_toml(&self) -> Result<String, DeclarationError> {
        // Only the path can have values that TOML lacks.
        toml::to_string(&self.canonical()).map_err(|_| DeclarationError::NotUnicode {
            place: "segment / path".to_owned(),
            given: format!("{:?}", self.segment.path),
        })
    }
}

/// A value as a table; empty if TOML cannot express it. Writes the value as text and parses that, because a second
/// serializer would add thirty kilobytes to a program.
pub(super) fn as_table(value: &impl Serialize) -> Table {
    let text = toml::to_string(value).unwrap_or_default();
    text.parse().unwrap_or_default()
}
