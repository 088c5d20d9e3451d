//! What can be wrong with a segment and its host. Nothing here locks or changes anything.

mod condition;
mod file;
mod finding;
mod holders;
mod host;
mod leases;
mod locks;
mod look;
mod obstacles;
mod processes;
mod queues;
mod remedy;
mod segment;
mod stopped;
mod time_zones;

pub use condition::Severity;
pub use file::Space;
pub use finding::Finding;
pub use host::Host;
pub use host::elsewhere::ProcessesElsewhere;
pub use host::process::{Activity, activity};
pub use obstacles::obstacle;
pub use remedy::quoted;
pub use segment::{Kind, SegmentReport, directories, examine, regular_files};
pub use stopped::Stopped;
