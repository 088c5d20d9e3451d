//! Times as upstreams write them.

use std::time::{Duration, SystemTime};

/// From this number on, seconds are not a wait of 31 years, but count from the Unix epoch.
const FIRST_EPOCH: f64 = 1e9;

/// From this number on, they are milliseconds since then.
const FIRST_EPOCH_MILLIS: f64 = 1e12;

/// And from this number on, in the year 5138, they are not an instant.
const LAST_EPOCH_MILLIS: f64 = 1e14;

/// How long to wait, from seconds, a duration such as `6m0s`, a date of HTTP or RFC 3339, or an instant in seconds or
/// milliseconds since the Unix epoch. If a list has several, the longest counts. An instant in the past is zero.
pub(super) fn wait_of(text: &str) -> Option<Duration> {
    if let Some(number) = number(text) {
        return Some(match number {
            LAST_EPOCH_MILLIS.. => seconds(number),
            FIRST_EPOCH_MILLIS.. => until(SystemTime::UNIX_EPOCH.checked_add(seconds(number / 1000.0))),
            FIRST_EPOCH.. => until(SystemTime::UNIX_EPOCH.checked_add(seconds(number))),
            _ => seconds(number),
        });
    }
    if let Some(wait) = duration(text) {
        return Some(wait);
    }
    // Dates of mail, which many libraries write, differ from those of HTTP in the zone.
    let zone = ["+0000", "-0000", "UTC"]
        .into_iter()
        .find_map(|zone| text.strip_suffix(zone));
    let date = zone.map_or_else(|| text.to_owned(), |date| format!("{date}GMT"));
    if let Some(instant) = httpdate::parse_http_date(&date).ok().or_else(|| rfc_3339(text)) {
        return Some(until(Some(instant)));
    }
    let (first, rest) = text.split_once(',')?;
    Some(wait_of(first.trim())?.max(wait_of(rest.trim())?))
}

/// A number that is not negative. Whole numbers are the rule; some providers send fractions.
pub(super) fn number(text: &str) -> Option<f64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: f64 = is_plain.then(|| text.parse().ok())??;
    number.is_finite().then_some(number)
}

/// Seconds as a duration, or the longest possible one.
pub(super) fn seconds(number: f64) -> Duration {
    Duration::try_from_secs_f64(number).unwrap_or(Duration::MAX)
}

/// How long it is until then; the longest duration if the system cannot express the instant.
fn until(instant: Option<SystemTime>) -> Duration {
    instant.map_or(Duration::MAX, |instant| {
        instant.duration_since(SystemTime::now()).unwrap_or_default()
    })
}

/// A duration as Go writes it.
fn duration(text: &str) -> Option<Duration> {
    let mut sum = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|character: char| !character.is_ascii_digit() && character != '.')?;
        let (count, unit_and_rest) = rest.split_at(digits);
        let letters = unit_and_rest
            .find(|character: char| character.is_ascii_digit())
            .unwrap_or(unit_and_rest.len());
        let (unit, next) = unit_and_rest.split_at(letters);
        let unit = match unit {
            "d" => 86_400.0,
            "h" => 3_600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" | "μs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        sum = sum.saturating_add(seconds(number(count)? * unit));
        rest = next;
    }
    (!text.is_empty()).then_some(sum)
}

/// An instant such as `2026-01-31T12:00:00.5+01:00`.
fn rfc_3339(text: &str) -> Option<SystemTime> {
    let digits = |part: Option<&str>, most: i64| {
        let part = part.filter(|part| part.bytes().all(|byte| byte.is_ascii_digit()))?;
        part.parse::<i64>().ok().filter(|number| *number <= most)
    };
    let (date, time) = text.split_once(['T', 't', ' '])?;
    let mut date = date.split('-');
    let (year, month, day) = (
        digits(date.next(), 9999)?,
        digits(date.next(), 12)?,
        digits(date.next(), 31)?,
    );
    let (time, offset) = match time.strip_suffix(['Z', 'z']) {
        Some(time) => (time, 0),
        None => {
            let sign = time.rfind(['+', '-'])?;
            let (time, offset) = time.split_at(sign);
            let (hours, minutes) = offset.get(1..)?.split_once(':')?;
            let minutes = digits(Some(hours), 23)? * 60 + digits(Some(minutes), 59)?;
            (
                time,
                if offset.starts_with('-') {
                    -minutes
                } else {
                    minutes
                },
            )
        }
    };
    let mut time = time.splitn(3, ':');
    let (hour, minute) = (digits(time.next(), 23)?, digits(time.next(), 59)?);
    let second = number(time.next()?).filter(|second| *second < 61.0)?;
    if month < 1 || day < 1 || date.next().is_some() {
        return None;
    }
    // Years begin in March here, so that leap days are their last.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days = 365 * year + year.div_euclid(4) - year.div_euclid(100)
        + year.div_euclid(400)
        + (153 * month + 2) / 5
        + day
        - 719_469;
    let whole = days * 86_400 + hour * 3_600 + (minute - offset) * 60;
    match u64::try_from(whole) {
        Ok(whole) => {
            SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(whole).saturating_add(seconds(second)))
        }
        Err(_) => Some(SystemTime::UNIX_EPOCH),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(text: &str) -> Option<f64> {
        let instant = rfc_3339(text)?;
        Some(
            instant
                .duration_since(SystemTime::UNIX_EPOCH)
                .expect("not before")
                .as_secs_f64(),
        )
    }

    #[test]
    fn instants_of_rfc_3339_are_read() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0.0),
            ("2000-02-29T12:34:56Z", 951_827_696.0),
            ("2000-03-01 00:00:00z", 951_868_800.0),
            ("2026-01-31T12:00:00.25+01:00", 1_769_857_200.25),
            ("2026-01-31t12:00:00-05:30", 1_769_880_600.0),
            ("2199-12-31T23:59:60Z", 7_258_118_400.0),
            ("1900-01-01T00:00:00Z", 0.0),
        ] {
            assert_eq!(epoch(text), Some(seconds), "{text}");
        }
        for text in [
            "",
            "T",
            "2026-01-31",
            "2026-01-31T12:00:00",
            "2026-00-01T00:00:00Z",
            "2026-01-31T24:00:00Z",
            "a-b-cTd:e:fZ",
            "2026-1T0:0:0Z",
        ] {
            assert_eq!(epoch(text), None, "{text}");
        }
    }

    #[test]
    fn durations_are_read_as_go_writes_them() {
        for (text, millis) in [
            ("6m0s", 360_000),
            ("1h2m3.5s", 3_723_500),
            ("76ms", 76),
            ("1d", 86_400_000),
            ("0s", 0),
        ] {
            assert_eq!(duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "s", "5", "5 s", "1x", "-1s", "1s2"] {
            assert_eq!(duration(text), None, "{text}");
        }
    }
}
