//! Sets with a row for each key: what each key gets, which rows there are, and which key is evicted.

mod addresses;
mod evicted_keys;
mod keys;
mod limits;
mod oracle;
mod overall;
mod processes;
mod queues;
mod rows;
#[path = "../scene/mod.rs"]
mod scene;
