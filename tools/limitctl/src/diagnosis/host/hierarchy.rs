//! The cgroups of a process, in both versions. See cgroups(7).

use std::fs;
use std::path::{Path, PathBuf};

use super::mounts::{Mount, mounts};

/// The cgroups of a process, one in each hierarchy.
#[derive(Debug)]
pub struct Hierarchy {
    /// For each hierarchy, its controllers, and the path of the cgroup below the root.
    cgroups: Vec<(String, PathBuf)>,
    mounts: Vec<Mount>,
}

impl Hierarchy {
    /// The cgroups of a process. Empty if the process table does not say.
    pub fn of(pid: u64) -> Self {
        let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let cgroups = cgroups.lines().filter_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            Some((controllers.to_owned(), path.into()))
        });
        Self {
            cgroups: cgroups.collect(),
            mounts: mounts(),
        }
    }

    /// The directories of the v1 cgroup with this controller, and of those above it.
    pub fn first_version(&self, controller: &str) -> Option<Vec<PathBuf>> {
        let has_it = |list: &str| list.split(',').any(|name| name == controller);
        self.directories(&has_it, &|mount| mount.kind == "cgroup" && has_it(&mount.options))
    }

    /// The directories of the v2 cgroup, of which there is only one, and of those above it.
    pub fn second_version(&self) -> Option<Vec<PathBuf>> {
        self.directories(&str::is_empty, &|mount| mount.kind == "cgroup2")
    }

    fn directories(
        &self,
        has_controllers: &dyn Fn(&str) -> bool,
        is_of_it: &dyn Fn(&Mount) -> bool,
    ) -> Option<Vec<PathBuf>> {
        let (_, path) = self
            .cgroups
            .iter()
            .find(|(controllers, _)| has_controllers(controllers))?;
        let mount = self.mounts.iter().find(|mount| is_of_it(mount))?;
        let below = path.strip_prefix(&mount.root).unwrap_or(Path::new(""));
        let own = mount.point.join(below);
        let own = if own.is_dir() { own } else { mount.point.clone() };
        let above = own
            .ancestors()
            .take_while(|directory| directory.starts_with(&mount.point));
        Some(above.map(Path::to_owned).collect())
    }
}
