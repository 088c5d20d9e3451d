//! What the system says about a segment's file and its file system.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;
use nix::unistd::{Gid, Group, Uid, User};
use serde::Serialize;

use super::condition::Condition;
use super::finding::Finding;
use super::host::mounts::mount_of;
use super::remedy::quoted;
use crate::text::human;

/// What the system says about a file.
#[derive(Debug, Serialize)]
pub struct FileFacts {
    /// Bytes.
    pub size: u64,
    /// In octal, as chmod(1) takes it.
    pub mode: String,
    pub owner: u32,
    pub owner_name: Option<String>,
    pub group: u32,
    pub group_name: Option<String>,
    /// Its file system, if that could be found.
    #[serde(flatten)]
    pub space: Option<Space>,
}

/// A file system, and its free space.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Space {
    pub file_system: String,
    pub mounted_at: PathBuf,
    /// Bytes that this user may still write.
    pub free: u64,
    /// The size of the file system in bytes.
    pub total: u64,
}

impl FileFacts {
    pub fn of(path: &Path, metadata: &Metadata) -> Self {
        let (owner, group) = (metadata.uid(), metadata.gid());
        let owner_name = User::from_uid(Uid::from_raw(owner)).ok().flatten();
        let group_name = Group::from_gid(Gid::from_raw(group)).ok().flatten();
        Self {
            size: metadata.len(),
            mode: format!("{:04o}", metadata.mode() & 0o7777),
            owner,
            owner_name: owner_name.map(|user| user.name),
            group,
            group_name: group_name.map(|group| group.name),
            space: Space::under(path),
        }
    }
}

impl Space {
    pub fn under(path: &Path) -> Option<Self> {
        let mount = mount_of(path)?;
        let statistics = statvfs(path).ok()?;
        let unit = statistics.fragment_size();
        Some(Self {
            file_system: mount.kind,
            mounted_at: mount.point,
            free: statistics.blocks_available().saturating_mul(unit),
            total: statistics.blocks().saturating_mul(unit),
        })
    }

    fn is_memory(&self) -> bool {
        matches!(
            self.file_system.as_str(),
            "tmpfs" | "ramfs" | "hugetlbfs" | "devtmpfs"
        )
    }

    /// What is wrong with the file system, for a segment of this size. Messages call the size `wanted`.
    pub fn findings(&self, size: u64, wanted: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        // Some file systems have no bound: ramfs reports a size of zero bytes.
        if self.total > 0 && self.free < size {
            let room = human::bytes(self.free);
            let finding = Finding::warning(
                Condition::NoSpace,
                format!(
                    "{room} are free at {}, and {wanted} takes {}",
                    self.mounted_at.display(),
                    human::bytes(size)
                ),
                "what is there keeps its place and works; nothing more can be created beside it, as a rollout does that needs \
                 another file",
            );
            findings.push(finding.healed_by(self.more_room(size)));
        }
        if !self.is_memory() {
            findings.push(Finding::note(Condition::OnDisk,
                format!("it lies on {}, at {}", self.file_system, self.mounted_at.display()),
                "limits survive a reboot; an operation may have to wait while its page is written to the disk: where latency \
                 matters, /dev/shm is the place",
            ));
        }
        findings
    }

    fn more_room(&self, size: u64) -> String {
        let place = quoted(&self.mounted_at);
        if self.file_system == "tmpfs" {
            let needed = self.total.saturating_add(size.saturating_mul(2)).div_ceil(1024);
            format!("mount -o remount,size={needed}k {place}")
        } else {
            format!(
                "du --one-file-system --separate-dirs --human-readable {place} | sort --human-numeric-sort | tail"
            )
        }
    }
}
