//! How things are shown to people.

pub mod amounts;
pub mod declared;
pub mod facts;
pub mod fleet;
pub mod human;
pub mod key;
pub mod process;
pub mod sanitise;
pub mod style;
pub mod table;
pub mod users;
