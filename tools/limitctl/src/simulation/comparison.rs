//! What another declaration would have said.

use serde::Serialize;

use super::verdict::{Answer, EventVerdict};
use crate::text::human;

/// A request that one declaration admits and the other refuses.
#[derive(Debug, Serialize)]
pub struct Flip<'a> {
    /// The line of the trace.
    pub line: u64,
    /// The declaration's verdict.
    #[serde(flatten)]
    pub verdict: &'a EventVerdict,
    /// The answer of the declaration that it is compared with.
    pub against: &'a Answer,
}

/// How often two declarations disagree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Comparison {
    pub requests: u64,
    pub flips: u64,
    /// Flips to admitted, where the other declaration refuses.
    pub to_admitted: u64,
    /// Flips to refused, where the other declaration admits.
    pub to_refused: u64,
}

impl Comparison {
    /// Counts a request. Returns whether its verdict flips.
    pub fn note(&mut self, admitted: bool, against: bool) -> bool {
        self.requests += 1;
        match (admitted, against) {
            (true, false) => self.to_admitted += 1,
            (false, true) => self.to_refused += 1,
            _ => return false,
        }
        self.flips += 1;
        true
    }

    pub fn text(&self) -> String {
        format!(
            "{} of {} {}: {} to admitted, {} to refused\n",
            human::count(self.flips),
            human::quantity(self.requests, "verdict", "verdicts"),
            if self.flips == 1 { "flips" } else { "flip" },
            human::count(self.to_admitted),
            human::count(self.to_refused)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_one_admits_and_the_other_refuses_flips() {
        let mut comparison = Comparison::default();
        let flips = [
            (true, true),
            (false, false),
            (true, false),
            (false, true),
            (false, true),
        ]
        .map(|(admitted, against)| comparison.note(admitted, against));
        assert_eq!(flips, [false, false, true, true, true]);
        assert_eq!(
            comparison.text(),
            "3 of 5 verdicts flip: 1 to admitted, 2 to refused\n"
        );
    }
}
