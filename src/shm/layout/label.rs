//! The labels of the requests that holds were taken for. They are for people to read; nothing is decided by them.
//!
//! A label is written under the lock, when its hold is committed, and outside the journal: a process that is killed
//! before the stamp is there leaves a hold without a label. Readers take no lock. They read the stamp, the text, and
//! the stamp again; a stamp with another serial number belongs to a former hold in the same place.

use std::sync::atomic::{Ordering, fence};

use super::records::{HoldLabel, LABEL_WORDS};
use crate::shm::file::region::load_acquire;

/// The longest label, in bytes.
pub(crate) const MAX_LABEL_BYTES: usize = 8 * LABEL_WORDS;

/// How many of the lowest bits of the hold's serial number a stamp has. The label's length is above them.
const SERIAL_BITS: u32 = 56;

/// The contents of a label's stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    /// The lowest bits of the hold's serial number.
    serial: u64,
    /// The length of the text.
    bytes: usize,
}

impl Stamp {
    fn new(serial: u64, bytes: usize) -> Self {
        Self {
            serial: serial & ((1 << SERIAL_BITS) - 1),
            bytes,
        }
    }

    fn to_word(self) -> u64 {
        (self.bytes as u64) << SERIAL_BITS | self.serial
    }

    fn from_word(word: u64) -> Self {
        Self::new(word, (word >> SERIAL_BITS) as usize)
    }
}

impl HoldLabel {
    /// Writes the label of the hold with that serial number; a text that is too long is cut off. The caller must have
    /// the lock and own the hold.
    pub(crate) fn write(&self, serial: u64, text: &str) {
        let text = text.get(..MAX_LABEL_BYTES.min(text.len())).unwrap_or_default();
        self.stamp.store(0, Ordering::Relaxed);
        // If the process is killed from here on, the hold has no label; concurrent readers see that it is changing.
        fence(Ordering::Release);
        let mut chunks = text.as_bytes().chunks(8);
        for word in &self.text {
            let chunk = chunks.next().unwrap_or_default();
            let bytes: [u8; 8] = std::array::from_fn(|index| chunk.get(index).copied().unwrap_or(0));
            word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
        // Synchronises with the load in `copy_to`.
        let stamp = Stamp::new(serial, text.len());
        self.stamp.store(stamp.to_word(), Ordering::Release);
    }

    /// Copies this label to `copy`, which is in private memory. The copy is empty if this label is being written.
    pub(crate) fn copy_to(&self, copy: &Self) {
        let stamp = load_acquire(&self.stamp);
        for (word, copied) in self.text.iter().zip(&copy.text) {
            copied.store(word.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
        let is_unchanged = self.stamp.load(Ordering::Relaxed) == stamp;
        copy.stamp
            .store(if is_unchanged { stamp } else { 0 }, Ordering::Relaxed);
    }

    /// The label of the hold with that serial number, if this is its label and is text. For a copy, which does not
    /// change.
    pub(crate) fn read(&self, serial: u64) -> Option<String> {
        let word = self.stamp.load(Ordering::Relaxed);
        let stamp = Stamp::from_word(word);
        if word == 0 || stamp != Stamp::new(serial, stamp.bytes) {
            return None;
        }
        let words = self.text.iter().map(|word| word.load(Ordering::Relaxed));
        let mut text: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
        if stamp.bytes > text.len() {
            return None;
        }
        text.truncate(stamp.bytes);
        String::from_utf8(text).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::super::label::*;
    use crate::shm::file::region::Region;

    fn labels(region: &Region) -> &[HoldLabel] {
        region.records(0, 2).expect("room for two")
    }

    #[test]
    fn a_label_is_read_by_the_serial_number_that_it_was_written_for() {
        let region = Region::private(4096).expect("memory");
        let [label, _] = labels(&region) else {
            panic!("two labels");
        };
        assert_eq!(label.read(0), None);
        for text in ["", "nightly import", "ünïcödé", &"x".repeat(64), "short again"] {
            label.write(7, text);
            assert_eq!(label.read(7).as_deref(), Some(text));
            assert_eq!([label.read(6), label.read(8)], [None, None]);
        }
    }

    #[test]
    fn a_stamp_has_the_serial_number_below_and_the_length_above() {
        let region = Region::private(4096).expect("memory");
        let [label, _] = labels(&region) else {
            panic!("two labels");
        };
        label.write(1 << 60 | 7, "two");
        assert_eq!(label.stamp.load(Ordering::Relaxed), 3 << 56 | 7);
        assert_eq!(
            label.text[0].load(Ordering::Relaxed).to_ne_bytes(),
            *b"two\0\0\0\0\0"
        );
    }

    #[test]
    fn what_no_label_can_be_is_read_as_none() {
        let region = Region::private(4096).expect("memory");
        let [label, _] = labels(&region) else {
            panic!("two labels");
        };
        label.write(7, "ü");
        for (bytes, is_label) in [(1, false), (2, true), (64, true), (65, false), (255, false)] {
            let stamp = Stamp::new(7, bytes).to_word();
            label.stamp.store(stamp, Ordering::Relaxed);
            assert_eq!(label.read(7).is_some(), is_label, "{bytes}");
        }
        label.text[0].store(u64::MAX, Ordering::Relaxed);
        label.stamp.store(Stamp::new(7, 3).to_word(), Ordering::Relaxed);
        assert_eq!(label.read(7), None);
    }

    #[test]
    fn a_copy_that_is_made_while_another_label_is_written_has_one_of_them_whole_or_none() {
        // Under Miri each round takes milliseconds.
        const ROUNDS: u64 = if cfg!(miri) { 100 } else { 20_000 };
        let region = Region::private(4096).expect("memory");
        let [label, copy] = labels(&region) else {
            panic!("two labels");
        };
        let text = |serial: u64| char::from(b'a' + (serial % 26) as u8).to_string().repeat(64);
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for serial in 1..=ROUNDS {
                    label.write(serial, &text(serial));
                }
                is_done.store(true, Ordering::Relaxed);
            });
            while !is_done.load(Ordering::Relaxed) {
                label.copy_to(copy);
                let serial = Stamp::from_word(copy.stamp.load(Ordering::Relaxed)).serial;
                if serial > 0 {
                    assert_eq!(copy.read(serial), Some(text(serial)));
                }
            }
        });
        label.copy_to(copy);
        assert_eq!(copy.read(ROUNDS), Some(text(ROUNDS)));
    }
}
