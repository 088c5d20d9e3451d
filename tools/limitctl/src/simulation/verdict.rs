//! The verdicts on the requests of a trace.

use std::time::Duration;

use serde::{Serialize, Serializer};
use shmlimit::{Checked, Permit, Refusal, Verdict};

/// The answer to a request of a trace.
#[derive(Clone, Debug, Serialize)]
pub struct EventVerdict {
    /// When the request was made.
    pub at_ms: u64,
    pub set: String,
    pub key: Option<String>,
    /// How long the request waited, rounded up; `None` if it had to be decided at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// When the request was decided.
    #[serde(skip)]
    pub decided_ms: u64,
    #[serde(flatten)]
    pub answer: Answer,
}

/// One declaration's answer.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    pub admitted: bool,
    /// The limit that refused.
    pub binding: Option<String>,
    #[serde(serialize_with = "as_object")]
    pub limits: Vec<(String, LimitVerdict)>,
    /// The reason for the refusal, in a word.
    #[serde(skip)]
    pub reason: Option<&'static str>,
    /// The units taken, by limit.
    #[serde(skip)]
    pub taken: Vec<(String, u64)>,
}

/// The state of a limit just after the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LimitVerdict {
    /// Whole units of the limit.
    pub remaining: u64,
    /// Rounded up; `None` if time alone does not help.
    pub retry_after_ms: Option<u64>,
    /// Rounded up.
    pub reset_after_ms: u64,
}

impl Answer {
    pub fn admitted(permit: &Permit<'_>) -> Self {
        Self::taking(permit.verdicts(), permit.taken())
    }

    fn taking<'a>(
        verdicts: impl Iterator<Item = Verdict<'a>>,
        taken: impl Iterator<Item = (&'a str, u64)>,
    ) -> Self {
        Self {
            admitted: true,
            binding: None,
            limits: verdicts.map(named).collect(),
            reason: None,
            taken: taken.map(|(limit, units)| (limit.to_owned(), units)).collect(),
        }
    }

    pub fn refused(refusal: &Refusal) -> Self {
        Self {
            admitted: false,
            binding: refusal.binding().map(str::to_owned),
            limits: refusal.verdicts().map(named).collect(),
            reason: Some(refusal.reason().as_str()),
            taken: Vec::new(),
        }
    }

    /// The answer of a check, which either takes for good or refuses.
    pub fn checked(checked: &Checked<'_>) -> Self {
        match checked.refusal() {
            Some(refusal) => Self::refused(&refusal),
            None => Self::taking(checked.verdicts(), checked.taken()),
        }
    }

    /// The answer for a cost above what `limit` can ever admit.
    pub fn never(limit: String, verdicts: &[Verdict<'_>]) -> Self {
        Self {
            admitted: false,
            binding: Some(limit),
            limits: verdicts.iter().copied().map(named).collect(),
            reason: Some("never_admissible"),
            taken: Vec::new(),
        }
    }
}

fn named(verdict: Verdict<'_>) -> (String, LimitVerdict) {
    let figures = LimitVerdict {
        remaining: verdict.remaining,
        retry_after_ms: verdict.retry_after.map(millis),
        reset_after_ms: millis(verdict.reset_after),
    };
    (verdict.limit.to_owned(), figures)
}

/// A duration in milliseconds, rounded up, so that what is promised has come true when it is over.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

fn as_object<S: Serializer>(limits: &[(String, LimitVerdict)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(limits.iter().map(|(name, verdict)| (name, verdict)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_are_rounded_up() {
        for (nanos, expected) in [(0, 0), (1, 1), (1_000_000, 1), (1_000_001, 2), (333_333_334, 334)] {
            assert_eq!(millis(Duration::from_nanos(nanos)), expected, "{nanos}");
        }
    }

    #[test]
    fn a_verdict_is_written_in_the_documented_order() {
        let figures = LimitVerdict {
            remaining: 2,
            retry_after_ms: Some(0),
            reset_after_ms: 334,
        };
        let verdict = EventVerdict {
            at_ms: 1,
            set: "api".to_owned(),
            key: Some("tenant".to_owned()),
            waited_ms: None,
            decided_ms: 1,
            answer: Answer {
                admitted: true,
                binding: None,
                limits: vec![("requests".to_owned(), figures), ("a".to_owned(), figures)],
                reason: None,
                taken: Vec::new(),
            },
        };
        assert_eq!(
            serde_json::to_string(&verdict).expect("text"),
            r#"{"at_ms":1,"set":"api","key":"tenant","admitted":true,"binding":null,"limits":{"requests":{"remaining":2,"retry_after_ms":0,"reset_after_ms":334},"a":{"remaining":2,"retry_after_ms":0,"reset_after_ms":334}}}"#
        );
    }
}
