//! The segment of one check, and what checks do with it.

use std::path::PathBuf;

use shmlimit::snapshot::SegmentReader;
use shmlimit::{Declaration, Limit, LimitSet, Permit, Segment, SetDeclaration};

use super::child::{Child, Part, wrong};
use crate::exit::Failure;

/// The set that the checks use.
const SET: &str = "selftest";
/// The capacity of its only limit.
pub const CAPACITY: u64 = 2;

pub fn declaration() -> Declaration {
    let limit = Limit::concurrency("places", CAPACITY);
    let set = SetDeclaration::new(SET).waiters(16).add_limit(limit);
    Declaration::new().participants(16).add_set(set)
}

/// The segment of one check.
pub struct Act {
    path: PathBuf,
    pub segment: Segment,
    pub set: LimitSet,
}

impl Act {
    pub fn new(path: PathBuf) -> Result<Self, Failure> {
        let segment = Segment::create(&path, &declaration()).map_err(Failure::while_creating)?;
        let set = segment.set(SET)?;
        Ok(Self { path, segment, set })
    }

    pub fn reader(&self) -> Result<SegmentReader, Failure> {
        Ok(SegmentReader::open(&self.path)?)
    }

    /// Takes this many places in one request. Returns `None` if they are not available.
    pub fn take(&self, places: u64) -> Result<Option<Permit<'_>>, Failure> {
        let request = self.set.request().with("places", places)?;
        Ok(request.try_acquire()?.into_result().ok())
    }

    /// Takes all places, which must be available.
    pub fn take_all(&self, when: &str) -> Result<Permit<'_>, Failure> {
        self.take(CAPACITY)?
            .ok_or_else(|| wrong(format!("not all places are available {when}")))
    }

    /// Starts a child that takes all places, reports that, and holds them until it is killed or told to go on.
    pub fn start_holder(&self) -> Result<Child, Failure> {
        let mut holder = Child::start(|part: &mut Part| {
            let held = self.take_all("in a child")?;
            part.report(0)?;
            part.wait_for_order()?;
            drop(held);
            Ok(())
        })?;
        holder.report()?;
        Ok(holder)
    }

    /// Whether a child counts as alive. Returns `None` if it is not attached.
    pub fn is_alive(&self, reader: &SegmentReader, child: &Child) -> Result<Option<bool>, Failure> {
        let snapshot = reader.snapshot()?;
        let participant = snapshot.participants.iter().find(|it| it.pid == child.pid());
        Ok(participant.map(|it| it.alive))
    }
}
