//! The programs of this repository do what they say.

mod examples;
mod prefork_server;
