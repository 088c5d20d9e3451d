//! Hosts with the real engine and the real client, and the model of the store, on clocks that a test moves: outages
//! that end, and places that are held.

mod fleet;
mod keys;
mod outages;
mod places;
mod quiet_hosts;
mod windows;
