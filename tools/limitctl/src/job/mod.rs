//! A command that runs under a permit, and the two processes that `exec` is meanwhile.
//!
//! The *front* is the process that was started: it stands for the command, so signals pass through it, and it stops and ends as
//! the command does. The *keeper* is a child of it, which joins the segment, takes the permit and starts the command. It is a
//! subreaper: whatever the command leaves running becomes the keeper's child, also if it daemonises, and the permit is given
//! back when there is nothing left. So the permit outlives the front, which may be killed while the job goes on.
//!
//! Until the command starts, the keeper dies with the front. From then on it blocks all signals and is in a session of its own,
//! so that what kills the group or hangs the terminal up does not reach it.

mod channel;
mod front;
mod inherited;
mod keeper;
mod processes;

pub use front::{Front, Outcome, end_like};
pub use inherited::{note_signals, with_inherited_signals};
pub use keeper::{Keeper, Kept};
