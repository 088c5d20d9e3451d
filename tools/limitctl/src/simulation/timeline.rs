//! Requests over time, in rows whose length grows with the trace, so that they never exceed a screen.

use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::text::human;
use crate::text::table::Table;

const MAX_ROWS: u64 = 40;

/// The most marks that a row has.
const MAX_MARKS: u64 = 50;

const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// The possible lengths of a row, in milliseconds. Each is a multiple of the previous one, so that rows can be joined.
const LENGTHS: [u64; 27] = [
    1,
    2,
    10,
    20,
    100,
    200,
    SECOND,
    2 * SECOND,
    10 * SECOND,
    20 * SECOND,
    MINUTE,
    2 * MINUTE,
    10 * MINUTE,
    20 * MINUTE,
    HOUR,
    2 * HOUR,
    6 * HOUR,
    12 * HOUR,
    DAY,
    2 * DAY,
    10 * DAY,
    20 * DAY,
    100 * DAY,
    200 * DAY,
    1_000 * DAY,
    10_000 * DAY,
    // Longer than the whole range of times.
    1_000_000 * DAY,
];

/// Requests admitted and refused over time. Rows begin at multiples of their length since the Unix epoch.
#[derive(Debug, Default)]
pub struct Timeline {
    /// The index of the rows' length.
    length: usize,
    /// The number of the first row, counted from the epoch.
    first: u64,
    rows: Vec<Row>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Row {
    admitted: u64,
    refused: u64,
}

impl Timeline {
    /// Counts a request, which must not be before the previous one.
    pub fn note(&mut self, at_ms: u64, admitted: bool) {
        if self.rows.is_empty() {
            self.first = at_ms / self.row_ms();
        }
        while at_ms / self.row_ms() - self.first >= MAX_ROWS && self.length + 1 < LENGTHS.len() {
            self.lengthen();
        }
        let index = (at_ms / self.row_ms() - self.first) as usize;
        if self.rows.len() <= index {
            self.rows.resize(index + 1, Row::default());
        }
        let row = &mut self.rows[index];
        if admitted {
            row.admitted += 1;
        } else {
            row.refused += 1;
        }
    }

    fn row_ms(&self) -> u64 {
        LENGTHS[self.length]
    }

    fn lengthen(&mut self) {
        let factor = LENGTHS[self.length + 1] / self.row_ms();
        let first = self.first / factor;
        let mut rows: Vec<Row> = Vec::new();
        for (number, row) in (self.first..).zip(&self.rows) {
            let index = (number / factor - first) as usize;
            rows.resize(rows.len().max(index + 1), Row::default());
            rows[index].admitted += row.admitted;
            rows[index].refused += row.refused;
        }
        self.length += 1;
        self.first = first;
        self.rows = rows;
    }

    /// Each row, with the time at which it begins, in milliseconds.
    fn dated_rows(&self) -> impl Iterator<Item = (u64, &Row)> {
        (self.first..)
            .map(|number| number * self.row_ms())
            .zip(&self.rows)
    }

    /// The plot.
    pub fn text(&self) -> String {
        let max = self.rows.iter().map(|row| row.admitted + row.refused).max();
        let Some(max) = max else {
            return String::new();
        };
        let worth = max.div_ceil(MAX_MARKS).max(1);
        let marks = |count: u64, mark: &str| mark.repeat(count.div_ceil(worth) as usize);
        let rows: Vec<(u64, &Row)> = self.dated_rows().collect();
        let table = Table::of(&rows)
            .left("FROM", |(from_ms, _)| human::instant_with_millis(*from_ms))
            .right("ADMITTED", |(_, row)| human::count(row.admitted))
            .right("REFUSED", |(_, row)| human::count(row.refused))
            .left("", |(_, row)| {
                format!("{}{}", marks(row.admitted, "#"), marks(row.refused, "x"))
            });
        let length = human::duration(Duration::from_millis(self.row_ms()));
        format!(
            "a row is {length}; # is up to {worth} admitted, x up to {worth} refused\n{}",
            table.render(2),
            worth = human::count(worth)
        )
    }
}

impl Serialize for Timeline {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct DatedRow {
            from_ms: u64,
            admitted: u64,
            refused: u64,
        }

        #[derive(Serialize)]
        struct Rows {
            row_ms: u64,
            rows: Vec<DatedRow>,
        }

        let rows = self.dated_rows().map(|(from_ms, row)| DatedRow {
            from_ms,
            admitted: row.admitted,
            refused: row.refused,
        });
        Rows {
            row_ms: self.row_ms(),
            rows: rows.collect(),
        }
        .serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(timeline: &Timeline) -> Vec<(u64, u64, u64)> {
        timeline
            .dated_rows()
            .map(|(from, row)| (from, row.admitted, row.refused))
            .collect()
    }

    #[test]
    fn each_length_is_a_whole_number_of_times_the_one_before() {
        for pair in LENGTHS.windows(2) {
            assert!(pair[1] > pair[0] && pair[1] % pair[0] == 0, "{pair:?}");
        }
    }

    #[test]
    fn rows_are_joined_when_the_trace_outgrows_them_and_nothing_is_lost() {
        let mut timeline = Timeline::default();
        // Rows of 1 ms reach up to 1_038; rows of 2 ms then cover 998 to 1_077.
        for (at, admitted) in [(999, true), (1_000, true), (1_001, false), (1_039, true)] {
            timeline.note(at, admitted);
        }
        let rows = figures(&timeline);
        assert_eq!(rows[..2], [(998, 1, 0), (1_000, 1, 1)]);
        assert_eq!(rows.last(), Some(&(1_038, 1, 0)));
        assert_eq!(rows.len(), 21);
        timeline.note(9_223_372_036_854, false);
        let rows = figures(&timeline);
        assert!(rows.len() as u64 <= MAX_ROWS);
        assert_eq!(rows.iter().map(|row| row.1).sum::<u64>(), 3);
        assert_eq!(rows.iter().map(|row| row.2).sum::<u64>(), 2);
    }

    #[test]
    fn the_plot_has_a_mark_for_whatever_happened() {
        let mut timeline = Timeline::default();
        for _ in 0..100 {
            timeline.note(0, true);
        }
        timeline.note(1, false);
        let plain = anstream::adapter::strip_str(&timeline.text()).to_string();
        assert_eq!(
            plain,
            format!(
                "a row is 1ms; # is up to 2 admitted, x up to 2 refused\n\
                 \x20 FROM                      ADMITTED  REFUSED\n\
                 \x20 1970-01-01T00:00:00.000Z       100        0  {}\n\
                 \x20 1970-01-01T00:00:00.001Z         0        1  x\n",
                "#".repeat(50)
            )
        );
    }
}
