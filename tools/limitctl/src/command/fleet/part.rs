//! What a segment shares with other hosts.

use std::path::{Path, PathBuf};

use serde::Serialize;
use shmlimit::declare::Kind;
use shmlimit::fleet::{FleetSnapshot, LeaseSnapshot};
use shmlimit::snapshot::{LimitSnapshot, SegmentSnapshot};

use crate::exit::Failure;
use crate::text::{fleet, human};

/// A segment's part in a fleet.
#[derive(Debug, Serialize)]
pub struct Part<'a> {
    pub path: PathBuf,
    #[serde(flatten)]
    pub fleet: &'a FleetSnapshot,
    pub limits: Vec<Shared<'a>>,
    #[serde(skip)]
    snapshot: &'a SegmentSnapshot,
}

/// A limit that hosts share.
#[derive(Debug, Serialize)]
pub struct Shared<'a> {
    pub set: &'a str,
    pub limit: &'a str,
    kind: Kind,
    /// What one unit of the other fields stands for.
    unit: &'a str,
    #[serde(skip)]
    pub snapshot: &'a LimitSnapshot,
    #[serde(flatten)]
    pub lease: &'a LeaseSnapshot,
}

impl<'a> Part<'a> {
    /// The part of the segment at `path`, which must be declared with a fleet.
    pub fn of(path: &Path, snapshot: &'a SegmentSnapshot) -> Result<Self, Failure> {
        let limits = snapshot.sets.iter().flat_map(|set| {
            let shared = set.limits.iter().filter_map(|limit| {
                Some(Shared {
                    set: &set.name,
                    limit: &limit.name,
                    kind: limit.kind,
                    unit: &limit.unit,
                    snapshot: limit,
                    lease: limit.lease.as_ref()?,
                })
            });
            shared.collect::<Vec<_>>()
        });
        let Some(fleet) = &snapshot.fleet else {
            let path = human::path(path);
            return Err(Failure::usage(format!(
                "{path} was declared without [fleet]: no limit of it is shared with other hosts"
            )));
        };
        Ok(Self {
            path: human::as_text(path),
            fleet,
            limits: limits.collect(),
            snapshot,
        })
    }

    /// Where the store is.
    pub fn store(&self) -> String {
        fleet::store(self.snapshot, self.fleet)
    }

    /// Which process asks the store.
    pub fn duty(&self) -> String {
        fleet::duty(self.snapshot, self.fleet)
    }
}
