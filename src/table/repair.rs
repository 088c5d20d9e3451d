//! Checking and repairing the index.

use super::{BUCKET_ROWS, Fingerprint, Table, TableMut, find, store_tag, tag};

/// Whether each of `rows` that has a tag is the one found for its key, and the others have no key.
pub(crate) fn is_consistent(table: &(impl Table + ?Sized), rows: impl IntoIterator<Item = u64>) -> bool {
    rows.into_iter().all(|row| {
        let fingerprint = table.fingerprint(row);
        if tag(table, row) == 0 {
            return fingerprint == Fingerprint::NONE;
        }
        // A wrong tag, a wrong bucket or an earlier row with the same key would each keep this row from being found.
        fingerprint != Fingerprint::NONE && find(table, fingerprint) == Some(row)
    })
}

/// Restores the tags from the fingerprints, and clears rows whose key cannot belong there.
///
/// If several rows have the same key, the one that is found stays. Idempotent, and may be interrupted and restarted
/// anywhere with the same result.
pub(crate) fn rebuild(table: &mut (impl TableMut + ?Sized)) {
    let buckets = table.buckets();
    for row in 0..buckets * BUCKET_ROWS {
        let fingerprint = table.fingerprint(row);
        if fingerprint != Fingerprint::NONE && fingerprint.buckets(buckets).contains(&(row / BUCKET_ROWS)) {
            store_tag(table, row, fingerprint.tag());
        } else {
            clear(table, row);
        }
    }
    for row in 0..buckets * BUCKET_ROWS {
        if tag(table, row) != 0 && find(table, table.fingerprint(row)) != Some(row) {
            clear(table, row);
        }
    }
}

fn clear(table: &mut (impl TableMut + ?Sized), row: u64) {
    table.store_fingerprint(row, Fingerprint::NONE);
    store_tag(table, row, 0);
}
