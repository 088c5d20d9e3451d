//! The bytes of a segment as its layout document describes them, written down a second time and not taken from the
//! library: where the mutexes lie, which must not be touched, and what the checksums cover.
#![allow(unsafe_code, reason = "changes the bytes of a mapping")]

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::MmapRaw;

/// Words of the header; what follows it up to the first table is room for later.
const HEADER_WORDS: usize = 64;
const TOTAL_SIZE: usize = 6;
const PARTICIPANTS: usize = 16;
const PARTICIPANTS_OFFSET: usize = 17;
const SETS: usize = 18;
const DIRECTORY_OFFSET: usize = 19;
const CHECKSUM: usize = 20;
const CHECKED: Range<usize> = 1..CHECKSUM;
/// Of the header, what processes change while they use the segment, or start it cold.
const CHANGING: Range<usize> = 21..30;

const PARTICIPANT_WORDS: usize = 16;
/// A directory entry, and some of its words.
const ENTRY_WORDS: usize = 24;
const EXTENT_OFFSET: usize = 0;
const EXTENT_SIZE: usize = 1;
const DEFINITION_ROOM: usize = 2;
const SHARDS: usize = 8;
/// Of the first definition, which is in force.
const DEFINITION_SIZE: usize = 12;
const DEFINITION_CHECKSUM: usize = 14;

const LOCK_WORDS: usize = 8;
const CONTROL_WORDS: usize = 88;
const JOURNAL_ENTRIES: usize = 160;
/// Words of a cache line, to which records are aligned.
const LINE: usize = 8;

const PAGE: usize = 4096;

/// A segment file, mapped a second time, with the words that may be damaged.
pub struct Image {
    map: MmapRaw,
    pristine: Vec<u64>,
    /// Words up to the end of the last page.
    mapped_words: usize,
    /// Every word that may be changed, one by one and in a row.
    places: Vec<usize>,
    ranges: Vec<Range<usize>>,
    /// Every word that no process may change.
    constants: Vec<Range<usize>>,
    definitions: Vec<DefinitionText>,
    shards: Vec<SetShard>,
    participants: Range<usize>,
    directory: usize,
}

/// Where the text that defines a set lies, in words from the start of the file.
#[derive(Clone, Debug)]
struct DefinitionText {
    /// The room for it, and for another that is never put in force here.
    room: Range<usize>,
    /// The text, rounded up to whole words.
    text: Range<usize>,
    bytes: usize,
}

/// Where what one lock guards lies, in words from the start of the file.
#[derive(Clone, Debug)]
pub struct SetShard {
    /// The whole of it.
    pub extent: Range<usize>,
    /// The mutex.
    pub lock: Range<usize>,
    /// The journal's sequence number and count.
    pub journal: usize,
    /// Two words for each entry: the index of a word within the shard, and what it was.
    pub entries: Range<usize>,
}

impl Image {
    /// Maps the file and remembers what it says now.
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
            participants: 0..0,
            directory: 0,
        };
        image.pristine = (0..words).map(|word| image.load(word)).collect();
        image.find_shards();
        assert_eq!(
            image.header_checksum(),
            image.load(CHECKSUM),
            "the layout has changed"
        );
        image
    }

    fn find_shards(&mut self) {
        let word = |index: usize| self.pristine[index] as usize;
        assert_eq!(
            word(TOTAL_SIZE),
            8 * self.pristine.len(),
            "the layout has changed"
        );
        let start = word(PARTICIPANTS_OFFSET) / 8;
        self.participants = start..start + word(PARTICIPANTS) * PARTICIPANT_WORDS;
        self.directory = word(DIRECTORY_OFFSET) / 8;
        let mut start = self.participants.start;
        self.ranges.push(0..HEADER_WORDS);
        for set in 0..word(SETS) {
            let entry = self.directory + set * ENTRY_WORDS;
            let extent = word(entry + EXTENT_OFFSET) / 8;
            let end = extent + word(entry + EXTENT_SIZE) / 8;
            let bytes = word(entry + DEFINITION_SIZE);
            let text = extent..extent + bytes.div_ceil(8);
            let room = extent..extent + 2 * word(entry + DEFINITION_ROOM).div_ceil(8).next_multiple_of(LINE);
            // Behind the text there is nothing that any process reads.
            self.ranges.push(start..text.end);
            start = room.end;
            let shard_words = (end - room.end) / word(entry + SHARDS);
            for control in (room.end..end).step_by(shard_words) {
                let entries = control + CONTROL_WORDS;
                self.ranges.push(start..control);
                start = control + LOCK_WORDS;
                self.shards.push(SetShard {
                    extent: control..control + shard_words,
                    lock: control..control + LOCK_WORDS,
                    journal: control + LOCK_WORDS,
                    entries: entries..entries + 2 * JOURNAL_ENTRIES,
                });
            }
            self.definitions.push(DefinitionText { room, text, bytes });
        }
        self.ranges.push(start..self.pristine.len());
        self.places = self.ranges.iter().cloned().flatten().collect();
        self.constants = vec![
            0..CHANGING.start,
            CHANGING.end..self.participants.start,
            self.directory..self.directory + self.definitions.len() * ENTRY_WORDS,
            self.pristine.len()..self.mapped_words,
        ];
        self.constants
            .extend(self.definitions.iter().map(|definition| definition.room.clone()));
    }

    /// How many words may be damaged.
    pub fn places(&self) -> usize {
        self.places.len()
    }

    /// The word of that number among those that may be damaged.
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

    /// What a word says.
    pub fn load(&self, word: usize) -> u64 {
        self.word(word).load(Ordering::Relaxed)
    }

    /// Changes a word.
    pub fn store(&self, word: usize, value: u64) {
        self.word(word).store(value, Ordering::Relaxed);
    }

    /// Puts every word back as it was, except those of the mutexes.
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
            let length = step(SEED, definition.bytes as u64);
            let checksum = text.fold(length, |hash, byte| step(hash, u64::from(byte)));
            self.store(self.directory + set * ENTRY_WORDS + DEFINITION_CHECKSUM, checksum);
        }
        self.store(CHECKSUM, self.header_checksum());
    }

    /// Whether the directory and the definitions are as they were.
    pub fn describes_its_sets(&self) -> bool {
        let directory = self.directory..self.directory + self.definitions.len() * ENTRY_WORDS;
        let texts = self
            .definitions
            .iter()
            .flat_map(|definition| definition.text.clone());
        directory
            .chain(texts)
            .all(|word| self.load(word) == self.pristine[word])
    }

    /// What no process that is attached may ever write: most of the header, the directory, the definitions, and what
    /// lies behind the end of the file on its last page.
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
        CHECKED.fold(SEED, |hash, word| step(hash, self.load(word)))
    }

    fn word(&self, word: usize) -> &AtomicU64 {
        assert!(word < self.mapped_words);
        // SAFETY: a mapping covers whole pages, and the word lies in one of them (asserted), aligned because the
        // mapping is. The file keeps its size, and the process that else maps it uses atomics on it as well.
        unsafe { &*self.map.as_ptr().cast::<AtomicU64>().add(word) }
    }
}

fn map(file: &File) -> MmapRaw {
    MmapRaw::map_raw(file).expect("a mapping")
}

/// FNV-1a over the bytes of a word, low byte first.
fn step(hash: u64, word: u64) -> u64 {
    word.to_le_bytes().into_iter().fold(hash, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

const SEED: u64 = 0xcbf2_9ce4_8422_2325;
