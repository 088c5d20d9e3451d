//! Definitions that change: while a segment is in use, during a rollout, and when a program is restarted.

mod algorithms;
#[path = "../layout_mirror/mod.rs"]
mod layout_mirror;
mod live;
mod oracle;
mod redeploy;
mod renewals;
mod rollouts;
#[path = "../scene/mod.rs"]
mod scene;
mod unapplied;
