//! Human-readable keys.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::time::Duration;

use shmlimit::snapshot::{KeyInOrder, KeyLabel, KeyLeaseSnapshot, KeyLimitSnapshot, KeysSnapshot};

use super::amounts::amount_of_key;
use super::human::{self, count};
use super::table::Cell;
use super::{sanitise, style};

/// A key on one line: its text, or its bytes in hexadecimal. If these are not the whole key, its length and the
/// beginning of its fingerprint follow. If no bytes are stored, the line is the fingerprint.
pub fn key(label: &KeyLabel) -> String {
    let Some(kept) = &label.kept else {
        return format!("#{}", label.fingerprint);
    };
    let mut shown = label
        .text()
        .map_or_else(|| format!("0x{}", hex(kept)), sanitise::line);
    if let (true, Some(bytes)) = (label.is_cut(), label.bytes) {
        let fingerprint = label.fingerprint.to_string();
        shown.push_str(&format!("... ({}) #{fingerprint:.8}", human::bytes(bytes)));
    }
    shown
}

/// A key on one line, or nothing if there is no key.
pub fn of(label: Option<&KeyLabel>) -> String {
    label.map(key).unwrap_or_default()
}

/// The share that a key gets of limits of all keys while the same keys wait, and its weight. Empty if it does not wait
/// for such limits.
pub fn share(in_order: Option<KeyInOrder>) -> String {
    in_order.map_or_else(String::new, |key| {
        let percent = 100.0 * key.weight as f64 / key.weight_of_all.max(1) as f64;
        format!("{percent:.0} % (weight {})", key.weight)
    })
}

/// How far a key is ahead of the others that wait for limits of all keys. Empty if it is not ahead.
pub fn lead(in_order: Option<KeyInOrder>) -> String {
    let lead = in_order.map(|key| key.lead).filter(|lead| !lead.is_zero());
    lead.map(human::duration).unwrap_or_default()
}

/// A key that someone typed, whole.
pub fn whole(key: &[u8]) -> String {
    std::str::from_utf8(key).map_or_else(|_| format!("0x{}", hex(key)), sanitise::line)
}

/// A key that someone typed, cut to as little as is shown of other keys.
pub fn typed(key: &[u8]) -> String {
    let is_start = |end: &usize| std::str::from_utf8(key).map_or(true, |text| text.is_char_boundary(*end));
    let end = (0..=harmless(key)).rev().find(is_start).unwrap_or(0);
    format!("{}... ({})", whole(&key[..end]), human::bytes(key.len() as u64))
}

/// How many of a key's first bytes can be shown without being usable in its place.
pub fn harmless(key: &[u8]) -> usize {
    (key.len() / 4).min(4)
}

/// A key as an address, if it is one.
pub fn address(key: &OsStr) -> Option<IpAddr> {
    key.to_str()?.parse().ok()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// How full a table of keys is.
pub fn occupancy(table: &KeysSnapshot) -> String {
    let percent = table.in_use * 100 / table.rows.max(1);
    let evicted = human::counted(&[
        ("rows without usage evicted", table.evicted_unused),
        ("rows in use evicted", table.evicted_in_use),
    ]);
    format!(
        "{} of {} in use ({percent} %), at most {} of 32 in a bucket{}{evicted}",
        count(table.in_use),
        human::quantity(table.rows, "row", "rows"),
        count(table.fullest_bucket),
        if evicted.is_empty() { "" } else { ", " },
    )
}

/// What this host may spend of a limit that hosts share, and what it is waiting for.
fn leased(limit: &KeyLimitSnapshot, lease: &KeyLeaseSnapshot) -> Cell {
    let mut text = if !lease.valid_for.is_zero() {
        let left = amount_of_key(limit, lease.left);
        format!("{left} leased for {}", human::duration(lease.valid_for))
    } else if !lease.free_in.is_zero() {
        format!("none free for {}", human::duration(lease.free_in))
    } else if limit.remaining > 0 {
        format!("{} unleased", amount_of_key(limit, limit.remaining))
    } else {
        "nothing leased".to_owned()
    };
    if lease.unreported > 0 {
        let unreported = amount_of_key(limit, lease.unreported);
        text.push_str(&format!(", {unreported} to report"));
    }
    if lease.asking {
        text.push_str(", asking");
    }
    warning_if_used_up(limit.remaining, text)
}

/// What is left of a limit, and how long until it is full.
pub fn left(limit: &KeyLimitSnapshot) -> Cell {
    if let Some(lease) = &limit.lease {
        return leased(limit, lease);
    }
    let mut remarks = String::new();
    if limit.override_capacity.is_some() {
        remarks.push_str(" of its own");
    }
    if limit.found_capacity.is_some() {
        remarks.push_str(" for now");
    }
    if limit.of_dead > 0 {
        remarks.push_str(&format!(
            ", {} of them of dead processes",
            amount_of_key(limit, limit.of_dead)
        ));
    }
    left_of(
        limit.found_capacity.or(limit.capacity),
        limit.remaining,
        |units| amount_of_key(limit, units),
        &remarks,
        limit.reset_after,
    )
}

/// What is left of at most `max` units (unlimited if there is no `max`), the remarks, and how long until it is full.
pub fn left_of(
    max: Option<u64>,
    remaining: u64,
    amount: impl Fn(u64) -> String,
    remarks: &str,
    reset_after: Duration,
) -> Cell {
    let Some(max) = max else {
        return "unlimited".into();
    };
    let mut text = format!("{} of {}{remarks}", amount(remaining), amount(max));
    if !reset_after.is_zero() {
        text.push_str(&format!(", full in {}", human::duration(reset_after)));
    }
    warning_if_used_up(remaining, text)
}

fn warning_if_used_up(remaining: u64, text: String) -> Cell {
    if remaining == 0 {
        Cell::styled(text, style::WARNING)
    } else {
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_typed_is_shown_harmless() {
        assert_eq!(typed(b"tenant-7"), "te... (8 B)");
        assert_eq!(typed(b"\x1b[31m"), r"\u{1b}... (5 B)");
        assert_eq!(typed("ü".as_bytes()), "... (2 B)");
        assert_eq!(typed("aüüü".as_bytes()), "a... (7 B)");
        assert_eq!(typed(b"\xff\x1b\x1b\x1b"), "0xff... (4 B)");
    }
}
