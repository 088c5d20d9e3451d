//! The repository itself, read from its sources: layers, unsafe code, public types, and what documents say.

mod auto_traits;
mod documents;
mod fork_safety;
mod layers;
mod unsafe_code;
