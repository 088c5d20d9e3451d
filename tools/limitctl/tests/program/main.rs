//! The program: its verbs, the commands that it runs, and how it is installed.

mod examples;
mod exec;
mod packaging;
mod probes;
#[path = "../support/mod.rs"]
mod support;
mod verbs;
