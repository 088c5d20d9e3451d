//! How much memory the cgroups of processes use, and how much they may use. On tmpfs, a segment's pages count as memory
//! of the cgroup whose process touched them first.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::hierarchy::Hierarchy;
use crate::diagnosis::condition::Condition;
use crate::diagnosis::finding::Finding;
use crate::diagnosis::remedy::quoted;
use crate::text::human;

/// A limit is nearly reached when this percentage of it is used.
const NEAR_PERCENT: u64 = 95;

/// In cgroups v1, the absence of a limit reads as the largest possible number of pages, which is more than this.
const UNLIMITED: u64 = 1 << 60;

/// The tightest memory limit above a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryLimit {
    /// The directory of the cgroup.
    pub cgroup: PathBuf,
    /// Bytes.
    pub limit: u64,
    /// Bytes in use, without the page cache of files on disks, which the kernel can drop.
    pub used: u64,
    #[serde(skip)]
    file: &'static str,
}

/// The names of the files to read, which differ between the two versions of cgroups.
struct Names {
    limit: &'static str,
    usage: &'static str,
    droppable: [&'static str; 2],
}

const VERSION_1: Names = Names {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    droppable: ["total_inactive_file", "total_active_file"],
};
const VERSION_2: Names = Names {
    limit: "memory.max",
    usage: "memory.current",
    droppable: ["inactive_file", "active_file"],
};

/// The tightest limits on this process and on other processes of this namespace, each with the others that it applies
/// to.
pub fn memory_limits(others: &[u64]) -> Vec<(MemoryLimit, Vec<u64>)> {
    let mut found: BTreeMap<PathBuf, (MemoryLimit, Vec<u64>)> = BTreeMap::new();
    let own = u64::from(std::process::id());
    for pid in [own].iter().chain(others) {
        if let Some(limit) = tightest(*pid) {
            let (_, pids) = found.entry(limit.cgroup.clone()).or_insert((limit, Vec::new()));
            pids.extend((*pid != own).then_some(*pid));
        }
    }
    found.into_values().collect()
}

/// Warnings about limits that are nearly reached.
pub fn findings(limits: &[(MemoryLimit, Vec<u64>)]) -> Vec<Finding> {
    let near = limits
        .iter()
        .filter(|(limit, _)| limit.used >= limit.limit / 100 * NEAR_PERCENT);
    near.map(|(limit, pids)| {
        let whose = match pids.first() {
            Some(pid) => format!("process {pid}"),
            None => "this process".to_owned(),
        };
        let file = limit.cgroup.join(limit.file);
        Finding::warning(Condition::MemoryNearLimit,
            format!(
                "{} of {} of memory are used in the cgroup of {whose}, {}",
                human::bytes(limit.used),
                human::bytes(limit.limit),
                limit.cgroup.display()
            ),
            "the kernel kills processes of the cgroup when they need more; segments on tmpfs count as its memory, and \
             creating one there fails or has a process killed. A container's limit is set where it is started",
        )
        .of_process(pids.first().copied())
        .healed_by(format!("echo {} > {}", limit.limit.saturating_mul(2), quoted(&file)))
    })
    .collect()
}

/// The limit that leaves a process the least room, from cgroups v1 if that has the memory controller, otherwise from
/// v2.
fn tightest(pid: u64) -> Option<MemoryLimit> {
    let hierarchies = Hierarchy::of(pid);
    let (names, above) = match hierarchies.first_version("memory") {
        Some(above) => (&VERSION_1, above),
        None => (&VERSION_2, hierarchies.second_version()?),
    };
    above
        .iter()
        .filter_map(|directory| limit_in(directory, names))
        .min_by_key(|limit| limit.limit.saturating_sub(limit.used))
}

fn limit_in(directory: &Path, names: &'static Names) -> Option<MemoryLimit> {
    let number =
        |name: &str| -> Option<u64> { fs::read_to_string(directory.join(name)).ok()?.trim().parse().ok() };
    // "max" is not a number, and means no limit.
    let limit = number(names.limit).filter(|limit| *limit < UNLIMITED)?;
    let statistics = fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
    let droppable: u64 = statistics
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| names.droppable.contains(name))
        .filter_map(|(_, value)| value.parse::<u64>().ok())
        .sum();
    Some(MemoryLimit {
        cgroup: directory.to_owned(),
        limit,
        used: number(names.usage)?.saturating_sub(droppable),
        file: names.limit,
    })
}
