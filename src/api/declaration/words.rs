//! Choices that are written as one word: in TOML, in JSON and on command lines.

/// Gives an enum its words: `Display`, `FromStr`, and both ways of serde.
macro_rules! implement_words {
    ($choice:ty, $what:literal, { $first:ident = $first_word:literal $(, $variant:ident = $word:literal)* $(,)? }) => {
        impl $choice {
            const WORDS: &[&str] = &[$first_word $(, $word)*];

            const fn word(self) -> &'static str {
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

        /// The word that declarations have for it.
        impl std::fmt::Display for $choice {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.word())
            }
        }

        /// The word that declarations have for it.
        impl std::str::FromStr for $choice {
            type Err = crate::error::ParseError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                const ADVICE: &str = concat!("write one of ", $first_word $(, ", ", $word)*);
                Self::of_word(text).ok_or_else(|| crate::error::ParseError::new(text, $what, ADVICE))
            }
        }

        impl serde::Serialize for $choice {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.word())
            }
        }

        impl<'de> serde::Deserialize<'de> for $choice {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let word = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                Self::of_word(&word).ok_or_else(|| serde::de::Error::unknown_variant(&word, Self::WORDS))
            }
        }

        #[cfg(test)]
        impl $crate::api::declaration::words::Words for $choice {
            fn all() -> Vec<Self> {
                vec![Self::$first $(, Self::$variant)*]
            }
        }
    };
}

pub(super) use implement_words as words;

/// All choices of an enum.
#[cfg(test)]
pub(super) trait Words: Sized {
    fn all() -> Vec<Self>;
}

#[cfg(test)]
mod tests {
    use std::fmt::{Debug, Display};
    use std::str::FromStr;

    use super::Words;
    use crate::api::declaration::{
        Adaptive, Algorithm, Align, ClockSource, Kind, OnDeath, Weekday, WhenFull,
    };
    use crate::error::ParseError;

    fn every_word_is_read_back<T>()
    where
        T: Words + Copy + Debug + Display + PartialEq + FromStr<Err = ParseError>,
        T: serde::Serialize + serde::de::DeserializeOwned,
    {
        for choice in T::all() {
            let word = choice.to_string();
            assert_eq!(word.parse(), Ok(choice));
            let json = serde_json::to_value(choice).expect("a word");
            assert_eq!(json, word);
            assert_eq!(serde_json::from_value::<T>(json).expect("the same"), choice);
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
        every_word_is_read_back::<OnDeath>();
        every_word_is_read_back::<Weekday>();
        every_word_is_read_back::<WhenFull>();
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
