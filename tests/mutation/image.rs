//! The bytes of a segment as its layout document describes them, independently of the library: where the mutexes lie,
//! which must not be touched, and what the checksums cover.
#![allow(unsafe_code, reason = "changes the bytes of a mapping")]

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::MmapRaw;

use super::words::{control, control_start, definition_checksum, entry, header, header_checksum, journal};

const PAGE: usize = 4096;

/// A segment file, mapped a second time, and the words that may be damaged.
pub struct Image {
    map: MmapRaw,
    pristine: Vec<u64>,
    /// Words up to the end of the last page.
    mapped_words: usize,
    /// Every word that may be changed, one by one and in order.
    places: Vec<usize>,
    ranges: Vec<Range<usize>>,
    /// Every word that no process may change.
    constants: Vec<Range<usize>>,
    definitions: Vec<DefinitionText>,
    shards: Vec<SetShard>,
    participants: usize,
    directory: usize,
}

/// Where the text that defines a set lies, in words from the start of the file.
#[derive(Clone, Debug)]
struct DefinitionText {
    /// The room for it, and for another that is never put into force here.
    room: Range<usize>,
    /// The text, rounded up to whole words.
    text: Range<usize>,
    bytes: usize,
}

/// Where the part that one lock guards lies, in words from the start of the file.
#[derive(Clone, Debug)]
pub struct SetShard {
    /// The whole part.
    pub extent: Range<usize>,
    /// The mutex.
    pub lock: Range<usize>,
    /// The journal's sequence number and count.
    pub journal: usize,
    /// Two words for each entry: the index of a word within the shard, and its old value.
    pub entries: Range<usize>,
}

impl Image {
    /// Maps the file and remembers its contents.
    pub fn of(path: &Path) -> Self {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .expect("a segment");
        let map = map(&file);
        let words = map.len() / 8;
        let mut image = Self {
            mapped_words: map.len().next_multiple_of(PAGE) / 8,
            map,
            pristine: Vec::new(),
            places: Vec::new(),
            ranges: Vec::new(),
            constants: Vec::new(),
            definitions: Vec::new(),
            shards: Vec::new(),
            participants: 0,
            directory: 0,
        };
        image.pristine = (0..words).map(|word| image.load(word)).collect();
        image.find_shards();
        assert_eq!(
            image.header_checksum(),
            image.load(header::CHECKSUM),
            "the layout has changed"
        );
        image
    }

    fn find_shards(&mut self) {
        let word = |index: usize| self.pristine[index] as usize;
        assert_eq!(
            word(header::TOTAL_SIZE),
            8 * self.pristine.len(),
            "the layout has changed"
        );
        self.participants = word(header::PARTICIPANTS_OFFSET) / 8;
        self.directory = word(header::DIRECTORY_OFFSET) / 8;
        let mut start = self.participants;
        self.ranges.push(0..header::RECORD);
        for set in 0..word(header::SETS) {
            let entry = self.directory + set * entry::SIZE;
            let extent = word(entry + entry::EXTENT_OFFSET) / 8;
            let end = extent + word(entry + entry::EXTENT_SIZE) / 8;
            let bytes = word(entry + entry::DEFINITION_SIZE);
            let text = extent..extent + bytes.div_ceil(8);
            let room = extent..control_start(8 * extent, word(entry + entry::DEFINITION_ROOM));
            // Nothing after the text is ever read.
            self.ranges.push(start..text.end);
            start = room.end;
            let shard_words = (end - room.end) / word(entry + entry::SHARDS);
            for control in (room.end..end).step_by(shard_words) {
                let entries = control + control::SIZE;
                self.ranges.push(start..control);
                start = control + control::LOCK_SIZE;
                self.shards.push(SetShard {
                    extent: control..control + shard_words,
                    lock: control..control + control::LOCK_SIZE,
                    journal: control + control::LOCK_SIZE,
                    entries: entries..entries + journal::SIZE,
                });
            }
            self.definitions.push(DefinitionText { room, text, bytes });
        }
        self.ranges.push(start..self.pristine.len());
        self.places = self.ranges.iter().cloned().flatten().collect();
        self.constants = vec![
            0..header::CHANGING.start,
            header::CHANGING.end..self.participants,
            self.directory..self.directory + self.definitions.len() * entry::SIZE,
            self.pristine.len()..self.mapped_words,
        ];
        self.constants
            .extend(self.definitions.iter().map(|definition| definition.room.clone()));
    }

    /// How many words may be damaged.
    pub fn places(&self) -> usize {
        self.places.len()
    }

    /// The word with this number among those that may be damaged.
    pub fn place(&self, number: u32) -> usize {
        self.places[number as usize % self.places.len()]
    }

    /// The number of a word among those that may be damaged.
    pub fn number_of(&self, word: usize) -> u32 {
        self.places.binary_search(&word).expect("no word of a mutex") as u32
    }

    /// Each part of each set.
    pub fn shards(&self) -> &[SetShard] {
        &self.shards
    }

    /// How many of the words that may be damaged lie before the sets.
    pub fn tables(&self) -> u32 {
        let first = self
            .definitions
            .iter()
            .map(|definition| definition.room.start)
            .min();
        self.number_of(first.expect("a set"))
    }

    /// The value of a word.
    pub fn load(&self, word: usize) -> u64 {
        self.word(word).load(Ordering::Relaxed)
    }

    /// Changes a word.
    pub fn store(&self, word: usize, value: u64) {
        self.word(word).store(value, Ordering::Relaxed);
    }

    /// Restores every word except those of the mutexes.
    pub fn restore(&self) {
        for range in &self.ranges {
            let old = &self.pristine[range.clone()];
            // SAFETY: the words lie in the mapping, whose size the pristine copy has. No other process uses the segment
            // at the moment: each specimen belongs to one thread, which is here.
            unsafe { std::ptr::copy_nonoverlapping(old.as_ptr(), self.start(range), old.len()) };
        }
    }

    /// Whether every mutex is as it was when no process held it.
    pub fn locks_are_free(&self) -> bool {
        self.shards.iter().all(|shards| {
            shards.lock.clone().all(|word| {
                let changed = self.load(word) ^ self.pristine[word];
                // glibc leaves a count of one in the second half of the first word of a mutex that was ever taken.
                let count_only = cfg!(target_env = "gnu") && word == shards.lock.start;
                // musl leaves the links that the mutex had in its last holder's robust list, and sets them with the
                // next lock.
                let link = cfg!(target_env = "musl") && (3..5).contains(&(word - shards.lock.start));
                changed == 0 || link || count_only && changed.to_ne_bytes()[..4] == [0; 4]
            })
        })
    }

    /// Makes the checksums agree with what they cover.
    pub fn reseal(&self) {
        for (set, definition) in self.definitions.iter().enumerate() {
            let text = definition
                .text
                .clone()
                .flat_map(|word| self.load(word).to_ne_bytes())
                .take(definition.bytes);
            let checksum = definition_checksum(0, &text.collect::<Vec<_>>());
            self.store(
                self.directory + set * entry::SIZE + entry::DEFINITION_CHECKSUM,
                checksum,
            );
        }
        self.store(header::CHECKSUM, self.header_checksum());
    }

    /// Whether the directory and the definitions are unchanged.
    pub fn describes_its_sets(&self) -> bool {
        let directory = self.directory..self.directory + self.definitions.len() * entry::SIZE;
        let texts = self
            .definitions
            .iter()
            .flat_map(|definition| definition.text.clone());
        directory
            .chain(texts)
            .all(|word| self.load(word) == self.pristine[word])
    }

    /// What no attached process may ever write: most of the header, the directory, the definitions, and whatever lies
    /// after the end of the file on its last page.
    pub fn constants(&self) -> Vec<u64> {
        let mut words = Vec::with_capacity(self.constants.iter().map(Range::len).sum());
        for range in &self.constants {
            // SAFETY: the words lie on pages of the mapping, and no other process uses the segment at the moment, as in
            // `restore`.
            words.extend_from_slice(unsafe { std::slice::from_raw_parts(self.start(range), range.len()) });
        }
        words
    }

    fn start(&self, range: &Range<usize>) -> *mut u64 {
        assert!(range.end <= self.mapped_words);
        self.map.as_mut_ptr().cast::<u64>().wrapping_add(range.start)
    }

    fn header_checksum(&self) -> u64 {
        header_checksum(|word| self.load(word))
    }

    fn word(&self, word: usize) -> &AtomicU64 {
        assert!(word < self.mapped_words);
        // SAFETY: a mapping covers whole pages, and the word lies in one of them (asserted), aligned because the
        // mapping is. The file keeps its size, and the other process that maps it uses atomics on it as well.
        unsafe { &*self.map.as_ptr().cast::<AtomicU64>().add(word) }
    }
}

fn map(file: &File) -> MmapRaw {
    MmapRaw::map_raw(file).expect("a mapping")
}
