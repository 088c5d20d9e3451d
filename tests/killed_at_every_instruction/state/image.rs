//! The bytes of a segment as the harness sees them: mapped raw, beside the library.
//!
//! The offsets are those of `tests/layout_mirror/words.rs`. [`Layout::assert_agrees_with`] checks them against what the
//! library says, so that a change of the format cannot make the proof look at the wrong words.
#![allow(unsafe_code, reason = "looks at the words of a mapping")]

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use memmap2::{MmapOptions, MmapRaw};
use nix::libc;
use shmlimit::snapshot::SegmentSnapshot;

use crate::state::lease_words::LeaseWords;
use crate::state::pieces::{Pieces, Table};
use crate::words::{
    FORMAT, LOCK_WORD_INDEX, bucket, control, control_start, counters, entry, header, header_checksum, hold,
    journal, label, lock_kind, participant, row, ticket,
};

/// Every word of a segment.
pub type Image = Vec<u64>;

/// A segment file, mapped by the harness. No other process runs while it is read or written: the others are stopped.
#[derive(Debug)]
pub struct RawFile {
    map: MmapRaw,
}

impl RawFile {
    pub fn open(path: &Path) -> Self {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .expect("the segment file");
        let map = MmapOptions::new().populate().map_raw(&file).expect("a mapping");
        assert_eq!(map.len() % 8, 0);
        Self { map }
    }

    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is aligned to a page, `len` bytes long and lives as long as `self`; atomics are valid
        // for any bit pattern and may be changed by other processes.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast::<AtomicU64>(), self.map.len() / 8) }
    }

    pub fn copy(&self) -> Image {
        self.words()
            .iter()
            .map(|word| word.load(Ordering::Relaxed))
            .collect()
    }

    /// Makes the segment what `image` says, except for its header.
    pub fn become_copy_of(&self, image: &[u64]) {
        assert_eq!(image.len(), self.words().len());
        for (word, value) in self.words().iter().zip(image).skip(header::SIZE) {
            word.store(*value, Ordering::Relaxed);
        }
    }

    /// Sets a known seed for the hash of keys, and the header's checksum to match. No process is attached yet.
    pub fn set_hash_key(&self) {
        let words = self.words();
        for (word, half) in words[header::HASH_KEY..][..2].iter().zip(1..) {
            word.store(half, Ordering::Relaxed);
        }
        let checksum = header_checksum(|position| self.word(position));
        words[header::CHECKSUM].store(checksum, Ordering::Relaxed);
    }

    /// The words that differ from `last`, which is brought up to date.
    pub fn take_changes(&self, last: &mut Image) -> Vec<(usize, u64)> {
        let mut changes = Vec::new();
        for (index, (word, last)) in self.words().iter().zip(last.iter_mut()).enumerate() {
            let value = word.load(Ordering::Relaxed);
            if value != *last {
                *last = value;
                changes.push((index, value));
            }
        }
        changes
    }

    /// A word of the file.
    pub fn word(&self, index: usize) -> u64 {
        self.words()[index].load(Ordering::Relaxed)
    }

    /// Empties the journal, so that nothing is undone.
    pub fn empty_journal(&self, layout: &Layout) {
        self.words()[layout.journal_word()].fetch_and(!0xff, Ordering::Relaxed);
    }

    /// The futex word of the set's lock.
    pub fn lock_word(&self, layout: &Layout) -> &AtomicU32 {
        let words = self.map.as_ptr().cast::<AtomicU32>();
        let index = layout.lock_word_offset() / 4;
        assert!(4 * index < self.map.len());
        // SAFETY: the index lies within the mapping, which is aligned and lives as long as `self`.
        unsafe { &*words.add(index) }
    }
}

/// Where everything is in a segment of one set, in words from its start.
#[derive(Clone, Debug)]
pub struct Layout {
    participants: usize,
    participant_count: usize,
    has_slot_lock: bool,
    control: usize,
    counters: usize,
    /// What a user can see of the set: everything except counts, words that change without changing what the set says,
    /// and holds and tickets, which are compared by whether they are taken, and by their phase.
    canonical: Vec<usize>,
    /// What is counted under the lock and not journalled.
    counted: Vec<usize>,
    /// The counts of keys, admitted and refused in one word, which start over when a row is given to another key.
    counted_of_keys: Vec<usize>,
    /// Counters that change without the lock, each by itself.
    unlocked: Vec<usize>,
    /// Words of holds that are changed without the lock or the journal.
    unjournalled: Vec<usize>,
    limits: usize,
    /// The generation of the definition in force.
    generation: usize,
    tags: usize,
    rows: Table,
    is_keyed: bool,
    holds: Table,
    /// The labels of holds: as many as holds, or none.
    labels: Table,
    tickets: Table,
    /// Whether processes draw batches, which have holds.
    pub draws: bool,
    /// Where the leases are, if hosts share its limit.
    pub leases: LeaseWords,
}

/// What the definition of a set contains if processes draw batches.
const CREDIT: &[u8] = b"credit";

/// What the definition of a set contains if hosts share a limit, which is its only one then.
const FLEET: &[u8] = b"[fleet]";

/// Whether a word of a ticket in this phase means something: the others are written before the journal says so, or left
/// over. A waiter futex always means something, but only to a process that is asleep.
fn means_something(word: usize, state: u64, request: u64) -> bool {
    let phase = state & 3;
    match word {
        ticket::WAITER_FUTEX | ticket::LOOKED_AT => false,
        // A ticket is given up by a single store without the lock; the process that reclaims takes it back.
        ticket::OWNER => phase == ticket::WAITING,
        ticket::ENQUEUED_AT | ticket::REQUEST | ticket::ROW | ticket::DEADLINE => phase != 0,
        ticket::GRANTED_AT | ticket::HOLD | ticket::HOLD_SERIAL => phase == ticket::GRANTED,
        ticket::STATE..ticket::HEAD_SIZE => true,
        _ => {
            let (limit, part) = (
                (word - ticket::HEAD_SIZE) / ticket::LIMIT_SIZE,
                (word - ticket::HEAD_SIZE) % ticket::LIMIT_SIZE,
            );
            let is_asked_for = request & (1 << limit) != 0;
            is_asked_for && (phase == ticket::GRANTED || (phase != 0 && part == ticket::COST))
        }
    }
}

/// Whether a word of a hold means something: in a free hold, only that it is free, and which one is next. What changes
/// without the lock is checked separately. An operation that is undone skips a serial number, so numbers cannot be
/// predicted: those of granted tickets only have to match.
fn means_something_in_hold(word: usize, owner: u64) -> bool {
    match word {
        hold::OWNER | hold::NEXT => true,
        hold::SERIAL | hold::RENEWED_AT | hold::RETURNED => false,
        _ => owner != 0,
    }
}

impl Layout {
    pub fn of(file: &RawFile) -> Self {
        let image = file.copy();
        let byte_offset = |index: usize| usize::try_from(image[index] / 8).expect("small");
        let participants = byte_offset(header::PARTICIPANTS_OFFSET);
        let has_slot_lock = image[header::LOCK_KIND] == lock_kind::SLOT;
        assert_eq!(image[header::SETS], 1, "the proof works on segments of one set");
        let directory = byte_offset(header::DIRECTORY_OFFSET);
        let participant_count = usize::try_from(image[header::PARTICIPANTS]).expect("small");
        // The directory follows, so this is exact. Holds' owners, and which of them are dead, are read with this size.
        assert_eq!(
            directory - participants,
            participant_count * participant::SIZE,
            "participants have another size than the harness knows"
        );
        let entry: [usize; 11] =
            std::array::from_fn(|word| usize::try_from(image[directory + word]).expect("small"));
        let [extent, extent_size, definition_room, limits, state_words, ..] = entry;
        let control = control_start(extent, definition_room);
        let counters = control + control::SIZE + journal::SIZE;
        let others = [entry::LABELS, entry::LEASE_LISTS, entry::OVERALL_WORDS];
        let others = others.map(|word| usize::try_from(image[directory + word]).expect("small"));
        let pieces = Pieces::of(counters, &entry, others);
        assert_eq!(
            pieces.end,
            (extent + extent_size) / 8,
            "the proof works on sets of one shard"
        );
        let unlocked: Vec<usize> = (0..limits)
            .map(|limit| counters + limit * counters::SIZE + counters::UNSETTLED)
            .chain([control + control::UNKNOWN_NAMES])
            .collect();
        let excluded = [
            control::JOURNAL,
            control::LAST_SEEN,
            control::RESET_SCOPE,
            control::RECOVERIES,
            control::LAST_RECOVERER,
            control::RESET_INSTANT,
            control::RESET_ROW,
            // Counted by any process that finds the lock taken, including a recoverer.
            control::LOCK_WAITS,
            // The next process that has the lock goes on with the search that this word stands for.
            control::MARKS,
            // A time before which nothing lapses, which may be too early.
            control::LAPSE_AT,
        ]
        .map(|word| control + word);
        let definition = image[extent / 8..control]
            .iter()
            .flat_map(|word| word.to_ne_bytes());
        let definition: Vec<u8> = definition.collect();
        let draws = definition.windows(CREDIT.len()).any(|window| window == CREDIT);
        let is_leased = definition.windows(FLEET.len()).any(|window| window == FLEET);
        let leases = LeaseWords::of(&pieces, state_words, is_leased);
        let row_heads: Vec<usize> = if pieces.is_keyed {
            pieces.rows.records().collect()
        } else {
            Vec::new()
        };
        let unjournalled: Vec<usize> = pieces
            .holds
            .records()
            .flat_map(|start| [hold::RENEWED_AT, hold::RETURNED].map(|word| start + word))
            .chain([control + control::HOLD_SERIAL])
            .chain(row_heads.iter().map(|row| row + row::USED_AT))
            .collect();
        let of_limits = (counters..counters + limits * counters::SIZE)
            .filter(|word| (word - counters) % counters::SIZE != counters::RESET_AT);
        let counted: Vec<usize> = control::COUNTED
            .into_iter()
            .flatten()
            .map(|word| control + word)
            .chain(of_limits)
            .filter(|word| !unlocked.contains(word))
            .collect();
        let counted_of_keys: Vec<usize> = row_heads.iter().map(|row| row + row::COUNTS).collect();
        let apart: HashSet<usize> = excluded
            .iter()
            .chain(&unlocked)
            .chain(&unjournalled)
            .chain(&counted)
            .chain(&counted_of_keys)
            .copied()
            .chain(leases.unjournalled().into_iter().chain(pieces.order))
            .collect();
        let canonical = (control + control::JOURNAL..control + control::SIZE)
            .chain(counters..pieces.holds.start)
            .filter(|word| !apart.contains(word))
            .collect();
        Self {
            participants,
            has_slot_lock,
            participant_count,
            control,
            counters,
            canonical,
            counted,
            counted_of_keys,
            unlocked,
            unjournalled,
            limits,
            generation: directory + entry::GENERATION,
            tags: pieces.tags,
            rows: pieces.rows,
            is_keyed: pieces.is_keyed,
            holds: pieces.holds,
            labels: pieces.labels,
            tickets: pieces.tickets,
            draws,
            leases,
        }
    }

    /// Compares some words of the file with what the library says they are.
    pub fn assert_agrees_with(&self, file: &RawFile, snapshot: &SegmentSnapshot) {
        let image = file.copy();
        let set = &snapshot.sets[0];
        assert_eq!(snapshot.format, FORMAT, "the harness knows another format");
        for participant in &snapshot.participants {
            let slot = usize::try_from(participant.slot).expect("small");
            let record = self.participants + slot * participant::SIZE;
            assert_eq!(image[record + participant::STATE] >> 2, participant.generation);
            assert_eq!(image[record + participant::PID], participant.pid);
        }
        assert_eq!(set.limits.len(), self.limits);
        assert_eq!(image[self.control + control::ACTIVE], set.active + set.of_dead);
        assert_eq!(image[self.control + control::ADMITTED], set.counts.admitted);
        assert_eq!(
            image[self.control + control::REFUSED_RATE],
            set.counts.refused_rate
        );
        assert_eq!(image[self.control + control::SETTLED], set.counts.settled);
        assert_eq!(
            image[self.control + control::UNKNOWN_NAMES],
            set.counts.unknown_names
        );
        assert_eq!(image[self.control + control::RECOVERIES], set.counts.recoveries);
        assert_eq!(image[self.control + control::WAITED], set.counts.waited);
        let wait_times = self.control + control::WAIT_TIMES;
        assert_eq!(image[wait_times..][..32], set.wait_times[..]);
        let wait_time = Duration::from_nanos(image[self.control + control::WAIT_TIME]);
        assert_eq!(wait_time, set.wait_time);
        let is_held = |hold: &usize| image[hold + hold::OWNER] != 0;
        assert_eq!(self.holds.records().filter(is_held).count(), set.holds.len());
        let mut labels: Vec<String> = self.labels(&image).map(|(_, label)| label).collect();
        labels.sort_unstable();
        let mut known: Vec<&String> = set.holds.iter().filter_map(|hold| hold.label.as_ref()).collect();
        known.sort_unstable();
        assert!(labels.iter().eq(known), "{labels:?}");
        let is_granted = |state: u64| (state & 3 == ticket::GRANTED).then_some(state >> 2);
        let mut granted: Vec<u64> = self
            .tickets
            .records()
            .filter_map(|ticket| is_granted(image[ticket + ticket::STATE]))
            .collect();
        granted.sort_unstable();
        let known = set.tickets.iter().filter(|ticket| ticket.granted);
        assert_eq!(granted, known.map(|ticket| ticket.number).collect::<Vec<u64>>());
        if let Some(keys) = &set.keys {
            assert!(self.is_keyed);
            assert_eq!(image[self.control + control::KEYS], keys.in_use);
        }
        self.check_table(&image).expect("a sound table");
        for (index, limit) in set.limits.iter().enumerate() {
            let counters = self.counters + index * counters::SIZE;
            assert_eq!(image[counters], limit.counts.admitted);
            assert_eq!(image[counters + counters::TAKEN], limit.counts.taken);
            assert_eq!(image[counters + counters::UNSETTLED], limit.counts.unsettled);
        }
    }

    /// What a user can see of the set. A word that means nothing in a free hold, or in a ticket's phase, is zero. So
    /// are amounts of batches, because what is left of a batch is spent without the journal; what became of a batch
    /// shows in what is left of the limit.
    pub fn canonical(&self, image: &[u64]) -> Vec<u64> {
        let words = self.canonical.iter().map(|word| image[*word]);
        let holds = self.holds.records().flat_map(|start| {
            let words = &image[start..start + self.holds.size];
            words.iter().enumerate().map(move |(word, value)| {
                let is_spent = self.draws && word >= hold::HEAD_SIZE;
                value * u64::from(means_something_in_hold(word, words[hold::OWNER]) && !is_spent)
            })
        });
        let tickets = self.tickets.records().flat_map(|start| {
            let words = &image[start..start + self.ticket_size()];
            let (state, request) = (words[ticket::STATE], words[ticket::REQUEST]);
            let serial = words[ticket::HOLD].checked_sub(1).and_then(|index| {
                let hold = self.holds.records().nth(usize::try_from(index).ok()?)?;
                image.get(hold + hold::SERIAL)
            });
            words.iter().enumerate().map(move |(word, value)| {
                let value = match word {
                    ticket::HOLD_SERIAL => u64::from(serial == Some(value)),
                    _ => *value,
                };
                value * u64::from(means_something(word, state, request))
            })
        });
        words.chain(holds).chain(tickets).collect()
    }

    /// Whether anything was counted.
    pub fn has_counted(&self, first: &[u64], last: &[u64]) -> bool {
        self.counted.iter().any(|word| first[*word] != last[*word])
    }

    /// Whether the counts under the lock have lost nothing that was counted before, nor what the operation itself
    /// counted if it finished, and whether no process counted twice. `last` is what the unkilled run had counted; each
    /// of the dead may have counted and been undone. What was `served` afterwards counts as well.
    pub fn check_counted(
        &self,
        first: &[u64],
        last: &[u64],
        found: &[u64],
        served: bool,
    ) -> Result<(), String> {
        // At most two have died: the process, and the one that recovered after it.
        let most = |first: u64, last: u64| first.max(last).saturating_add(2 * first.abs_diff(last));
        let shown = |word: &usize| {
            let (first, last, found) = (first[*word], last[*word], found[*word]);
            format!("word {word} counts {found:#x}, which was {first:#x} and became {last:#x}")
        };
        for word in &self.counted {
            let (first, last, found) = (first[*word], last[*word], found[*word]);
            if found < first.min(last) || (found > most(first, last) && !served) {
                return Err(shown(word));
            }
        }
        for word in &self.counted_of_keys {
            let halves = |image: &[u64]| [image[*word] & 0xffff_ffff, image[*word] >> 32];
            let known = halves(first).into_iter().zip(halves(last));
            let mut found = halves(found).into_iter().zip(known);
            if !served && found.any(|(found, (first, last))| found > most(first, last)) {
                return Err(shown(word));
            }
        }
        Ok(())
    }

    /// Whether any process has ever waited.
    pub fn has_used_tickets(&self, image: &[u64]) -> bool {
        image[self.control + control::UNTOUCHED_TICKET] > 0
    }

    /// Which definition is in force.
    pub fn generation(&self, image: &[u64]) -> u64 {
        image[self.generation]
    }

    /// Whether all limits follow the definition that is in force.
    pub fn check_generation(&self, image: &[u64]) -> Result<(), String> {
        let (in_force, own) = (image[self.generation], image[self.control + control::GENERATION]);
        let migrated = image[self.control + control::MIGRATED];
        if in_force != own || migrated != 0 {
            return Err(format!(
                "definition {in_force} is in force, the limits are by {own}, and {migrated} have been migrated"
            ));
        }
        Ok(())
    }

    /// Whether each row with a key has that key's tag and the others none, no key has two rows, and the pins of each
    /// row are the holds, and the granted or passed-over tickets, that name it. Stated here a second time, without the
    /// library.
    pub fn check_table(&self, image: &[u64]) -> Result<(), String> {
        if !self.is_keyed {
            return Ok(());
        }
        let mut keys = HashSet::new();
        for (number, row) in self.rows.records().enumerate() {
            let fingerprint = [0, 1].map(|half| image[row + row::FINGERPRINT + half]);
            let (bucket, slot) = (number / bucket::ROWS, number % bucket::ROWS);
            let tags = image[self.tags + bucket * bucket::TAG_WORDS + slot / bucket::WORD_TAGS];
            let tag = tags >> (16 * (slot % bucket::WORD_TAGS)) & 0xffff;
            let expected = match fingerprint {
                [0, 0] => 0,
                [_, high] => (high >> 8 & 0xffff).max(1),
            };
            if tag != expected {
                return Err(format!("row {number} has tag {tag:#x} instead of {expected:#x}"));
            }
            if fingerprint != [0, 0] && !keys.insert(fingerprint) {
                return Err(format!("row {number} is of a key that has another"));
            }
            // The upper half says what the row was before.
            let names_row = |place: &usize, word: usize| image[place + word] as u32 == number as u32;
            let is_taken = |hold: &usize| image[hold + hold::OWNER] != 0;
            let is_pinned = |ticket: &usize| image[ticket + ticket::STATE] & 3 >= ticket::GRANTED;
            let holds = self.holds.records().filter(is_taken);
            let tickets = self.tickets.records().filter(is_pinned);
            let pins = holds.filter(|hold| names_row(hold, hold::ROW)).count()
                + tickets.filter(|ticket| names_row(ticket, ticket::ROW)).count();
            if image[row + row::ROW_REFERENCES] >> 40 != pins as u64 {
                return Err(format!(
                    "row {number} is tied by {:#x}, and {pins} name it",
                    image[row + row::ROW_REFERENCES]
                ));
            }
        }
        if image[self.control + control::KEYS] != keys.len() as u64 {
            return Err(format!("{} keys have rows, which is not counted", keys.len()));
        }
        Ok(())
    }

    /// The latest instant at which anything was decided.
    pub fn last_seen(&self, file: &RawFile) -> Duration {
        Duration::from_nanos(file.word(self.control + control::LAST_SEEN))
    }

    pub fn keeps_labels(&self) -> bool {
        self.labels.count > 0
    }

    /// The label of each hold in use that has one, and the first amount that is held there.
    pub fn labels<'a>(&'a self, image: &'a [u64]) -> impl Iterator<Item = (u64, String)> + 'a {
        let places = self.holds.records().zip(self.labels.records());
        places.filter_map(|(hold, label)| {
            let stamp = image[label + label::STAMP];
            let is_its = stamp != 0 && stamp << 8 == image[hold + hold::SERIAL] << 8;
            let bytes = image[label + label::TEXT..label + label::SIZE]
                .iter()
                .flat_map(|word| word.to_ne_bytes())
                .take((stamp >> 56) as usize)
                .collect();
            let text = String::from_utf8(bytes).unwrap_or_else(|_| "no text".to_owned());
            (is_its && image[hold + hold::OWNER] != 0).then(|| (image[hold + hold::HEAD_SIZE], text))
        })
    }

    fn ticket_size(&self) -> usize {
        ticket::HEAD_SIZE + self.limits * ticket::LIMIT_SIZE
    }

    /// How many holds and tickets belong to participants of these processes.
    pub fn owned_by(&self, image: &[u64], pids: &[u32]) -> usize {
        let is_theirs = |owner: u64| {
            let participant = (owner & 0xffff).checked_sub(1).and_then(|slot| {
                let start = self.participants + usize::try_from(slot).ok()? * participant::SIZE;
                image.get(start..start + participant::SIZE)
            });
            participant.is_some_and(|participant| {
                let is_the_same = participant[participant::STATE] >> 2 == owner >> 16;
                let pid = participant[participant::PID];
                is_the_same && pids.iter().any(|it| u64::from(*it) == pid)
            })
        };
        let holds = self.holds.records().map(|hold| image[hold + hold::OWNER]);
        let tickets = self
            .tickets
            .records()
            .filter(|ticket| image[ticket + ticket::STATE] & 3 != 0)
            .map(|ticket| image[ticket + ticket::OWNER]);
        holds.chain(tickets).filter(|owner| is_theirs(*owner)).count()
    }

    /// Makes the leases of everything that is held end long ago.
    pub fn let_leases_run_out(&self, file: &RawFile) {
        for hold in self.holds.records() {
            if file.words()[hold + hold::OWNER].load(Ordering::Relaxed) != 0 {
                file.words()[hold + hold::RENEWED_AT].store(1, Ordering::Relaxed);
            }
        }
    }

    /// The counters that change without the lock.
    pub fn unlocked(&self, image: &[u64]) -> Vec<u64> {
        self.unlocked.iter().map(|word| image[*word]).collect()
    }

    /// Whether what changes without the journal has only grown, and no search for marks is pending.
    pub fn check_unjournalled(&self, first: &[u64], found: &[u64]) -> Result<(), String> {
        if let Some(word) = self
            .unjournalled
            .iter()
            .find(|word| found[**word] < first[**word])
        {
            return Err(format!(
                "{} became {}, which only grows",
                first[*word], found[*word]
            ));
        }
        match found[self.control + control::MARKS] {
            0 => Ok(()),
            marks => Err(format!("there is still {marks:#x} to be searched for marks")),
        }
    }

    /// How many words an unfinished operation has noted; 255 during a reset.
    pub fn journal_count(&self, image: &[u64]) -> u64 {
        image[self.journal_word()] & 0xff
    }

    /// A number that grows with every operation that finishes.
    pub fn journal_sequence(&self, image: &[u64]) -> u64 {
        image[self.journal_word()] >> 8
    }

    /// Where the journal's word is.
    pub fn journal_word(&self) -> usize {
        self.control + control::JOURNAL
    }

    pub fn is_poisoned(&self, image: &[u64]) -> bool {
        image[self.control + control::POISONED] != 0
    }

    /// The byte at which the lock begins.
    pub fn lock_offset(&self) -> usize {
        8 * self.control
    }

    /// The byte at which the lock word begins.
    pub fn lock_word_offset(&self) -> usize {
        let index = if self.has_slot_lock { 0 } else { LOCK_WORD_INDEX };
        self.lock_offset() + 4 * index
    }

    /// Whether the thread holds the lock. It is the only one of its process that acts as a participant.
    pub fn is_held_by(&self, image: &[u64], thread: u32) -> bool {
        self.holder(self.lock(image), |word| image[word]) == thread
    }

    /// The thread that a lock word names, or the process of the participant that it names; zero if the lock is free, or
    /// if the next process may take it over because that participant is gone.
    pub fn holder(&self, lock: u32, word: impl Fn(usize) -> u64) -> u32 {
        if !self.has_slot_lock {
            return lock & libc::FUTEX_TID_MASK;
        }
        let Some(slot) = usize::try_from(lock & 0xffff).expect("small").checked_sub(1) else {
            return 0;
        };
        let participant = self.participant(slot);
        let state = word(participant + participant::STATE);
        let is_its_life = (state >> 2) & 0x7fff == u64::from(lock >> 16) & 0x7fff;
        if is_its_life && state & 3 == participant::LIVE {
            u32::try_from(word(participant + participant::PID)).expect("a process id")
        } else {
            0
        }
    }

    fn participant(&self, slot: usize) -> usize {
        self.participants + slot * participant::SIZE
    }

    /// The lock word of an attached process, if the lock is a slot lock.
    pub fn own_slot_lock(&self, process: u32, file: &RawFile) -> Option<u64> {
        if !self.has_slot_lock {
            return None;
        }
        let is_own = |slot: &usize| {
            let participant = self.participant(*slot);
            file.word(participant + participant::PID) == u64::from(process)
                && file.word(participant + participant::STATE) & 3 == participant::LIVE
        };
        let slot = (0..self.participant_count).find(is_own).expect("attached");
        let generation = file.word(self.participant(slot) + participant::STATE) >> 2;
        let slot = u64::try_from(slot).expect("small") + 1;
        Some((generation >> 15) << 32 | (generation & 0x7fff) << 16 | slot)
    }

    /// Whether it takes a process that asks for the lock to find that its owner is dead, because the kernel does not.
    pub fn has_slot_lock(&self) -> bool {
        self.has_slot_lock
    }

    fn lock(&self, image: &[u64]) -> u32 {
        let halves = image[self.lock_word_offset() / 8].to_ne_bytes();
        let start = self.lock_word_offset() % 8;
        u32::from_ne_bytes([
            halves[start],
            halves[start + 1],
            halves[start + 2],
            halves[start + 3],
        ])
    }

    /// Does what the kernel does to the lock of a dead thread: the thread's id goes, the mark of waiters stays, and the
    /// mark of a dead owner is set. The links of the robust list in the rest of the mutex stay as they are: addresses
    /// of a process that is gone, which the next process that takes the lock overwrites before anything reads them.
    pub fn hand_on_lock(&self, image: &mut [u64]) {
        if self.has_slot_lock {
            // The word stays as it is: its owner is dead.
            return;
        }
        let word = (self.lock(image) & libc::FUTEX_WAITERS) | libc::FUTEX_OWNER_DIED;
        let index = self.lock_word_offset() / 8;
        let start = self.lock_word_offset() % 8;
        let mut bytes = image[index].to_ne_bytes();
        bytes[start..start + 4].copy_from_slice(&word.to_ne_bytes());
        image[index] = u64::from_ne_bytes(bytes);
    }

    /// Makes the owner of a slot dead: the slot is free, in its next generation, as when others have found it so.
    /// Otherwise no process whose byte is locked is dead, and in copies all bytes are locked.
    pub fn bury(&self, image: &mut [u64], slot: usize) {
        let state = self.participants + slot * participant::SIZE + participant::STATE;
        image[state] = buried(image[state]);
    }

    /// As [`bury`](Self::bury), for every process but one, in the file itself.
    pub fn bury_all_but(&self, survivor: u32, file: &RawFile) {
        for slot in 0..self.participant_count {
            let participant = self.participants + slot * participant::SIZE;
            if file.words()[participant + participant::PID].load(Ordering::Relaxed) != u64::from(survivor) {
                let state = &file.words()[participant + participant::STATE];
                state.store(buried(state.load(Ordering::Relaxed)), Ordering::Relaxed);
            }
        }
    }
}

/// The state of a slot once it is freed.
fn buried(state: u64) -> u64 {
    ((state >> 2) + 1) << 2
}
