//! Verbs that change what is declared or counted: one a file.

pub mod apply;
pub mod assign;
pub mod edit;
pub mod reset;
