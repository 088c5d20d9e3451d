//! Where the leases of a set are if hosts share its limit, and what their words say.

use std::ops::Range;
use std::time::Duration;

use crate::state::image::Image;
use crate::state::pieces::Pieces;
use crate::words::{lease, row};

/// The lease of the only row, or of each row of a table of keys.
#[derive(Clone, Debug, Default)]
pub struct LeaseWords {
    /// Where the records of the rows begin.
    records: Vec<usize>,
    /// Where the record of a shard of keys begins. It is the first in the segment.
    of_shard: Option<usize>,
    /// The shard's lists of rows: first those that want something, then those that are looked at in time.
    lists: Range<usize>,
}

impl LeaseWords {
    pub fn of(pieces: &Pieces, state_words: usize, is_leased: bool) -> Self {
        if !is_leased {
            return Self::default();
        }
        let head = if pieces.is_keyed { row::HEAD_SIZE } else { 0 };
        let record = |states: usize| states + state_words - lease::SIZE;
        let lists = pieces.leases.start + state_words;
        let words = pieces.rows.count.div_ceil(64);
        Self {
            records: pieces.rows.records().map(|row| record(row + head)).collect(),
            of_shard: pieces.is_keyed.then(|| record(pieces.leases.start)),
            lists: if pieces.is_keyed {
                lists..lists + 2 * words
            } else {
                0..0
            },
        }
    }

    pub fn are_there(&self) -> bool {
        !self.records.is_empty()
    }

    pub fn are_of_keys(&self) -> bool {
        self.of_shard.is_some()
    }

    /// The words that change without the journal: who has duty, hints, and which rows are looked at and when.
    pub fn unjournalled(&self) -> Vec<usize> {
        let first = self.of_shard.or(self.records.first().copied());
        let of_duty = first.map(|record| record + lease::SIZE - lease::OF_DUTY..record + lease::SIZE);
        let records = self.records.iter().chain(&self.of_shard);
        let hints = records.flat_map(|record| [lease::ALERTED, lease::UNMET].map(|word| record + word));
        let looks = self.of_shard.into_iter();
        let looks = looks.flat_map(|record| [lease::USED_AT, lease::PACED_UNTIL].map(|word| record + word));
        let lists = self.lists.clone();
        of_duty
            .into_iter()
            .flatten()
            .chain(hints)
            .chain(looks)
            .chain(lists)
            .collect()
    }

    /// The latest instant at which the rows of a shard were looked at, or began to wait for a look.
    pub fn last_look(&self, image: &Image) -> Duration {
        let of_shard = self.of_shard.into_iter();
        let words =
            of_shard.flat_map(|record| [lease::USED_AT, lease::ALERTED].map(|word| image[record + word]));
        Duration::from_nanos(words.max().unwrap_or(0))
    }

    /// Whether a lease ends after one instant of the segment clock, and not after another.
    pub fn one_ends(&self, image: &Image, after: Duration, until: Duration) -> bool {
        let mut ends = self
            .records
            .iter()
            .map(|record| image[record + lease::VALID_UNTIL]);
        ends.any(|end| end > after.as_nanos() as u64 && end <= until.as_nanos() as u64)
    }

    /// Whether, at this instant of the segment clock, each row of a key that has something to report to the store is on
    /// a list.
    pub fn check_lists(&self, image: &Image, now: Duration) -> Result<(), String> {
        let (wanting, kept) = image[self.lists.clone()].split_at(self.lists.len() / 2);
        for (number, record) in self.records.iter().enumerate() {
            let get = |word: usize| image[record + word];
            let is_left = Duration::from_nanos(get(lease::VALID_UNTIL)) > now
                && get(lease::ALLOWANCE) > get(lease::SPENT);
            let says = [lease::SPENT, lease::REFUNDED, lease::ASKED, lease::UNMET];
            let has_something = is_left || says.into_iter().any(|word| get(word) != 0);
            let bit = 1 << (number % 64);
            if has_something && (wanting[number / 64] | kept[number / 64]) & bit == 0 {
                let said = says.map(get);
                return Err(format!(
                    "row {number} is on no list, with {said:?} spent, refunded, asked and unmet"
                ));
            }
        }
        Ok(())
    }

    /// How much of what all rows have spent the store does not know about yet.
    pub fn spent(&self, image: &Image) -> u64 {
        self.sum(image, |record| image[record + lease::SPENT])
    }

    /// What is left of all leases.
    pub fn left(&self, image: &Image) -> u64 {
        self.sum(image, |record| {
            let left = image[record + lease::ALLOWANCE].saturating_sub(image[record + lease::SPENT]);
            left * u64::from(image[record + lease::VALID_UNTIL] != 0)
        })
    }

    fn sum(&self, image: &Image, of: impl Fn(usize) -> u64) -> u64 {
        assert!(
            self.records
                .iter()
                .all(|record| record + lease::SIZE <= image.len())
        );
        self.records.iter().map(|record| of(*record)).sum()
    }
}
