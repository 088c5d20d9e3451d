//! Operations to kill, on labels: writing one for a hold that is taken, or for a grant that is claimed.

use shmlimit::{Limit, LimitSet, Request, SetDeclaration};

use crate::operations::generated::LABEL;
use crate::operations::waiting::{begin_to_wait, look};
use crate::operations::{Operation, SET, Victim, YEAR, admitted, everything, operation};
use crate::state::image::Layout;

const PLACES: u64 = 3;

/// The label of a request for this many places. It is as long as a label may be, and no two of them have a word in
/// common.
fn label_for(places: u64) -> String {
    char::from_digit(places as u32, 10).map_or_else(String::new, |digit| digit.to_string().repeat(64))
}

/// Whether each label is whole and belongs to its hold: it says how many places were requested. The labels of generated
/// operations are all the same.
pub fn check_labels(layout: &Layout, image: &[u64]) -> Result<(), String> {
    let mut labels = layout.labels(image);
    match labels.find(|(places, label)| *label != label_for(*places) && label != LABEL) {
        Some((places, label)) => Err(format!("what holds {places} is labelled {label:?}")),
        None => Ok(()),
    }
}

fn labelled_places() -> SetDeclaration {
    SetDeclaration::new(SET)
        .waiters(2)
        .holds(4)
        .labels(true)
        .add_limit(Limit::concurrency("in_flight", PLACES))
        .add_limit(Limit::calls("requests", 100, YEAR))
}

fn places(set: &LimitSet, count: u64) -> Request<'_> {
    let request = everything(set, 1).with("in_flight", count);
    request.expect("declared").label(label_for(count))
}

/// The label replaces that of an earlier hold.
fn acquire_with_a_label(victim: &Victim) {
    let set = victim.set();
    drop(admitted(&set, &places(&set, 2)));
    let request = places(&set, 1);
    victim.is_admitted(&set, &request);
}

/// The same, but the hold was taken by the release that granted the place.
fn claim_with_a_label(victim: &Victim) {
    let set = victim.set();
    let mut permits = [admitted(&set, &places(&set, 1)), admitted(&set, &places(&set, 2))];
    let mut future = begin_to_wait(&set, &places(&set, 1));
    permits[1].release().expect("works");
    victim.begins();
    let outcome = look(&mut future);
    victim.ends();
    victim.expects(outcome.expect("granted").is_admitted());
}

pub const LABEL_OPERATIONS: &[Operation] = &[
    Operation {
        killed_everywhere: true,
        ..operation(
            "try_acquire with a label",
            labelled_places,
            1,
            acquire_with_a_label,
        )
    },
    operation(
        "claim a grant with a label",
        labelled_places,
        1,
        claim_with_a_label,
    ),
];
