//! The processes of other PID namespaces, such as those of containers.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

use super::process::status;

/// The processes of other PID namespaces, as the process table here shows them when they are first asked for. On a host
/// with many processes, looks at several segments share one: it takes reading the whole table once, and then something
/// of each process of the namespaces that are asked for.
#[derive(Debug)]
pub struct ProcessesElsewhere {
    /// Where the table is.
    directory: String,
    /// Ids here, by the inode of the namespace.
    by_namespace: OnceCell<BTreeMap<u64, Vec<u64>>>,
    /// Ids here, by the id in the namespace, of each namespace that was asked for.
    known: RefCell<BTreeMap<u64, BTreeMap<u64, u64>>>,
}

impl Default for ProcessesElsewhere {
    fn default() -> Self {
        Self::listed_in("/proc")
    }
}

impl ProcessesElsewhere {
    fn listed_in(directory: &str) -> Self {
        Self {
            directory: directory.to_owned(),
            by_namespace: OnceCell::new(),
            known: RefCell::default(),
        }
    }

    /// The id here of a process of a namespace, by the inode of that and the id there. Returns `None` if the process
    /// cannot be seen from here.
    pub fn id_here(&self, namespace: u64, pid: u64) -> Option<u64> {
        let mut known = self.known.borrow_mut();
        let of_namespace = known.entry(namespace).or_insert_with(|| self.ids_of(namespace));
        of_namespace.get(&pid).copied()
    }

    fn ids_of(&self, namespace: u64) -> BTreeMap<u64, u64> {
        let by_namespace = self.by_namespace.get_or_init(|| self.read_namespaces());
        let ids = by_namespace.get(&namespace).into_iter().flatten();
        let there = |id: u64| {
            let status = status(&format!("{}/{id}", self.directory))?;
            let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
            ids.split_whitespace().last()?.parse().ok()
        };
        ids.filter_map(|&id| Some((there(id)?, id))).collect()
    }

    fn read_namespaces(&self) -> BTreeMap<u64, Vec<u64>> {
        let names = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let ids = names.filter_map(|entry| entry.file_name().to_str()?.parse::<u64>().ok());
        let mut by_namespace = BTreeMap::<u64, Vec<u64>>::new();
        for id in ids {
            if let Ok(namespace) = fs::metadata(format!("{}/{id}/ns/pid", self.directory)) {
                by_namespace.entry(namespace.ino()).or_default().push(id);
            }
        }
        by_namespace
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A process of the namespace that this file stands for.
    fn add_process(table: &Path, id: u64, namespace: &Path) {
        let directory = table.join(id.to_string());
        fs::create_dir_all(directory.join("ns")).expect("created");
        fs::hard_link(namespace, directory.join("ns/pid")).expect("linked");
    }

    fn add_status(table: &Path, id: u64, pid: u64) {
        let status = format!("Name:\tworker\nNSpid:\t{id}\t{pid}\n");
        fs::write(table.join(format!("{id}/status")), status).expect("written");
    }

    #[test]
    fn only_processes_of_the_namespaces_that_are_asked_for_are_read_and_only_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let table = directory.path().join("table");
        let namespaces = ["one", "other"].map(|name| {
            let path = directory.path().join(name);
            fs::write(&path, "").expect("written");
            let inode = fs::metadata(&path).expect("there").ino();
            (path, inode)
        });
        let [(one, inode_of_one), (other, inode_of_other)] = &namespaces;
        add_process(&table, 100, one);
        add_process(&table, 101, one);
        add_process(&table, 200, other);
        add_status(&table, 100, 7);
        add_status(&table, 101, 8);
        let processes = ProcessesElsewhere::listed_in(table.to_str().expect("text"));
        assert_eq!(processes.id_here(*inode_of_one, 7), Some(100));
        // Had this one been read with the others, it would not be found now.
        add_status(&table, 200, 7);
        assert_eq!(processes.id_here(*inode_of_other, 7), Some(200));
        assert_eq!(processes.id_here(*inode_of_other, 8), None);
        fs::remove_dir_all(&table).expect("removed");
        assert_eq!(processes.id_here(*inode_of_one, 8), Some(101));
        assert_eq!(processes.id_here(*inode_of_other, 7), Some(200));
    }
}
