//! The permissions of a segment's file, as they are written.

use std::fmt;

use serde::de::{self, Deserializer};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

/// A file mode, written as in `"0660"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::declaration) struct FileMode(pub(in crate::declaration) u32);

impl fmt::Display for FileMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl Serialize for FileMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FileMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InQuotes;

        impl de::Visitor<'_> for InQuotes {
            type Value = FileMode;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mode of octal digits in quotes, such as \"0660\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<FileMode, E> {
                let digits = !text.is_empty() && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
                let mode = digits.then(|| u32::from_str_radix(text, 8).ok()).flatten();
                mode.map(FileMode)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }

        deserializer.deserialize_str(InQuotes)
    }
}
