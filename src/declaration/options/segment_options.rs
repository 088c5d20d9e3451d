//! How a segment's file is created.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::checkpoint::Checkpoint;
use super::clock_source::ClockSource;
use super::file_mode::FileMode;
use crate::choices::LockKind;
use crate::declaration::location::check_range;
use crate::error::DeclarationError;
use crate::shm::file::verified::CreationOptions;

const MAX_PARTICIPANTS: u64 = 4096;
/// The largest integer of TOML.
const MAX_VERSION: u64 = i64::MAX as u64;

/// How a segment's file is created: the `[segment]` of a [`Declaration`](crate::Declaration).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SegmentOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::declaration) path: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::declaration) mode: Option<FileMode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::declaration) participants: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::declaration) clock: Option<ClockSource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::declaration) lock: Option<LockKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::declaration) checkpoint: Option<Checkpoint>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::declaration) version: Option<u64>,
    /// Appears only in the definitions of a segment: see `StoredDeclaration`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::declaration) edited: Option<bool>,
}

impl SegmentOptions {
    /// Where the file is, if declared.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The permissions of the file.
    pub fn mode(&self) -> u32 {
        self.mode.map_or(0o600, |FileMode(mode)| mode)
    }

    /// The permissions of the file, if declared.
    pub(crate) fn declared_mode(&self) -> Option<u32> {
        self.mode.map(|FileMode(mode)| mode)
    }

    /// How many processes can be attached at once.
    pub fn participants(&self) -> u32 {
        self.participants.unwrap_or(256)
    }

    /// The clock that processes read.
    pub fn clock(&self) -> ClockSource {
        self.clock.unwrap_or_default()
    }

    /// The kind of its locks.
    pub fn lock(&self) -> LockKind {
        self.lock.unwrap_or_default()
    }

    /// Where its state is saved to survive a reboot, if declared.
    pub fn checkpoint(&self) -> Option<&Checkpoint> {
        self.checkpoint.as_ref()
    }

    pub(crate) fn creation_options(&self) -> CreationOptions {
        CreationOptions {
            participants: self.participants(),
            uses_system_clock: self.clock() == ClockSource::System,
            lock_kind: self.lock(),
        }
    }

    /// The version of the declaration, if it has one.
    pub fn version(&self) -> Option<u64> {
        self.version
    }

    /// The same with every default written out.
    pub(in crate::declaration) fn canonical(&self) -> Self {
        Self {
            path: self.path.clone(),
            mode: Some(FileMode(self.mode())),
            participants: Some(self.participants()),
            clock: Some(self.clock()),
            lock: Some(self.lock()),
            checkpoint: self.checkpoint.clone(),
            version: self.version,
            edited: self.edited,
        }
    }

    pub(in crate::declaration) fn check(&self) -> Result<(), DeclarationError> {
        check_range(
            || "segment / participants".to_owned(),
            self.participants().into(),
            1,
            MAX_PARTICIPANTS,
        )?;
        if let Some(checkpoint) = &self.checkpoint {
            checkpoint.check()?;
        }
        if let Some(version) = self.version {
            check_range(|| "segment / version".to_owned(), version, 1, MAX_VERSION)?;
        }
        if let Some(edited) = self.edited {
            return Err(DeclarationError::Value {
                place: "segment / edited".to_owned(),
                given: edited.to_string(),
                problem: "is a mark that only a segment makes: leave it out".to_owned(),
            });
        }
        let mode = self.mode();
        if mode > 0o777 || mode & 0o600 != 0o600 {
            return Err(DeclarationError::Value {
                place: "segment / mode".to_owned(),
                given: FileMode(mode).to_string(),
                problem: "is not a mode for a segment: choose at most 0777, of which the owner has 0600"
                    .to_owned(),
            });
        }
        Ok(())
    }
}
