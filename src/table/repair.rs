//! Whether the index is sound, and how it is made sound again.

use super::{BUCKET_ROWS, Fingerprint, Table, TableMut, find, store_tag, tag};

/// Whether every one of the rows that has a tag is the one that its key is found in, and the others have no key.
pub(crate) fn is_consistent(table: &(impl Table + ?Sized), rows: impl IntoIterator<Item = u64>) -> bool {
    rows.into_iter().all(|row| {
        let fingerprint = table.fingerprint(row);
        if tag(table, row) == 0 {
            return fingerprint == Fingerprint::NONE;
        }
        // A wrong tag, a wrong bucket, and a row before that has the same key: each keeps this row from being found.
        fingerprint != Fingerprint::NONE && find(table, fingerprint) == Some(row)
    })
}

/// Makes the tags again from the fingerprints, and clears rows whose key cannot be theirs.
///
/// Of rows with the same key the one stays that is found already. Cut short anywhere and begun again, it comes to the
/// same end, and a second time it changes nothing.
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
