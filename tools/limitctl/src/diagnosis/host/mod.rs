//! The host, as far as segments depend on it: kernel, C library, namespaces, clock source, memory.

mod cgroup;
pub(super) mod elsewhere;
mod freezer;
mod hierarchy;
pub(super) mod mounts;
pub(super) mod process;

use std::fs;
use std::os::unix::fs::MetadataExt;

use serde::Serialize;

use cgroup::MemoryLimit;

use crate::diagnosis::condition::Condition;
use crate::diagnosis::finding::Finding;

/// The file that names the kernel's clock source.
const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// The first kernel with everything that correctness requires, and the first that notifies waiters of deaths.
const NEEDED: (u64, u64) = (4, 14);
const TELLS_OF_DEATHS: (u64, u64) = (5, 3);

/// A host.
#[derive(Debug, Serialize)]
pub struct Host {
    /// The Linux release.
    pub kernel: String,
    /// The C library that this program was built with.
    pub c_library: &'static str,
    /// The namespaces, by their inodes; `None` if the kernel does not say.
    pub pid_namespace: Option<u64>,
    pub time_namespace: Option<u64>,
    /// The kernel's clock source.
    pub clock_source: Option<String>,
    /// The tightest memory limits on this process, and on others that use the examined segments.
    pub memory_limits: Vec<MemoryLimit>,
}

impl Host {
    /// Examines this host. `pids` are the processes of this namespace that use segments.
    pub fn examine(pids: &[u64]) -> (Self, Vec<Finding>) {
        let limits = cgroup::memory_limits(pids);
        let mut findings = cgroup::findings(&limits);
        let host = Self {
            kernel: trimmed("/proc/sys/kernel/osrelease").unwrap_or_default(),
            c_library: if cfg!(target_env = "musl") {
                "musl"
            } else {
                "glibc"
            },
            pid_namespace: inode("/proc/self/ns/pid"),
            time_namespace: inode("/proc/self/ns/time"),
            clock_source: trimmed(CLOCK_SOURCE),
            memory_limits: limits.into_iter().map(|(limit, _)| limit).collect(),
        };
        findings.extend(host.findings());
        (host, findings)
    }

    fn findings(&self) -> Option<Finding> {
        let version = version(&self.kernel)?;
        if version < NEEDED {
            return Some(Finding::error(
                Condition::KernelTooOld,
                format!("the kernel is Linux {}", self.kernel),
                "segments need Linux 4.14 or later",
            ));
        }
        (version < TELLS_OF_DEATHS).then(|| {
            Finding::note(
                Condition::DeathsArePolled,
                format!("the kernel is Linux {}", self.kernel),
                "before Linux 5.3, waiters learn of a death by looking every 50 ms",
            )
        })
    }
}

fn trimmed(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

fn inode(path: &str) -> Option<u64> {
    Some(fs::metadata(path).ok()?.ino())
}

/// The first two numbers of a kernel release.
fn version(release: &str) -> Option<(u64, u64)> {
    let mut numbers = release.split(|sign: char| !sign.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_has_a_version() {
        for (release, expected) in [
            ("6.18.44-amd64", Some((6, 18))),
            ("4.14", Some((4, 14))),
            ("5.3-rc1", Some((5, 3))),
            ("", None),
            ("unknown", None),
        ] {
            assert_eq!(version(release), expected, "{release}");
        }
    }

    #[test]
    fn old_kernels_are_found() {
        let of = |release: &str| {
            let (host, _) = Host::examine(&[]);
            let host = Host {
                kernel: release.to_owned(),
                ..host
            };
            host.findings().map(|finding| finding.finding)
        };
        assert_eq!(of("4.13.0"), Some(Condition::KernelTooOld));
        assert_eq!(of("5.2.1"), Some(Condition::DeathsArePolled));
        assert_eq!(of("5.3.0"), None);
    }
}
