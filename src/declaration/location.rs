//! Locations in a declaration, and the checks that all parts share.

use crate::error::DeclarationError;

/// A location in a declaration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Location<'a> {
    pub(super) set: &'a str,
    pub(super) tier: Option<&'a str>,
    pub(super) limit: Option<&'a str>,
}

impl Location<'_> {
    pub(super) fn here(&self) -> String {
        let Self { set, tier, limit } = self;
        let mut place = format!("set {set:?}");
        for (what, name) in [("tier", tier), ("limit", limit)] {
            if let Some(name) = name {
                place.push_str(&format!(" / {what} {name:?}"));
            }
        }
        place
    }

    pub(super) fn field(&self, field: &str) -> String {
        format!("{} / {field}", self.here())
    }

    pub(super) fn value(
        &self,
        field: &str,
        given: impl ToString,
        problem: impl ToString,
    ) -> DeclarationError {
        DeclarationError::Value {
            place: self.field(field),
            given: format!("{:?}", given.to_string()),
            problem: problem.to_string(),
        }
    }
}

/// Requires `given` to lie in `min..=max`.
pub(super) fn check_range(
    place: impl FnOnce() -> String,
    given: u64,
    min: u64,
    max: u64,
) -> Result<(), DeclarationError> {
    if (min..=max).contains(&given) {
        Ok(())
    } else {
        Err(DeclarationError::OutOfRange {
            place: place(),
            given,
            min,
            max,
        })
    }
}

/// Requires `given` to be a valid name. Names become parts of paths: of files, of metrics, and of the places in
/// messages. A name may have parts, as in `openai/gpt-4o`, but none that leads elsewhere in a path.
pub(super) fn check_name(place: impl FnOnce() -> String, given: &str) -> Result<(), DeclarationError> {
    let leads_elsewhere = |part: &str| part.is_empty() || part.starts_with('.');
    if !given.is_empty() && given.split('/').any(leads_elsewhere) {
        Err(DeclarationError::Name {
            place: place(),
            given: given.to_owned(),
            rule: "no part of it between `/` may be empty or begin with `.`",
        })
    } else {
        check_label(place, given)
    }
}

/// Requires `given` to be a valid key of metadata.
pub(super) fn check_label(place: impl FnOnce() -> String, given: &str) -> Result<(), DeclarationError> {
    if (1..=64).contains(&given.len()) && !given.chars().any(char::is_control) {
        Ok(())
    } else {
        Err(DeclarationError::Name {
            place: place(),
            given: given.to_owned(),
            rule: "write 1 to 64 bytes without control characters",
        })
    }
}
