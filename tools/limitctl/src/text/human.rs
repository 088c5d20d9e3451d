//! Human-readable numbers.

use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use serde::Serializer;
use shmlimit::Window;

/// A length of time: from one minute, in its two largest units; below that, in one unit with up to three digits.
pub fn duration(length: Duration) -> String {
    let nanos = length.as_nanos();
    let units = Window::UNITS.map(|(name, size)| (name, size.as_nanos()));
    let Some(position) = units.iter().position(|(_, size)| nanos >= *size) else {
        return "0s".to_owned();
    };
    let (name, size) = units[position];
    let whole = nanos / size;
    let rest = nanos % size;
    if matches!(name, "d" | "h" | "m") {
        let (smaller, smaller_size) = units[position + 1];
        return match rest / smaller_size {
            0 => format!("{whole}{name}"),
            more => format!("{whole}{name}{more}{smaller}"),
        };
    }
    // The fraction is truncated rather than rounded, so that 999.9 ms never shows as 1000.
    let decimals = match whole {
        100.. => 0,
        10.. => 1,
        _ => 2,
    };
    let fraction = rest * 10_u128.pow(decimals) / size;
    let digits = format!("{fraction:0>width$}", width = decimals as usize);
    let digits = if decimals == 0 {
        ""
    } else {
        digits.trim_end_matches('0')
    };
    if digits.is_empty() {
        format!("{whole}{name}")
    } else {
        format!("{whole}.{digits}{name}")
    }
}

/// A number of bytes.
pub fn bytes(count: u64) -> String {
    const NAMES: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut unit = 1024_u64;
    if count < unit {
        return format!("{count} B");
    }
    let mut names = NAMES.iter().peekable();
    while let Some(name) = names.next() {
        if count / unit < 1024 || names.peek().is_none() {
            let tenths = (u128::from(count) * 10 / u128::from(unit)) as u64;
            return format!("{}.{} {name}", tenths / 10, tenths % 10);
        }
        unit *= 1024;
    }
    format!("{count} B")
}

/// A number in groups of three digits.
pub fn count(number: u64) -> String {
    grouped(&number.to_string())
}

/// A decimal number with its whole part in groups of three digits.
pub fn grouped(decimal: &str) -> String {
    let whole = decimal.find('.').unwrap_or(decimal.len());
    let mut text = String::with_capacity(decimal.len() + whole / 3);
    for (index, digit) in decimal.chars().enumerate() {
        if (1..whole).contains(&index) && (whole - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A time in JSON: a number of seconds, as in the library's snapshots.
pub fn as_seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

/// A path as text, which JSON can represent.
pub fn as_text(path: &Path) -> PathBuf {
    path.to_string_lossy().into_owned().into()
}

/// A path as text that is safe to print.
pub fn path(path: &Path) -> String {
    super::sanitise::line(&path.to_string_lossy())
}

/// An instant, as the time since the Unix epoch.
pub fn instant(utc: Duration) -> String {
    let instant = UNIX_EPOCH + utc;
    humantime::format_rfc3339_seconds(instant).to_string()
}

/// An instant in milliseconds since the Unix epoch.
pub fn instant_with_millis(utc_millis: u64) -> String {
    let instant = UNIX_EPOCH + Duration::from_millis(utc_millis);
    humantime::format_rfc3339_millis(instant).to_string()
}

/// The time of day of an instant, in UTC.
pub fn time_of_day(utc: Duration) -> String {
    let seconds = utc.as_secs() % 86_400;
    format!(
        "{:02}:{:02}:{:02}",
        seconds / 3_600,
        seconds / 60 % 60,
        seconds % 60
    )
}

/// Requests per second, in at most ten characters, or a dash if the rate is not known yet.
pub fn rate(per_second: Option<f64>) -> String {
    match per_second {
        None => "-".to_owned(),
        Some(0.0) => "0".to_owned(),
        Some(few) if few < 9.995 => format!("{few:.2}"),
        Some(some) if some < 99.95 => format!("{some:.1}"),
        Some(many) => count(many.round() as u64),
    }
}

/// The counts that are not zero, each with what it counts.
pub fn counted(counts: &[(&str, u64)]) -> String {
    let counts = counts.iter().filter(|(_, number)| *number > 0);
    let texts: Vec<String> = counts
        .map(|(what, number)| format!("{} {what}", count(*number)))
        .collect();
    texts.join(", ")
}

/// A number and what it counts.
pub fn quantity(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_short() {
        for (nanos, text) in [
            (0, "0s"),
            (999, "999ns"),
            (1_500, "1.5us"),
            (999_999_999, "999ms"),
            (1_000_000_000, "1s"),
            (1_050_000_000, "1.05s"),
            (59_960_000_000, "59.9s"),
            (90_000_000_000, "1m30s"),
            (7_200_000_000_000, "2h"),
            (90_061_000_000_000, "1d1h"),
            (u64::MAX, "213503d23h"),
        ] {
            assert_eq!(duration(Duration::from_nanos(nanos)), text, "{nanos}");
        }
    }

    #[test]
    fn bytes_are_in_binary_units() {
        for (number, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_600_000, "1.5 MiB"),
            (u64::MAX, "16383.9 PiB"),
        ] {
            assert_eq!(bytes(number), text, "{number}");
        }
    }

    #[test]
    fn counts_are_grouped() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_000), "1,000");
        assert_eq!(count(u64::MAX), "18,446,744,073,709,551,615");
    }

    #[test]
    fn rates_have_three_digits_at_least() {
        for (rate_, text) in [
            (None, "-"),
            (Some(0.0), "0"),
            (Some(0.5), "0.50"),
            (Some(9.99), "9.99"),
            (Some(9.996), "10.0"),
            (Some(99.96), "100"),
            (Some(12_345.6), "12,346"),
        ] {
            assert_eq!(rate(rate_), text, "{rate_:?}");
        }
    }

    #[test]
    fn any_instant_is_shown() {
        assert_eq!(time_of_day(Duration::from_secs(1_700_000_000)), "22:13:20");
        assert_eq!(instant(Duration::ZERO), "1970-01-01T00:00:00Z");
        assert_eq!(
            instant(Duration::from_secs(1_700_000_000)),
            "2023-11-14T22:13:20Z"
        );
        assert_eq!(instant(Duration::from_nanos(u64::MAX)), "2554-07-21T23:34:33Z");
    }
}
