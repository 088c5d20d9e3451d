//! The queue: who waits, in which order waiters are served, and what they cost meanwhile.

mod behind_others;
mod caller_panics;
mod deadlines;
mod fairness;
mod futures;
mod futures_meet_errors;
mod lapses;
#[path = "../layout_mirror/mod.rs"]
mod layout_mirror;
mod no_polling;
mod owned_futures;
#[path = "../scene/mod.rs"]
mod scene;
mod shadow;
mod waiting;
mod waves;
