//! The layer in front of a service: what it asks for, what it answers, and what happens to its permits.

mod addresses;
mod bodies;
mod decisions;
mod extractors;
mod keys;
mod permits;
mod refunds;
mod rejections;
mod successors;
mod waiting;
