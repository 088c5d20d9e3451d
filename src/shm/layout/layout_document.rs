//! Keeps `shm-layout.md` and the code in step: every record, field, offset, size and constant that the document
//! states is the one in the code, and the other way round.

use std::collections::BTreeMap;

use super::records::{Field, RECORDS, fingerprint};
use super::{geometry, records};
use crate::shm::lock::journal;
use crate::shm::process::participant::{ParticipantId, ParticipantState, Phase};
use crate::units;

const DOCUMENT: &str = include_str!("../../../shm-layout.md");

/// A record as the document states it.
#[derive(Debug, PartialEq, Eq)]
struct Record<'a> {
    name: &'a str,
    size: usize,
    fields: Vec<Row<'a>>,
}

#[derive(Debug, PartialEq, Eq)]
struct Row<'a> {
    offset: usize,
    size: usize,
    field: &'a str,
}

/// The cells of a table row; `None` for any other line.
fn cells(line: &str) -> Option<Vec<&str>> {
    let inner = line.strip_prefix('|')?.strip_suffix('|')?;
    Some(inner.split('|').map(str::trim).collect())
}

fn code(cell: &str) -> Option<&str> {
    cell.strip_prefix('`')?.strip_suffix('`')
}

/// The tables under headings such as "### `Header`: 512 bytes".
fn documented_records() -> Vec<Record<'static>> {
    let mut records: Vec<Record<'_>> = Vec::new();
    let mut is_in_record = false;
    for line in DOCUMENT.lines() {
        if line.starts_with('#') {
            let heading = line.strip_prefix("### ").and_then(|heading| {
                let (name, size) = heading.split_once(": ")?;
                Some((code(name)?, size.strip_suffix(" bytes")?))
            });
            is_in_record = heading.is_some();
            if let Some((name, size)) = heading {
                let size = size.parse().expect("a size in a heading");
                let fields = Vec::new();
                records.push(Record { name, size, fields });
            }
            continue;
        }
        let (true, Some(record), Some(cells)) = (is_in_record, records.last_mut(), cells(line)) else {
            continue;
        };
        let [offset, size, field, meaning] = cells[..] else {
            panic!(
                "a table of `{}` has a row of other than four cells: {line}",
                record.name
            );
        };
        let Some(field) = code(field) else {
            assert!(
                offset == "offset" || offset == "---",
                "a row without a field: {line}"
            );
            continue;
        };
        assert!(!meaning.is_empty(), "a row without a meaning: {line}");
        record.fields.push(Row {
            offset: offset.parse().expect("an offset"),
            size: size.parse().expect("a size"),
            field,
        });
    }
    records
}

/// The second cell by the first, for all tables of the document with at least two columns whose first cell is code.
fn documented_values() -> BTreeMap<&'static str, &'static str> {
    DOCUMENT
        .lines()
        .filter_map(cells)
        .filter_map(|cells| Some((code(cells.first()?)?, *cells.get(1)?)))
        .collect()
}

#[test]
fn every_record_is_documented_with_its_fields_in_order() {
    let actual: Vec<Record<'_>> = RECORDS
        .iter()
        .map(|(name, size, fields)| Record {
            name,
            size: *size,
            fields: fields
                .iter()
                .map(|Field { name, offset, size }| Row {
                    offset: *offset,
                    size: *size,
                    field: name,
                })
                .collect(),
        })
        .collect();
    let documented = documented_records();
    for (documented, actual) in documented.iter().zip(&actual) {
        assert_eq!(documented, actual);
    }
    assert_eq!(documented.len(), actual.len());
}

#[test]
fn fields_fill_their_records_without_gaps() {
    for (name, size, fields) in RECORDS {
        let mut end = 0;
        for field in *fields {
            assert_eq!(field.offset, end, "a gap before {name}.{}", field.name);
            end += field.size;
        }
        assert_eq!(end, *size, "a gap at the end of {name}");
    }
}

#[test]
fn every_constant_is_documented() {
    let documented = documented_values();
    for (name, value) in [
        ("FORMAT", records::FORMAT),
        ("ALIGNMENT", records::ALIGNMENT),
        ("HEADER_SPACE", records::HEADER_SPACE),
        ("JOURNAL_ENTRIES", records::JOURNAL_ENTRIES as u64),
        ("BUCKET_ROWS", units::BUCKET_ROWS),
        ("BUCKET_TAG_WORDS", units::BUCKET_TAG_WORDS),
        ("WAKE_LIST", records::WAKE_LIST as u64),
        ("LABEL_WORDS", records::LABEL_WORDS as u64),
        ("RESET_MARKER", journal::RESET_MARKER),
        ("REBUILD_MARKER", journal::REBUILD_MARKER),
        ("CHANGE_MARKER", journal::CHANGE_MARKER),
        ("SET_UNCHECKED", records::SET_UNCHECKED),
        ("SET_UNRECOVERED", records::SET_UNRECOVERED),
        ("RETIRED", records::RETIRED),
        ("RETIRED_AS_DELETED", records::RETIRED_AS_DELETED),
        ("MAX_PARTICIPANTS", records::MAX_PARTICIPANTS),
        ("MAX_SETS", records::MAX_SETS),
        ("MAX_LIMITS", records::MAX_LIMITS as u64),
        ("MAX_SHARDS", geometry::MAX_SHARDS),
        ("MAX_ROWS", geometry::MAX_ROWS),
        ("MAX_BYTES", geometry::MAX_BYTES),
        ("LOCK_KIND_ROBUST_MUTEX", records::LOCK_KIND_ROBUST_MUTEX),
        ("LOCK_KIND_SLOT", records::LOCK_KIND_SLOT),
        ("CLOCK_BOOT_TIME", records::CLOCK_BOOT_TIME),
        ("COMPATIBLE_FEATURES", records::COMPATIBLE_FEATURES),
        ("SYSTEM_CLOCK", records::SYSTEM_CLOCK),
        ("INCOMPATIBLE_FEATURES", records::INCOMPATIBLE_FEATURES),
        ("LEASES", records::LEASES),
    ] {
        assert_eq!(
            documented.get(name).map(|value| value.parse()),
            Some(Ok(value)),
            "{name}"
        );
    }
    assert!(DOCUMENT.contains(&format!("`{:#018x}`", records::BYTE_ORDER)));
}

#[test]
fn packed_words_are_packed_as_documented() {
    for (phase, bits) in [(Phase::Free, 0), (Phase::Joining, 1), (Phase::Live, 2)] {
        let state = ParticipantState { generation: 5, phase };
        assert_eq!(state.to_word(), 5 << 2 | bits);
    }
    assert_eq!(ParticipantState::from_word(3).phase, Phase::Free);
    let owner = ParticipantId {
        slot: 3,
        generation: 5,
    };
    assert_eq!(owner.to_word(), 5 << 16 | 4);
    assert_eq!(ParticipantId::from_word(5 << 16), None);
}

/// If these numbers change, so does the format, and old files are refused. Update the document too, with an entry in
/// the history of formats.
#[test]
#[cfg(target_pointer_width = "64")]
fn the_fingerprints_are_the_documented_ones() {
    let documented = |target: &str| {
        let mut rows = DOCUMENT.lines().filter_map(cells);
        let row = rows
            .find(|cells| cells[0] == target)
            .expect("a row for this target");
        code(row[1]).map(str::to_owned)
    };
    let stated = |has_mutexes| Some(format!("{:#018x}", fingerprint(has_mutexes)));
    assert_eq!(documented("`slot` locks: any"), stated(false));
    if cfg!(all(target_arch = "x86_64", target_env = "gnu")) {
        assert_eq!(documented("robust mutexes: x86_64, glibc"), stated(true));
    }
}
