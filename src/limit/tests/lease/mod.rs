//! Limits that hosts share.

mod lease_model;
mod lease_store;
mod lease_tests;
mod outage_tests;
mod quiet_hosts_tests;
mod whole_rate_tests;
