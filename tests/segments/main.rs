//! The file of a segment: how it is created, found, attached, damaged, copied and removed.

mod anonymous;
mod attachments;
mod checkpoints;
mod cold_start;
mod creation_race;
mod damaged_files;
mod directories;
mod fencing_numbers;
#[path = "../layout_mirror/mod.rs"]
mod layout_mirror;
mod moving_on;
mod overlays;
mod places;
mod readers_locks;
mod remove;
mod removed_segments;
#[path = "../scene/mod.rs"]
mod scene;
