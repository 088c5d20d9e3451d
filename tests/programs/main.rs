//! The programs of this repository do what they say.

mod example;
mod examples;
mod prefork_server;
