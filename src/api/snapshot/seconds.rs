//! Serialises durations as seconds.

use std::time::Duration;

use serde::Serializer;

pub(in crate::api) fn as_seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

pub(in crate::api) fn as_seconds_if_any<S: Serializer>(
    time: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => as_seconds(time, serializer),
        None => serializer.serialize_none(),
    }
}
