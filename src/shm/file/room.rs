//! Checks what this process may allocate before it does: the system enforces these limits with signals instead of
//! errors.
//!
//! A process that exceeds its maximum file size is sent SIGXFSZ; if pages of an in-memory file do not fit into a
//! memory cgroup, the kernel kills one of its processes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use nix::sys::statfs::fstatfs;
use rustix::process::{Resource, getrlimit};

/// Version 1 writes "no limit" as the largest possible number of pages: anything this large or larger.
const UNLIMITED: u64 = 1 << 60;

/// File systems that keep their pages in memory for good: tmpfs and ramfs, by their numbers in linux/magic.h.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// What the kernel needs besides the pages of a mapped file, for page tables and for processes that come and go: one
/// part in this many, and this many bytes.
const BESIDE: (u64, u64) = (64, 1 << 20);

/// Why the file cannot have `size` bytes, and what to do about it; `None` if no limit of this process is in the way.
pub(crate) fn limit_in_the_way(file: &File, size: u64) -> Option<String> {
    over_the_file_size(size).or_else(|| is_in_memory(file).then(|| over_the_memory(size)).flatten())
}

/// The part of [`limit_in_the_way`] for a file whose space is already allocated.
pub(crate) fn over_the_file_size(size: u64) -> Option<String> {
    let limit = getrlimit(Resource::Fsize).current?;
    (size > limit).then(|| {
        format!(
            "files of this process may not exceed {limit} bytes: raise the limit (ulimit -f, LimitFSIZE= of systemd)"
        )
    })
}

#[allow(clippy::unnecessary_cast, reason = "the type differs between C libraries")]
fn is_in_memory(file: &File) -> bool {
    // Some systems sign-extend the number.
    fstatfs(file).is_ok_and(|found| IN_MEMORY.contains(&(found.filesystem_type().0 as u64 & 0xffff_ffff)))
}

fn over_the_memory(size: u64) -> Option<String> {
    let swap = free_swap();
    let needed = size.saturating_add(size / BESIDE.0).saturating_add(BESIDE.1);
    let (cgroup, left) = memory_cgroups()?
        .into_iter()
        .filter_map(|(directory, names)| {
            let left = names.left_in(&directory, swap)?;
            Some((directory, left))
        })
        .min_by_key(|(_, left)| *left)?;
    (needed > left).then(|| {
        format!(
            "the memory cgroup {} has {left} bytes left, and files in memory count towards its limit: raise it (--memory of a \
             container, MemoryMax= of systemd), or declare fewer keys, holds, entries or participants",
            cgroup.display()
        )
    })
}

/// The names of a cgroup's files, which differ between the two versions.
#[derive(Clone, Copy, Debug)]
struct Names {
    limit: &'static str,
    usage: &'static str,
    /// Swap only in version 2; memory and swap together in version 1.
    swap_limit: &'static str,
    swap_usage: &'static str,
    swap_is_beside: bool,
    /// What the kernel drops before it kills.
    droppable: &'static [&'static str],
}

const VERSION_1: Names = Names {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    swap_limit: "memory.memsw.limit_in_bytes",
    swap_usage: "memory.memsw.usage_in_bytes",
    swap_is_beside: false,
    droppable: &["total_inactive_file", "total_active_file"],
};

const VERSION_2: Names = Names {
    limit: "memory.max",
    usage: "memory.current",
    swap_limit: "memory.swap.max",
    swap_usage: "memory.swap.current",
    swap_is_beside: true,
    droppable: &["inactive_file", "active_file", "slab_reclaimable"],
};

impl Names {
    /// How many bytes can still be allocated in a cgroup; `None` if it has no limit.
    fn left_in(&self, directory: &Path, free_swap: u64) -> Option<u64> {
        let number = |name: &str| -> Option<u64> {
            fs::read_to_string(directory.join(name)).ok()?.trim().parse().ok()
        };
        // "max" is not a number, and means no limit.
        let limit = number(self.limit).filter(|limit| *limit < UNLIMITED)?;
        let statistics = fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
        let droppable: u64 = statistics
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter(|(name, _)| self.droppable.contains(name))
            .filter_map(|(_, value)| value.parse::<u64>().ok())
            .sum();
        let left = limit.saturating_sub(number(self.usage)?.saturating_sub(droppable));
        let swap = number(self.swap_limit).zip(number(self.swap_usage));
        Some(match swap {
            Some((limit, usage)) if self.swap_is_beside => {
                left.saturating_add(free_swap.min(limit.saturating_sub(usage)))
            }
            Some((limit, usage)) => left
                .saturating_add(free_swap)
                .min(limit.saturating_sub(usage.saturating_sub(droppable))),
            None => left.saturating_add(free_swap),
        })
    }
}

fn free_swap() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kibibytes = text.lines().find_map(|line| {
        line.strip_prefix("SwapFree:")?
            .trim()
            .strip_suffix(" kB")?
            .parse()
            .ok()
    });
    kibibytes.unwrap_or(0_u64).saturating_mul(1024)
}

/// The memory cgroup of this process and those above it that it can see; `None` if it can see none.
fn memory_cgroups() -> Option<Vec<(PathBuf, Names)>> {
    let of_process = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let has_memory = |list: &str| list.split(',').any(|controller| controller == "memory");
    let entries: Vec<(&str, &str)> = of_process
        .lines()
        .filter_map(|line| line.split_once(':')?.1.split_once(':'))
        .collect();
    let path_of = |wanted: &dyn Fn(&str) -> bool| {
        let found = entries.iter().find(|(controllers, _)| wanted(controllers));
        found.map(|(_, path)| *path)
    };
    let first = path_of(&has_memory)
        .and_then(|path| Some((path, VERSION_1, mount_of(&mounts, "cgroup", has_memory)?)));
    let (path, names, (root, point)) = match first {
        Some(first) => first,
        None => (
            path_of(&str::is_empty)?,
            VERSION_2,
            mount_of(&mounts, "cgroup2", |_| true)?,
        ),
    };
    let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
    let own = point.join(below);
    // A container may see only its own cgroup, as the root.
    let own = if own.is_dir() { own } else { point.clone() };
    let visible = own
        .ancestors()
        .take_while(|directory| directory.starts_with(&point));
    Some(visible.map(|directory| (directory.to_owned(), names)).collect())
}

/// Root and mount point of the first mount of that kind (proc_pid_mountinfo(5)).
fn mount_of(mounts: &str, kind: &str, accepts: impl Fn(&str) -> bool) -> Option<(PathBuf, PathBuf)> {
    mounts.lines().find_map(|line| {
        let (place, file_system) = line.split_once(" - ")?;
        let mut file_system = file_system.split(' ');
        let is_it = file_system.next() == Some(kind) && accepts(file_system.nth(1)?);
        let mut place = place.split(' ').skip(3);
        let (root, point) = (place.next()?, place.next()?);
        is_it.then(|| (root.into(), point.into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_cgroup_counts_swap_and_what_can_be_dropped() {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).expect("written");
        write("memory.max", "max\n");
        write("memory.current", "700\n");
        assert_eq!(VERSION_2.left_in(directory.path(), 0), None, "no limit");
        write("memory.max", "1000\n");
        write(
            "memory.stat",
            "anon 500\ninactive_file 50\nactive_file 100\nslab_reclaimable 50\n",
        );
        assert_eq!(VERSION_2.left_in(directory.path(), 0), Some(500));
        assert_eq!(VERSION_2.left_in(directory.path(), 30), Some(530));
        write("memory.swap.max", "20\n");
        write("memory.swap.current", "5\n");
        assert_eq!(VERSION_2.left_in(directory.path(), 30), Some(515));
        for (name, text) in [
            ("memory.limit_in_bytes", "1000"),
            ("memory.usage_in_bytes", "700"),
            ("memory.memsw.limit_in_bytes", "1010"),
            ("memory.memsw.usage_in_bytes", "700"),
            ("memory.stat", "total_inactive_file 200\n"),
        ] {
            write(name, text);
        }
        assert_eq!(VERSION_1.left_in(directory.path(), 0), Some(500));
        assert_eq!(VERSION_1.left_in(directory.path(), 30), Some(510));
    }

    #[test]
    fn the_mount_of_the_memory_controller_is_found_among_those_of_others() {
        let mounts = "30 1 0:26 / /sys/fs/cgroup/cpu rw,nosuid - cgroup cgroup rw,cpu\n\
                      31 1 0:27 /docker/1 /sys/fs/cgroup/memory ro shared:9 - cgroup cgroup rw,memory\n\
                      32 1 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let has_memory = |options: &str| options.split(',').any(|option| option == "memory");
        let found = |root: &str, point: &str| Some((PathBuf::from(root), PathBuf::from(point)));
        assert_eq!(
            mount_of(mounts, "cgroup", has_memory),
            found("/docker/1", "/sys/fs/cgroup/memory")
        );
        assert_eq!(
            mount_of(mounts, "cgroup2", |_| true),
            found("/", "/sys/fs/cgroup/unified")
        );
        assert_eq!(mount_of(mounts, "tmpfs", |_| true), None);
    }
}
