//! A command that runs under a permit, and the two processes that `exec` uses for it.
//!
//! The *front* is the process that the user started. It stands in for the command: it passes signals on, and stops and
//! ends as the command does. The *keeper* is its child, which joins the segment, takes the permit and starts the
//! command. It is a subreaper: whatever the command leaves running becomes the keeper's child, even if it daemonises,
//! and the permit is given back when nothing is left. So the permit outlives the front, which may be killed while the
//! job continues.
//!
//! Until the command starts, the keeper dies with the front. From then on it blocks all signals and is in its own
//! session, so that killing the group or hanging up the terminal does not reach it.

mod channel;
mod front;
mod inherited;
mod keeper;
mod processes;

pub use front::{Front, Outcome, end_like};
pub use inherited::{note_signals, with_inherited_signals};
pub use keeper::{Keeper, Kept};
