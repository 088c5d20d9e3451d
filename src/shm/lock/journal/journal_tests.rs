//! What is put back after each kind of death, and what readers without the lock take for consistent.

use super::super::journal::*;
use crate::shm::file::region::load_acquire;
use crate::shm::layout::records::SharedRecord;

/// An extent as `geometry.rs` lays it out: definition, lock, journal word, a word, entries, a word.
const LOCK: usize = 1;
const JOURNAL: usize = 2;
const BEFORE_ENTRIES: usize = 3;
const ENTRIES: usize = 4;
const ENTRY_COUNT: usize = 2;
const AFTER_ENTRIES: usize = ENTRIES + 2 * ENTRY_COUNT;

struct Extent {
    region: crate::shm::file::region::Region,
}

impl Extent {
    fn new() -> Self {
        let region = crate::shm::file::region::Region::private(4096).expect("memory");
        Self { region }
    }

    fn words(&self) -> &[AtomicU64] {
        self.region.words(0, AFTER_ENTRIES as u64 + 1).expect("within")
    }

    fn journal(&self) -> Journal<'_> {
        assert_eq!(JournalEntry::FIELDS.len(), 2);
        let entries = self.region.records(ENTRIES as u64 * 8, ENTRY_COUNT as u64);
        Journal::new(&self.words()[JOURNAL], entries.expect("within"), self.words())
    }

    fn values(&self) -> Vec<u64> {
        self.words()
            .iter()
            .map(|word| word.load(Ordering::Relaxed))
            .collect()
    }
}

#[test]
fn what_was_not_committed_is_put_back_and_the_sequence_moves_on() {
    let extent = Extent::new();
    let before = extent.values();
    let mut transaction = extent.journal().begin();
    transaction.store(&extent.words()[BEFORE_ENTRIES], 7);
    transaction.store(&extent.words()[AFTER_ENTRIES], 8);
    assert_eq!(extent.journal().state(), JournalState::Undo(2));
    drop(transaction);
    assert_eq!(extent.journal().state(), JournalState::Idle);
    for index in [BEFORE_ENTRIES, AFTER_ENTRIES] {
        assert_eq!(extent.values()[index], before[index]);
    }
    assert_eq!(extent.journal().sequence_if_idle(), Some(1 << COUNT_BITS));
}

#[test]
fn the_sequence_moves_on_by_one_with_each_change_whatever_kind_it_is() {
    let extent = Extent::new();
    let word = &extent.words()[AFTER_ENTRIES];
    for round in 0..6 {
        assert_eq!(extent.journal().sequence_if_idle(), Some(round << COUNT_BITS));
        let begun = extent.journal().sequence_if_idle().expect("idle");
        match round % 3 {
            0 => {
                let mut transaction = extent.journal().begin();
                transaction.store(word, round + 1);
                assert_eq!(extent.journal().sequence_if_idle(), None);
                transaction.commit().expect("room");
            }
            1 => {
                let mut transaction = extent.journal().begin();
                transaction.store(word, round + 1);
                drop(transaction);
            }
            _ => {
                extent.journal().mark_reset();
                assert_eq!(extent.journal().state(), JournalState::Reset);
                extent.journal().close();
            }
        }
        assert!(!extent.journal().unchanged_since(begun), "round {round}");
    }
}

#[test]
fn while_an_operation_is_in_progress_the_word_keeps_its_sequence() {
    let extent = Extent::new();
    extent.journal().mark_rebuild();
    assert_eq!(extent.journal().state(), JournalState::Rebuild);
    extent.journal().close();
    let mut transaction = extent.journal().begin();
    transaction.store(&extent.words()[AFTER_ENTRIES], 1);
    assert_eq!(extent.values()[JOURNAL], (1 << COUNT_BITS) | 1);
    transaction.store(&extent.words()[BEFORE_ENTRIES], 1);
    assert_eq!(extent.values()[JOURNAL], (1 << COUNT_BITS) | 2);
}

#[test]
fn the_words_that_the_latest_operation_changed_are_noted_after_it_has_ended() {
    let extent = Extent::new();
    let mut transaction = extent.journal().begin();
    for index in [AFTER_ENTRIES, BEFORE_ENTRIES] {
        transaction.store(&extent.words()[index], 1);
    }
    transaction.commit().expect("room");
    let noted: Vec<u64> = extent.journal().noted().collect();
    assert_eq!(noted, [AFTER_ENTRIES as u64, BEFORE_ENTRIES as u64]);
}

#[test]
fn a_word_that_was_changed_twice_gets_its_oldest_value_back() {
    let extent = Extent::new();
    let word = &extent.words()[AFTER_ENTRIES];
    word.store(5, Ordering::Relaxed);
    let mut transaction = extent.journal().begin();
    transaction.store(word, 6);
    transaction.store(word, 7);
    drop(transaction);
    assert_eq!(word.load(Ordering::Relaxed), 5);
}

#[test]
fn an_operation_without_room_is_undone_and_says_so() {
    let extent = Extent::new();
    let word = &extent.words()[AFTER_ENTRIES];
    let mut transaction = extent.journal().begin();
    for value in 1..=ENTRY_COUNT as u64 + 1 {
        transaction.store(word, value);
    }
    // The word without an entry was not changed.
    assert_eq!(word.load(Ordering::Relaxed), ENTRY_COUNT as u64);
    assert_eq!(transaction.commit(), Err(JournalOverflow));
    drop(transaction);
    assert_eq!(word.load(Ordering::Relaxed), 0);
    assert_eq!(extent.journal().state(), JournalState::Idle);
}

#[test]
fn a_word_outside_the_extent_is_not_changed_and_the_rest_is_undone() {
    let extent = Extent::new();
    let inside = &extent.words()[AFTER_ENTRIES];
    // The words next to the extent belong to another set.
    let mapped = extent.region.words(0, AFTER_ENTRIES as u64 + 2).expect("within");
    let without_the_first = Journal {
        extent: &extent.words()[1..],
        ..extent.journal()
    };
    let elsewhere = AtomicU64::new(0);
    for (journal, outside) in [
        (extent.journal(), &elsewhere),
        (extent.journal(), &mapped[AFTER_ENTRIES + 1]),
        (without_the_first, &mapped[0]),
    ] {
        outside.store(3, Ordering::Relaxed);
        let mut transaction = journal.begin();
        transaction.store(inside, 1);
        transaction.store(outside, 4);
        assert_eq!(transaction.commit(), Err(JournalOverflow));
        drop(transaction);
        assert_eq!(
            (inside.load(Ordering::Relaxed), outside.load(Ordering::Relaxed)),
            (0, 3)
        );
    }
}

#[test]
fn wherever_an_operation_dies_recovery_finds_the_words_as_they_were_before_it() {
    let steps: [fn(&mut Transaction<'_>, &AtomicU64); 4] = [
        |transaction, word| transaction.store(word, 9),
        |transaction, word| transaction.store(word, 0),
        |transaction, word| transaction.add(word, 2),
        |transaction, word| transaction.subtract(word, 2),
    ];
    let words = [BEFORE_ENTRIES, AFTER_ENTRIES];
    for (first, second) in steps
        .iter()
        .flat_map(|first| steps.iter().map(move |second| (first, second)))
    {
        for [at_first, at_second] in [[0, 0], [0, 1], [1, 0], [1, 1]] {
            for completed in 0..=2 {
                let extent = Extent::new();
                let guarded = words.map(|index| &extent.words()[index]);
                guarded.iter().for_each(|word| word.store(5, Ordering::Relaxed));
                let begun = extent.journal().sequence_if_idle().expect("idle");
                let mut transaction = extent.journal().begin();
                let of_operation = [(first, at_first), (second, at_second)];
                for (step, at) in of_operation.into_iter().take(completed) {
                    step(&mut transaction, guarded[at]);
                }
                // A killed process drops nothing.
                std::mem::forget(transaction);
                // A recoverer that is killed before it closes the journal leaves the work to the next one.
                for _ in 0..2 {
                    if let JournalState::Undo(count) = extent.journal().state() {
                        assert!(extent.journal().undo(count));
                    }
                }
                extent.journal().close();
                assert_eq!(guarded.map(|word| word.load(Ordering::Relaxed)), [5, 5]);
                assert_eq!(extent.journal().state(), JournalState::Idle);
                assert!(!extent.journal().unchanged_since(begun));
            }
        }
    }
}

#[test]
fn a_death_within_a_store_is_undone_as_one_before_or_after_it() {
    let extent = Extent::new();
    let journal = extent.journal();
    let [first, second] = [BEFORE_ENTRIES, AFTER_ENTRIES].map(|index| &extent.words()[index]);
    let mut transaction = journal.begin();
    transaction.store(first, 6);
    std::mem::forget(transaction);
    // The entry of the second store is complete, but the count does not include it yet.
    second.store(5, Ordering::Relaxed);
    journal.entries[1]
        .index
        .store(AFTER_ENTRIES as u64, Ordering::Relaxed);
    journal.entries[1].old.store(4, Ordering::Relaxed);
    assert!(journal.undo(1));
    let values = || [first, second].map(|word| word.load(Ordering::Relaxed));
    assert_eq!(values(), [0, 5]);
    // The count includes it, but the word does not have its new value yet.
    journal.entries[1].old.store(5, Ordering::Relaxed);
    assert!(journal.undo(2));
    assert_eq!(values(), [0, 5]);
}

#[test]
fn what_was_read_while_nothing_changed_may_be_used() {
    let extent = Extent::new();
    let word = &extent.words()[AFTER_ENTRIES];
    for value in [0, 7] {
        let mut transaction = extent.journal().begin();
        transaction.store(word, value);
        transaction.commit().expect("room");
        let sequence = extent.journal().sequence_if_idle().expect("idle");
        assert!(extent.journal().unchanged_since(sequence));
        // Neither an operation that stores the same value nor one that does nothing is a change.
        let mut transaction = extent.journal().begin();
        transaction.store(word, value);
        drop(transaction);
        drop(extent.journal().begin());
        assert!(extent.journal().unchanged_since(sequence));
    }
}

#[test]
fn a_reader_beside_a_writer_uses_no_half_of_a_change() {
    const CHANGES: u64 = if cfg!(miri) { 20 } else { 20_000 };
    let extent = Extent::new();
    let words = [BEFORE_ENTRIES, AFTER_ENTRIES].map(|index| &extent.words()[index]);
    let committed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for change in 1..=CHANGES {
                let mut transaction = extent.journal().begin();
                for word in words {
                    transaction.store(word, change);
                }
                transaction.commit().expect("room");
                committed.store(change, Ordering::Release);
            }
        });
        loop {
            let done = load_acquire(&committed);
            let journal = extent.journal();
            if let Some(sequence) = journal.sequence_if_idle() {
                let seen = words.map(|word| word.load(Ordering::Relaxed));
                if journal.unchanged_since(sequence) {
                    assert_eq!(seen[0], seen[1], "halves of two changes");
                    assert!(seen[0] >= done, "older than what was committed before the look");
                }
            }
            if done == CHANGES {
                break;
            }
            std::thread::yield_now();
        }
    });
}

#[test]
fn a_reader_beside_a_writer_of_one_word_at_a_time_sees_no_change_without_those_before_it() {
    const CHANGES: u64 = if cfg!(miri) { 20 } else { 20_000 };
    let extent = Extent::new();
    let words = [BEFORE_ENTRIES, AFTER_ENTRIES].map(|index| &extent.words()[index]);
    let counted = AtomicU64::new(0);
    let journal_word = &extent.words()[JOURNAL];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for change in 1..=CHANGES {
                for word in words {
                    let lone = LoneChange::begin(journal_word);
                    count(&counted, 1);
                    lone.change(word, change);
                }
            }
        });
        let mut seen = [0; 2];
        while seen[1] < CHANGES {
            if let Some(sequence) = extent.journal().sequence_if_idle() {
                let copy = words.map(|word| word.load(Ordering::Relaxed));
                let changes = counted.load(Ordering::Relaxed);
                if extent.journal().unchanged_since(sequence) {
                    seen = copy;
                    assert!(seen[0] >= seen[1], "a change without the one before it: {seen:?}");
                    assert_eq!(
                        seen[0] + seen[1],
                        changes,
                        "what was counted is what was changed: {seen:?}"
                    );
                }
            }
            std::thread::yield_now();
        }
    });
    assert_eq!(
        extent.journal().sequence_if_idle(),
        Some((2 * CHANGES) << COUNT_BITS),
        "each change moves the sequence on by one"
    );
}

#[test]
fn a_word_that_changes_alone_takes_no_entry_and_says_that_it_is_about_to() {
    let extent = Extent::new();
    let word = &extent.words()[AFTER_ENTRIES];
    let noted: Vec<u64> = extent.journal().noted().collect();
    let lone = LoneChange::begin(&extent.words()[JOURNAL]);
    assert_eq!(extent.journal().state(), JournalState::Change);
    assert_eq!(extent.journal().sequence_if_idle(), None);
    lone.change(word, 7);
    assert_eq!(word.load(Ordering::Relaxed), 7);
    assert_eq!(extent.journal().noted().collect::<Vec<_>>(), noted);
    assert_eq!(extent.journal().sequence_if_idle(), Some(1 << COUNT_BITS));
}

#[test]
fn amounts_are_added_and_subtracted_within_what_a_word_can_hold() {
    let extent = Extent::new();
    let word = &extent.words()[AFTER_ENTRIES];
    for (value, amount, sum, difference) in [
        (5, 2, 7, 3),
        (5, 0, 5, 5),
        (5, 5, 10, 0),
        (5, 6, 11, 0),
        (u64::MAX - 1, 3, u64::MAX, u64::MAX - 4),
    ] {
        for (expected, is_sum) in [(sum, true), (difference, false)] {
            word.store(value, Ordering::Relaxed);
            let mut transaction = extent.journal().begin();
            if is_sum {
                transaction.add(word, amount);
            } else {
                transaction.subtract(word, amount);
            }
            transaction.commit().expect("room");
            assert_eq!(word.load(Ordering::Relaxed), expected, "{value}, {amount}");
        }
    }
}

#[test]
fn a_raised_word_keeps_the_largest_value() {
    let extent = Extent::new();
    let word = &extent.words()[AFTER_ENTRIES];
    for (value, largest) in [(3, 3), (2, 3), (3, 3), (4, 4), (0, 4), (u64::MAX, u64::MAX)] {
        let mut transaction = extent.journal().begin();
        transaction.raise(word, value);
        transaction.commit().expect("room");
        assert_eq!(word.load(Ordering::Relaxed), largest);
    }
}

#[test]
fn what_was_committed_stays_and_the_sequence_moves_on_once() {
    let extent = Extent::new();
    let word = &extent.words()[BEFORE_ENTRIES];
    let mut transaction = extent.journal().begin();
    transaction.store(word, 7);
    transaction.add(word, u64::MAX);
    assert_eq!(transaction.commit(), Ok(()));
    assert_eq!(word.load(Ordering::Relaxed), u64::MAX);
    assert_eq!(extent.journal().sequence_if_idle(), Some(1 << COUNT_BITS));
    // Committing nothing is not a commit.
    assert_eq!(extent.journal().begin().commit(), Ok(()));
    assert_eq!(extent.journal().sequence_if_idle(), Some(1 << COUNT_BITS));
}

#[test]
fn a_count_beyond_the_entries_is_damage() {
    let extent = Extent::new();
    let journal = extent.journal();
    journal.word.store(ENTRY_COUNT as u64 + 1, Ordering::Relaxed);
    assert_eq!(journal.state(), JournalState::Damaged(ENTRY_COUNT as u64 + 1));
    assert_eq!(journal.sequence_if_idle(), None);
    journal.word.store(RESET_MARKER, Ordering::Relaxed);
    assert_eq!(journal.state(), JournalState::Reset);
}

#[test]
fn a_damaged_entry_reaches_neither_the_lock_nor_the_journal() {
    for index in [
        0,
        LOCK,
        JOURNAL,
        ENTRIES,
        AFTER_ENTRIES - 1,
        AFTER_ENTRIES + 1,
        usize::MAX,
    ] {
        let extent = Extent::new();
        let journal = extent.journal();
        journal.entries[0].index.store(index as u64, Ordering::Relaxed);
        journal.entries[0].old.store(99, Ordering::Relaxed);
        journal.word.store(1, Ordering::Relaxed);
        let before = extent.values();
        assert!(!journal.undo(1), "entry {index} was taken for sound");
        assert_eq!(extent.values(), before);
    }
}
