//! The repository itself, checked from its sources: layers, unsafe code, dependencies, public names and types, and what
//! the documents say.

mod auto_traits;
mod dependencies;
mod documents;
mod fork_safety;
mod layers;
mod public_api;
mod public_names;
mod public_types;
mod sources;
mod unsafe_code;
