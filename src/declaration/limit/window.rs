//! Windows: lengths of time, calendar periods, and where a calendar's day begins.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer};
use serde::ser::{Serialize, Serializer};

use crate::units::nanos_from_duration;
use crate::words::{ParseError, words};

/// The period over which a limit counts.
///
/// In TOML: a length such as `"60s"`, `"1m30s"`, `"500ms"` or `"1.5h"` (numbers, each followed by `d`, `h`, `m`, `s`,
/// `ms`, `us` or `ns`), or `"calendar:day"`, `"calendar:week"`, `"calendar:month"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Window {
    /// A length of time: at least a millisecond, at most `u64::MAX` nanoseconds (584 years). If the capacity or the burst
    /// is huge, the algorithms need a shorter window, and the error says so.
    ///
    /// The minimum is a millisecond because waiters are woken some 50 microseconds late. Declare a shorter window as
    /// a longer one with a proportional capacity, and a `burst` for what may pass at once: 10 in 100 microseconds are
    /// 100 in a millisecond with a burst of 10.
    Span(Duration),
    /// A calendar day. Calendar windows need [`Algorithm::FixedWindow`](crate::Algorithm::FixedWindow) or a budget.
    /// They begin at midnight UTC, at an [offset](crate::Limit::utc_offset_minutes) from it, or by the clock of a [time
    /// zone](crate::Limit::time_zone).
    Day,
    /// A calendar week.
    Week,
    /// A calendar month.
    Month,
}

impl Window {
    /// The units in which a length of time is written, largest first.
    ///
    /// There are no months or years, because their lengths vary. For a calendar month, use [`Window::Month`].
    pub const UNITS: [(&'static str, Duration); 7] = [
        ("d", Duration::from_secs(86_400)),
        ("h", Duration::from_secs(3_600)),
        ("m", Duration::from_secs(60)),
        ("s", Duration::from_secs(1)),
        ("ms", Duration::from_millis(1)),
        ("us", Duration::from_micros(1)),
        ("ns", Duration::from_nanos(1)),
    ];

    pub(in crate::declaration) fn is_calendar(self) -> bool {
        !matches!(self, Self::Span(_))
    }
}

/// Reads the notation of TOML.
///
/// ```
/// use std::time::Duration;
/// use shmlimit::Window;
///
/// assert_eq!("1m30s".parse(), Ok(Window::Span(Duration::from_secs(90))));
/// assert_eq!("1.5m".parse(), Ok(Window::Span(Duration::from_secs(90))));
/// assert_eq!("calendar:day".parse(), Ok(Window::Day));
/// assert_eq!(Window::Span(Duration::from_secs(90)).to_string(), "1m30s");
/// ```
impl FromStr for Window {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text {
            "calendar:day" => Ok(Self::Day),
            "calendar:week" => Ok(Self::Week),
            "calendar:month" => Ok(Self::Month),
            _ => match parse_nanos(text) {
                Some(nanos) => Ok(Self::Span(Duration::from_nanos(nanos))),
                None => Err(ParseError::new(
                    text,
                    "a window",
                    "write a length such as \"60s\", \"1m30s\" or \"500ms\" (d, h, m, s, ms, us, ns; at most 584 \
                     years), or \"calendar:day\", \"calendar:week\" or \"calendar:month\"",
                )),
            },
        }
    }
}

impl From<Duration> for Window {
    fn from(length: Duration) -> Self {
        Self::Span(length)
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = match self {
            Self::Day => return f.write_str("calendar:day"),
            Self::Week => return f.write_str("calendar:week"),
            Self::Month => return f.write_str("calendar:month"),
            Self::Span(length) => length.as_nanos(),
        };
        if rest == 0 {
            return f.write_str("0s");
        }
        for (unit, length) in Self::UNITS {
            let nanos = length.as_nanos();
            if rest >= nanos {
                write!(f, "{}{unit}", rest / nanos)?;
                rest %= nanos;
            }
        }
        Ok(())
    }
}

impl Serialize for Window {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Window {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// Multiplies the number in `text`, such as `90` or `1.5`, by a unit; `None` if the product is not a whole number.
fn parse_times(text: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let part = u128::from(fraction.parse::<u64>().ok()?) * u128::from(unit);
    if !part.is_multiple_of(scale) {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    whole.checked_add(u64::try_from(part / scale).ok()?)
}

/// Sums the pairs of number and unit in `text`, in any order; spaces between pairs are allowed.
fn parse_nanos(text: &str) -> Option<u64> {
    let mut rest = text.trim();
    let mut sum = 0_u64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let letters = after
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(after.len());
        let (name, after) = after.split_at(letters);
        let (_, length) = Window::UNITS.into_iter().find(|(unit, _)| *unit == name)?;
        let nanos = nanos_from_duration(length)?;
        sum = sum.checked_add(parse_times(number, nanos)?)?;
        rest = after.trim_start();
    }
    (!text.trim().is_empty()).then_some(sum)
}

/// The first day of a calendar week.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the days of the week need no explanation")]
pub enum Weekday {
    #[default]
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

words!(Weekday, "a day of the week", {
    Monday = "monday",
    Tuesday = "tuesday",
    Wednesday = "wednesday",
    Thursday = "thursday",
    Friday = "friday",
    Saturday = "saturday",
    Sunday = "sunday",
});

/// Minutes east of UTC, written as in `"+05:30"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::declaration) struct UtcOffset {
    pub(in crate::declaration) minutes: i16,
}

impl UtcOffset {
    /// No place on Earth has been further than 16 hours from UTC; 18 is the bound that ISO 8601 libraries share.
    pub(in crate::declaration) const MAX_MINUTES: u16 = 18 * 60;

    pub(in crate::declaration) fn parse(text: &str) -> Option<Self> {
        let (sign, rest) = match text.as_bytes().first()? {
            b'+' => (1, &text[1..]),
            b'-' => (-1, &text[1..]),
            _ => return None,
        };
        let (hours, minutes) = rest.split_once(':')?;
        let two_digits = |part: &str| {
            let readable = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
            readable.then(|| part.parse::<i16>().ok()).flatten()
        };
        let (hours, minutes) = (two_digits(hours)?, two_digits(minutes)?);
        (minutes < 60).then_some(Self {
            minutes: sign * (hours * 60 + minutes),
        })
    }
}

impl fmt::Display for UtcOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.minutes < 0 { '-' } else { '+' };
        let minutes = self.minutes.unsigned_abs();
        write!(f, "{sign}{:02}:{:02}", minutes / 60, minutes % 60)
    }
}

impl Serialize for UtcOffset {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for UtcOffset {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            de::Error::custom(format_args!(
                "{text:?} is not an offset from UTC: write hours and minutes, such as \"+05:30\" or \"-08:00\""
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::window::*;

    fn span(text: &str) -> Option<Duration> {
        match text.parse().ok()? {
            Window::Span(length) => Some(length),
            _ => None,
        }
    }

    #[test]
    fn lengths_are_sums_of_numbers_with_units() {
        assert_eq!(span("60s"), Some(Duration::from_secs(60)));
        assert_eq!(span("1m30s"), Some(Duration::from_secs(90)));
        assert_eq!(span("1m 30s"), Some(Duration::from_secs(90)));
        assert_eq!(span("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(span("30d"), Some(Duration::from_secs(30 * 86_400)));
        assert_eq!(span("1.5s"), Some(Duration::from_millis(1_500)));
        assert_eq!(span("0.5h"), Some(Duration::from_secs(1_800)));
        assert_eq!(span("1.5h 0.25m"), Some(Duration::from_secs(5_415)));
        assert_eq!(span("0.000000001s"), Some(Duration::from_nanos(1)));
        assert_eq!(
            span("18446744073709551615ns"),
            Some(Duration::from_nanos(u64::MAX))
        );
    }

    #[test]
    fn what_is_not_a_length_is_refused() {
        for text in [
            "",
            " ",
            "60",
            "s",
            "60 s",
            "1month",
            "1y",
            "-1s",
            ".5s",
            "1.s",
            "1.5.5s",
            "1.5ns",
            "0.0000000001s",
            "0.18446744073709551616d",
            "1s,",
            "18446744073709551616ns",
            "600000d",
        ] {
            assert_eq!(span(text), None, "{text:?}");
        }
    }

    #[test]
    fn lengths_are_written_in_the_largest_units() {
        assert_eq!(Window::Span(Duration::from_secs(60)).to_string(), "1m");
        assert_eq!(
            Window::Span(Duration::from_millis(90_500)).to_string(),
            "1m30s500ms"
        );
        assert_eq!(Window::Span(Duration::ZERO).to_string(), "0s");
    }

    #[test]
    fn offsets_are_hours_and_minutes() {
        assert_eq!(UtcOffset::parse("+05:30"), Some(UtcOffset { minutes: 330 }));
        assert_eq!(UtcOffset::parse("-08:00"), Some(UtcOffset { minutes: -480 }));
        for text in [
            "",
            "05:30",
            "+5:30",
            "+05:60",
            "+0530",
            "Z",
            "+05:3",
            "+\u{663}0:00",
            "\u{663}",
        ] {
            assert_eq!(UtcOffset::parse(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn every_length_is_read_back(nanos: u64) {
            let window = Window::Span(Duration::from_nanos(nanos));
            prop_assert_eq!(window.to_string().parse(), Ok(window));
        }

        #[test]
        fn every_offset_is_read_back(minutes in -5999_i16..=5999) {
            let offset = UtcOffset { minutes };
            prop_assert_eq!(UtcOffset::parse(&offset.to_string()), Some(offset));
        }

        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = text.parse::<Window>();
            let _ = UtcOffset::parse(&text);
        }
    }
}
