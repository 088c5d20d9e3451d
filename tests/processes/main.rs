//! Processes and threads that share a segment: they fork, execute, stop, die, and live in other namespaces.

mod dead_with_the_lock;
mod exec;
mod fork;
mod forked_in_the_middle;
mod giving_back;
mod hidden_proc;
#[path = "../layout_mirror/mod.rs"]
mod layout_mirror;
mod looking;
mod moved_file;
mod namespaces;
#[path = "../scene/mod.rs"]
mod scene;
mod slot_lock;
mod stopped_holder;
mod threads;
mod two_copies;
