//! How long units are leased for.

use std::fmt;
use std::time::Duration;

use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize, Serializer};

use super::window::Window;

/// What `lease` says about a limit that hosts share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::declaration) enum LeaseLength {
    /// It follows from the limit.
    #[default]
    Auto,
    Declared(Window),
}

const AUTO: &str = "auto";

impl LeaseLength {
    pub(super) fn declared(self) -> Option<Duration> {
        match self {
            Self::Declared(Window::Span(length)) => Some(length),
            _ => None,
        }
    }
}

impl fmt::Display for LeaseLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str(AUTO),
            Self::Declared(length) => length.fmt(f),
        }
    }
}

impl Serialize for LeaseLength {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for LeaseLength {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == AUTO {
            return Ok(Self::Auto);
        }
        text.parse().map(Self::Declared).map_err(|error| {
            de::Error::custom(format_args!(
                "{text:?} is not a length for a lease: write \"auto\", or a length from \"100ms\" to \"1h\" ({error})"
            ))
        })
    }
}
