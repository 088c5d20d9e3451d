//! What is seen from outside: events, metrics, labels and probes.

mod labels;
#[path = "../layout_mirror/mod.rs"]
mod layout_mirror;
mod panicking_arguments;
mod panicking_code;
mod probes;
mod recorded_metrics;
mod request_events;
#[path = "../scene/mod.rs"]
mod scene;
mod tracing_events;
