//! Definitions that change: while a segment is in use, with a rollout, and with a program that is started again.

mod algorithms;
mod live;
mod oracle;
mod redeploy;
mod renewals;
mod rollouts;
#[path = "../scene/mod.rs"]
mod scene;
