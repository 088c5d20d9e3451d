//! Choices that are written as one word: in TOML, in JSON, on command lines and in Python.

use crate::message::debug_is_message;

/// A text that is not a valid [`Window`](crate::Window), [`Amount`](crate::declare::Amount), [`Algorithm`](crate::Algorithm)
/// or other choice written as a word.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not {what}: {advice}")]
#[non_exhaustive]
pub struct ParseError {
    /// The text.
    pub given: String,
    /// What it should be, such as `a window`.
    pub what: &'static str,
    /// How to write that.
    pub advice: &'static str,
}

debug_is_message!(ParseError);

impl ParseError {
    pub(crate) fn new(given: &str, what: &'static str, advice: &'static str) -> Self {
        Self {
            given: given.to_owned(),
            what,
            advice,
        }
    }
}

/// Gives an enum its words: `as_str`, `Display`, `FromStr`, and serde's two traits.
macro_rules! implement_words {
    ($choice:ty, $what:literal, { $first:ident = $first_word:literal $(, $variant:ident = $word:literal)* $(,)? }) => {
        impl $choice {
            /// The word for it, as `FromStr` reads it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    Self::$first => $first_word,
                    $(Self::$variant => $word,)*
                }
            }

            fn of_word(word: &str) -> Option<Self> {
                match word {
                    $first_word => Some(Self::$first),
                    $($word => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }

        /// Writes its [word](Self::as_str).
        impl std::fmt::Display for $choice {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        /// Parses its [word](Self::as_str).
        impl std::str::FromStr for $choice {
            type Err = $crate::words::ParseError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                const ADVICE: &str = concat!("write one of ", $first_word $(, ", ", $word)*);
                Self::of_word(text).ok_or_else(|| $crate::words::ParseError::new(text, $what, ADVICE))
            }
        }

        impl serde::Serialize for $choice {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $choice {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                const WORDS: &[&str] = &[$first_word $(, $word)*];
                let word = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                Self::of_word(&word).ok_or_else(|| serde::de::Error::unknown_variant(&word, WORDS))
            }
        }

        #[cfg(test)]
        impl $crate::words::Words for $choice {
            const ALL: &[Self] = &[Self::$first $(, Self::$variant)*];
        }
    };
}

pub(crate) use implement_words as words;

/// All choices of an enum.
#[cfg(test)]
pub(crate) trait Words: Sized + 'static {
    const ALL: &[Self];
}

#[cfg(test)]
mod tests {
    use std::fmt::{Debug, Display};
    use std::str::FromStr;

    use super::{ParseError, Words};
    use crate::declare::{
        Adaptive, Align, ClockSource, Kind, LockKind, MismatchOutcome, OnMismatch, Outage, Weekday, WhenFull,
    };
    use crate::pool::PoolStrategy;
    use crate::{Algorithm, RefusalReason, Removal, RemovalCause};

    fn every_word_is_read_back<T>()
    where
        T: Words + Copy + Debug + Display + PartialEq + FromStr<Err = ParseError>,
        T: serde::Serialize + serde::de::DeserializeOwned,
    {
        for choice in T::ALL {
            let word = choice.to_string();
            assert_eq!(word.parse(), Ok(*choice));
            let json = serde_json::to_value(choice).expect("a word");
            assert_eq!(json, word);
            assert_eq!(serde_json::from_value::<T>(json).expect("the same"), *choice);
            let shouted = word.to_uppercase().parse::<T>().expect_err("no word");
            assert!(shouted.to_string().contains(&word), "{shouted}");
        }
    }

    #[test]
    fn every_choice_is_read_back_from_its_word() {
        every_word_is_read_back::<Adaptive>();
        every_word_is_read_back::<Algorithm>();
        every_word_is_read_back::<Align>();
        every_word_is_read_back::<ClockSource>();
        every_word_is_read_back::<Kind>();
        every_word_is_read_back::<LockKind>();
        every_word_is_read_back::<MismatchOutcome>();
        every_word_is_read_back::<OnMismatch>();
        every_word_is_read_back::<Outage>();
        every_word_is_read_back::<PoolStrategy>();
        every_word_is_read_back::<RefusalReason>();
        every_word_is_read_back::<Removal>();
        every_word_is_read_back::<RemovalCause>();
        every_word_is_read_back::<crate::fleet::StoreProblem>();
        every_word_is_read_back::<Weekday>();
        every_word_is_read_back::<WhenFull>();
        every_word_is_read_back::<crate::headers::Advertise>();
        #[cfg(feature = "tower")]
        every_word_is_read_back::<crate::layer::OnError>();
    }

    #[test]
    fn what_is_no_word_is_named_with_those_that_are() {
        let error = "utf".parse::<Align>().expect_err("no word");
        assert_eq!(
            error.to_string(),
            "\"utf\" is not an alignment: write one of utc, first_use"
        );
    }
}
