//! Declarations, with and without room for the crew: with as much more of everything as the crew holds, the victim
//! finds what it would find alone.

use std::time::Duration;

use shmlimit::declare::LockKind;
use shmlimit::{Declaration, SetDeclaration};
use toml::{Table, Value};

/// Places that the crew takes of each concurrency limit, and units of each rate, in a set without keys or of all keys.
pub const PLACES: u64 = 5;
pub const UNITS: u64 = 60;

/// Holds and tickets that the crew has at once.
const HOLDS: u64 = 8;
const TICKETS: u64 = 4;

/// A declaration without sets yet, with the kind of lock that this run is about.
pub fn declaration() -> Declaration {
    let lock = match std::env::var("SHMLIMIT_TEST_LOCK") {
        Ok(word) => word.parse().expect("a kind of lock"),
        Err(_) => LockKind::default(),
    };
    Declaration::new().lock(lock)
}

/// A declaration of one set, and of a fleet if hosts share one of its limits.
pub fn declaring(set: SetDeclaration) -> Declaration {
    let is_shared = set.limits().iter().any(|limit| limit.options().fleet().is_some());
    let declaration = declaration();
    let declaration = if is_shared {
        declaration.fleet_url("redis://127.0.0.1:1")
    } else {
        declaration
    };
    declaration.add_set(keeping_grants(set))
}

/// How long grants are kept: less than a segment's time may be ahead of a process's.
pub const KEPT: Duration = Duration::from_secs(1800);

/// The same set with grants that do not lapse on their own: processes that wait beside a victim are stopped while it is
/// stepped, which may take longer than grants are otherwise kept.
pub fn keeping_grants(set: SetDeclaration) -> SetDeclaration {
    set.collect_within(KEPT)
}

/// The same set with room for the crew. What each key has for itself stays the same: the crew has other keys.
pub fn with_room(set: SetDeclaration) -> SetDeclaration {
    let text = Declaration::new().add_set(set).to_toml().expect("valid");
    let mut declaration: Table = text.parse().expect("the library's own text");
    for set in tables(&mut declaration, "set") {
        let is_keyed = set.contains_key("keyed");
        if set.get("holds").and_then(Value::as_integer) != Some(0) {
            add(set, "holds", HOLDS);
        }
        add(set, "waiters", TICKETS);
        let is_shared = |limit: &&mut Table| !is_keyed || limit.contains_key("scope");
        for limit in tables(set, "limit").filter(is_shared) {
            let is_concurrency = limit.get("kind").and_then(Value::as_str) == Some("concurrency");
            let more = if is_concurrency { PLACES } else { UNITS };
            add(limit, "capacity", more);
            add(limit, "burst", more);
        }
    }
    let declaration = Declaration::from_toml(&declaration.to_string()).expect("valid");
    declaration.sets()[0].clone()
}

fn tables<'a>(table: &'a mut Table, name: &str) -> impl Iterator<Item = &'a mut Table> {
    let values = table.get_mut(name).and_then(Value::as_array_mut);
    values.into_iter().flatten().filter_map(Value::as_table_mut)
}

/// Adds to a value that is a number; `"unlimited"` is not one.
fn add(table: &mut Table, name: &str, more: u64) {
    if let Some(Value::Integer(number)) = table.get_mut(name) {
        *number += more.cast_signed();
    }
}
