//! A segment whose time stands still until a test lets it pass.

use std::path::PathBuf;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use shmlimit::declare::TimeZone;
use shmlimit::snapshot::SetSnapshot;
use shmlimit::{Declaration, LimitSet, OpenOptions, Segment, SetDeclaration, VirtualClock};
use tempfile::TempDir;

use super::first_set;

/// 2026-01-01T00:00:00Z.
pub const NEW_YEAR: Duration = Duration::from_secs(1_767_225_600);
pub const NANOSECOND: Duration = Duration::from_nanos(1);

#[derive(Debug)]
pub struct Scene {
    directory: TempDir,
    pub clock: VirtualClock,
    pub segment: Segment,
}

impl Scene {
    /// One set, at [`NEW_YEAR`].
    pub fn new(set: SetDeclaration) -> Self {
        Self::at(NEW_YEAR, set)
    }

    pub fn at(start: Duration, set: SetDeclaration) -> Self {
        Self::declared(start, &super::declaration().add_set(set))
    }

    pub fn declared(start: Duration, declaration: &Declaration) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let clock = VirtualClock::new(start).auto_advance(false);
        let segment = OpenOptions::new()
            .virtual_clock(&clock)
            .create(directory.path().join("limits"), declaration)
            .expect("a segment");
        Self {
            directory,
            clock,
            segment,
        }
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("limits")
    }

    /// The first set.
    pub fn set(&self) -> LimitSet {
        self.segment.sets().next().expect("declared")
    }

    /// Another attachment to the same file, as another process would have it.
    pub fn other(&self) -> Segment {
        let options = OpenOptions::new().virtual_clock(&self.clock);
        options.open(self.path()).expect("the same")
    }

    pub fn snapshot(&self) -> SetSnapshot {
        first_set(&self.segment)
    }

    pub fn pass(&self, time: Duration) {
        self.clock.advance_to(self.clock.now() + time);
    }
}

/// Since the machine was started, suspended or not.
pub fn boot_time() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).expect("a clock").into()
}

/// A file of a time zone database whose zone follows one rule at all times.
pub fn tzif(rule: &str) -> Vec<u8> {
    let header = |times: u32| {
        let mut header = b"TZif2".to_vec();
        header.extend([0; 15]);
        for count in [0, 0, 0, times, 1, 4] {
            header.extend(count.to_be_bytes());
        }
        header
    };
    // One type of local time, which a rule replaces.
    let kind = [&(-28_800_i32).to_be_bytes()[..], &[0, 0], b"PST\0"].concat();
    [
        &header(0)[..],
        &kind,
        &header(0),
        &kind,
        b"\n",
        rule.as_bytes(),
        b"\n",
    ]
    .concat()
}

/// A zone that other processes only know from the segment.
pub fn time_zone(rule: &str, version: Option<&str>) -> TimeZone {
    TimeZone::from_tzif("Test/Pacific", &tzif(rule), version).expect("a zone")
}
