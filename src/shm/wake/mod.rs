//! Waking: futexes, deaths, and the list of tickets to look at.

pub(crate) mod death_watch;
pub(crate) mod futex;
pub(crate) mod wake_list;
