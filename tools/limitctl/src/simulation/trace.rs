//! Traces, which record what was asked for and when, as one JSON object per line.

use std::fmt;
use std::io::{BufRead, Read};

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::error::Category;

use crate::exit::Failure;

/// The longest line. A key of 64 KiB fits, however it is escaped.
const MAX_BYTES: u64 = 1 << 20;

/// The latest instant for which the limits are proven: 2^63 nanoseconds since the Unix epoch.
const LATEST_MS: u64 = (1 << 63) / 1_000_000;

/// An event: one line of a trace.
#[derive(Debug, PartialEq, Eq)]
pub struct Event {
    /// The line, counted from 1.
    pub line: u64,
    /// The time, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    pub action: Action,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    Take(Take),
    /// Reports the actual usage of the request with this id.
    Settle {
        id: String,
        usage: Amounts,
    },
    /// Gives back what is held under the id.
    Release {
        id: String,
    },
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take {
    pub set: String,
    pub key: Option<String>,
    /// The tier that the key is put into.
    pub tier: Option<String>,
    pub cost: Amounts,
    pub ends: Ends,
}

/// What ends a request's hold on what it was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ends {
    /// By later lines, which settle and release it under this id.
    ById(String),
    ByTime(Timing),
}

/// How long a request waits and then holds, in milliseconds, and what it has used by then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// `None` if the request does not wait.
    pub wait_ms: Option<u64>,
    pub hold_ms: u64,
    pub usage: Amounts,
}

/// Units by limit name, in the order of the line.
pub type Amounts = Vec<(String, u64)>;

/// A trace, read line by line.
#[derive(Debug)]
pub struct Trace<R> {
    source: R,
    name: String,
    line: u64,
    latest_ms: u64,
    bytes: Vec<u8>,
}

impl<R: BufRead> Trace<R> {
    /// Makes a trace. Messages call the source `name`.
    pub fn new(source: R, name: String) -> Self {
        Self {
            source,
            name,
            line: 0,
            latest_ms: 0,
            bytes: Vec::new(),
        }
    }

    /// Reads the next event, skipping empty lines. Returns `None` at the end.
    pub fn next_event(&mut self) -> Result<Option<Event>, Failure> {
        loop {
            self.bytes.clear();
            self.line += 1;
            let read = self
                .source
                .by_ref()
                .take(MAX_BYTES)
                .read_until(b'\n', &mut self.bytes);
            match read {
                Ok(0) => return Ok(None),
                Ok(read) if read as u64 == MAX_BYTES && self.bytes.last() != Some(&b'\n') => {
                    return Err(self.mistake("the line is longer than 1 MiB: write one event a line"));
                }
                Ok(_) if self.bytes.trim_ascii().is_empty() => {}
                Ok(_) => break,
                Err(error) => return Err(Failure::of_system(&error, format!("cannot read {}", self.name))),
            }
        }
        let (at_ms, action) = parse(&self.bytes).map_err(|what| self.mistake(&what))?;
        if at_ms > LATEST_MS {
            return Err(self.mistake(&format!(
                "at_ms {at_ms} is after the year 2262: write milliseconds since the Unix epoch"
            )));
        }
        if let Action::Take(Take {
            ends: Ends::ByTime(timing),
            ..
        }) = &action
            && at_ms
                .saturating_add(timing.wait_ms.unwrap_or_default())
                .saturating_add(timing.hold_ms)
                > LATEST_MS
        {
            return Err(self.mistake(
                "it would wait and hold until after the year 2262: write `wait_ms` and `hold_ms` in milliseconds",
            ));
        }
        if at_ms < self.latest_ms {
            return Err(self.mistake(&format!(
                "time runs backwards, from at_ms {} to {at_ms}: sort the trace by at_ms",
                self.latest_ms
            )));
        }
        self.latest_ms = at_ms;
        Ok(Some(Event {
            line: self.line,
            at_ms,
            action,
        }))
    }

    /// Adds the place in the trace to a failure.
    pub fn locate(&self, failure: Failure) -> Failure {
        Failure {
            message: format!("{}, line {}: {}", self.name, self.line, failure.message),
            ..failure
        }
    }

    fn mistake(&self, what: &str) -> Failure {
        self.locate(Failure::bad_trace(what))
    }
}

/// A line, as written.
#[derive(Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    at_ms: u64,
    set: Option<String>,
    key: Option<String>,
    tier: Option<String>,
    #[serde(default, deserialize_with = "amounts")]
    cost: Option<Amounts>,
    wait_ms: Option<u64>,
    hold_ms: Option<u64>,
    #[serde(default, deserialize_with = "id")]
    id: Option<String>,
    #[serde(default, deserialize_with = "id")]
    settle: Option<String>,
    #[serde(default, deserialize_with = "amounts")]
    usage: Option<Amounts>,
    #[serde(default, deserialize_with = "id")]
    release: Option<String>,
}

fn parse(bytes: &[u8]) -> Result<(u64, Action), String> {
    // The parser would also accept a list of the same values, in order.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(r#"not an object: write, for example, {"at_ms": 1000, "set": "api"}"#.to_owned());
    }
    let mut line: Line = serde_json::from_slice(bytes).map_err(|error| explain(&error))?;
    let at_ms = line.at_ms;
    if line.set.is_some() && line.settle.is_none() && line.release.is_none() {
        return Ok((at_ms, Action::Take(take(line)?)));
    }
    let ends = (line.settle.take(), line.usage.take(), line.release.take());
    let nothing_else = Line {
        at_ms,
        ..Line::default()
    };
    match ends {
        (Some(id), Some(usage), None) if line == nothing_else => Ok((at_ms, Action::Settle { id, usage })),
        (None, None, Some(id)) if line == nothing_else => Ok((at_ms, Action::Release { id })),
        (Some(_), None, _) => {
            Err("a settle says what was used: add `usage`, such as {\"tokens\": 900}".to_owned())
        }
        _ => Err(
            "an event is one of three: `set` with `key`, `cost` and `id` as needed; `settle` with `usage`; `release`"
                .to_owned(),
        ),
    }
}

/// The request of a line that names a set.
fn take(line: Line) -> Result<Take, String> {
    let ends = match line {
        Line {
            id: Some(id),
            wait_ms: None,
            hold_ms: None,
            usage: None,
            ..
        } => Ends::ById(id),
        Line { id: Some(_), .. } => {
            return Err(
                "a request with `wait_ms`, `hold_ms` or `usage` needs no `id`: leave it out, or leave those out"
                    .to_owned(),
            );
        }
        Line { id: None, .. } => Ends::ByTime(Timing {
            wait_ms: line.wait_ms,
            hold_ms: line.hold_ms.unwrap_or_default(),
            usage: line.usage.unwrap_or_default(),
        }),
    };
    Ok(Take {
        set: line.set.unwrap_or_default(),
        key: line.key,
        tier: line.tier,
        cost: line.cost.unwrap_or_default(),
        ends,
    })
}

/// Explains what is wrong with a line, and what to do.
fn explain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    // Each line is parsed separately, so the parser's line number is always 1.
    let what = text
        .rsplit_once(" at line ")
        .map_or(text.as_str(), |(what, _)| what);
    match error.classify() {
        Category::Data => format!(
            "column {}: {what}: write, for example, {}",
            error.column(),
            r#"{"at_ms": 1000, "set": "api", "cost": {"requests": 1}}"#
        ),
        Category::Io | Category::Syntax | Category::Eof => {
            format!(
                "column {}: not JSON: {what}: write one object a line",
                error.column()
            )
        }
    }
}

fn amounts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Amounts>, D::Error> {
    struct Object;

    impl<'de> Visitor<'de> for Object {
        type Value = Option<Amounts>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object of limits and whole units")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut amounts = Amounts::new();
            while let Some((name, amount)) = map.next_entry::<String, u64>()? {
                if amounts.iter().any(|(named, _)| *named == name) {
                    return Err(A::Error::custom(format!("limit `{name}` is named twice")));
                }
                amounts.push((name, amount));
            }
            Ok(Some(amounts))
        }
    }

    deserializer.deserialize_any(Object)
}

/// Reads an id, which is a text or a whole number; a number and its digits are the same id.
fn id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "an id is a text or a whole number")]
    enum Id {
        Text(String),
        Number(u64),
        Signed(i64),
    }

    Ok(Option::deserialize(deserializer)?.map(|id| match id {
        Id::Text(text) => text,
        Id::Number(number) => number.to_string(),
        Id::Signed(number) => number.to_string(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::ExitCode;

    fn trace(text: &str) -> Trace<&[u8]> {
        Trace::new(text.as_bytes(), "trace".to_owned())
    }

    fn message(text: &str) -> String {
        let failure = trace(text).next_event().expect_err("a mistake");
        assert_eq!(failure.code, ExitCode::BAD_TRACE);
        failure.message
    }

    #[test]
    fn each_kind_of_event_is_read_and_empty_lines_are_not() {
        let mut trace = trace(concat!(
            "\n  \r\n",
            r#"{"at_ms": 5, "set": "api", "key": "k", "cost": {"b": 2, "a": 1}, "id": 7}"#,
            "\r\n\n",
            r#"{"usage": {"b": 3}, "settle": "7", "at_ms": 5}"#,
            "\n",
            r#"{"at_ms": 6, "release": 7}"#,
            "\n",
            r#"{"at_ms": 6, "set": "api", "tier": "gold", "wait_ms": 9, "hold_ms": 4, "usage": {"b": 1}}"#,
        ));
        let take = Take {
            set: "api".to_owned(),
            key: Some("k".to_owned()),
            tier: None,
            cost: vec![("b".to_owned(), 2), ("a".to_owned(), 1)],
            ends: Ends::ById("7".to_owned()),
        };
        let waits = Take {
            set: "api".to_owned(),
            key: None,
            tier: Some("gold".to_owned()),
            cost: Vec::new(),
            ends: Ends::ByTime(Timing {
                wait_ms: Some(9),
                hold_ms: 4,
                usage: vec![("b".to_owned(), 1)],
            }),
        };
        let settle = Action::Settle {
            id: "7".to_owned(),
            usage: vec![("b".to_owned(), 3)],
        };
        let release = Action::Release { id: "7".to_owned() };
        let events = [
            (3, 5, Action::Take(take)),
            (5, 5, settle),
            (6, 6, release),
            (7, 6, Action::Take(waits)),
        ];
        for (line, at_ms, action) in events {
            let event = trace.next_event().expect("a line").expect("not the end");
            assert_eq!(event, Event { line, at_ms, action });
        }
        assert_eq!(trace.next_event().expect("no mistake"), None);
    }

    #[test]
    fn every_mistake_says_the_line_and_what_to_do() {
        for (text, parts) in [
            ("{", &["line 1", "not JSON", "write one object a line"][..]),
            ("7", &["line 1", "write, for example,"]),
            (
                r#"[1, "api", null, null, null, null, null, null]"#,
                &["not an object"],
            ),
            (r#"{"set": "api"}"#, &["missing field `at_ms`"]),
            (
                r#"{"at_ms": 1.5, "set": "api"}"#,
                &["column 13", "floating point `1.5`"],
            ),
            (r#"{"at_ms": -1, "set": "api"}"#, &["integer `-1`"]),
            (r#"{"at_ms": 1, "sets": "api"}"#, &["unknown field `sets`"]),
            (
                r#"{"at_ms": 1, "set": "a", "cost": {"n": -2}}"#,
                &["integer `-2`"],
            ),
            (
                r#"{"at_ms": 1, "set": "a", "cost": {"n": 1, "n": 2}}"#,
                &["`n` is named twice"],
            ),
            (r#"{"at_ms": 1, "set": "a", "cost": 3}"#, &["an object of limits"]),
            (r#"{"at_ms": 1, "release": 1.5}"#, &["a text or a whole number"]),
            (r#"{"at_ms": 1}"#, &["one of three"]),
            (
                r#"{"at_ms": 1, "set": "a", "id": 1, "wait_ms": 5}"#,
                &["or `usage` needs no `id`"],
            ),
            (r#"{"at_ms": 1, "release": 1, "hold_ms": 5}"#, &["one of three"]),
            (r#"{"at_ms": 1, "set": "a", "release": 1}"#, &["one of three"]),
            (r#"{"at_ms": 1, "release": 1, "usage": {}}"#, &["one of three"]),
            (r#"{"at_ms": 1, "settle": 1}"#, &["add `usage`"]),
            (
                r#"{"at_ms": 1, "set": "a", "hold_ms": 9223372036854}"#,
                &["until after the year 2262"],
            ),
            (
                r#"{"at_ms": 1, "set": "a", "wait_ms": 18446744073709551615}"#,
                &["until after the year 2262"],
            ),
            (
                r#"{"at_ms": 9223372036855, "release": 1}"#,
                &["after the year 2262"],
            ),
        ] {
            let message = message(text);
            for part in parts.iter().chain(&["trace, line 1: "]) {
                assert!(message.contains(part), "{part} in {message}");
            }
        }
    }

    #[test]
    fn time_that_runs_backwards_is_a_mistake_of_the_later_line() {
        let mut trace = trace("{\"at_ms\": 9, \"release\": 1}\n\n{\"at_ms\": 8, \"release\": 1}");
        assert!(trace.next_event().is_ok());
        let failure = trace.next_event().expect_err("it is earlier");
        assert_eq!(
            failure.message,
            "trace, line 3: time runs backwards, from at_ms 9 to 8: sort the trace by at_ms"
        );
    }

    #[test]
    fn a_line_without_end_is_not_read_for_ever() {
        let endless = std::io::BufReader::new(std::io::repeat(b' '));
        let failure = Trace::new(endless, "trace".to_owned())
            .next_event()
            .expect_err("too long");
        assert!(failure.message.contains("longer than 1 MiB"), "{failure:?}");
    }
}
