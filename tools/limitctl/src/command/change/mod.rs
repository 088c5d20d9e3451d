//! Verbs that change declarations or counts, one per file.

pub mod apply;
pub mod assign;
pub mod edit;
pub mod reset;
