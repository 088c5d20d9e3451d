//! Cells and mutexes of the standard library, found in the sources: a child that is forked while another thread has one
//! locked would find it locked for ever.
//!
//! What a forked child may need is in a `ProcessMutex` or `PerProcess`, is only ever tried, or is a cell that several
//! threads may fill at once (`once_cell::race`).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

use crate::sources::is_for_tests;

/// The packages whose code runs in forked children.
const SOURCES: &[&str] = &["src", "fleet/src", "python/src", "reqwest-middleware/src"];

/// Cells that block others while one thread fills them.
const BLOCKING_CELLS: &[&str] = &["Once", "OnceLock", "LazyLock", "PyOnceLock", "GILOnceCell"];

/// What one thread may have while others wait for it.
const LOCKS: &[&str] = &["Mutex", "RwLock", "Condvar", "ReentrantLock", "Barrier"];

/// Statics that are locks all the same: file, name, and why no child waits for them.
const ARGUED: &[(&str, &str, &str)] = &[
    ("python/src/arguments/request.rs", "WARNED", "only tried"),
    (
        "python/src/handle/fleet_thread.rs",
        "THREADS",
        "locked by who has the interpreter's lock and keeps it meanwhile, and so does who forks",
    ),
    ("python/src/interpreter/log.rs", "REMOVED", "only tried"),
];

/// Which of these a file has, apart from its tests.
#[derive(Default)]
struct Found {
    cells: BTreeSet<String>,
    locked_statics: BTreeSet<String>,
}

impl Found {
    fn of(text: &str) -> Self {
        let mut found = Self::default();
        found.visit_file(&syn::parse_file(text).expect("a source that compiles"));
        found
    }
}

impl<'ast> Visit<'ast> for Found {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let last = path.segments.last().map(|segment| segment.ident.to_string());
        self.cells
            .extend(last.filter(|name| BLOCKING_CELLS.contains(&name.as_str())));
        visit::visit_path(self, path);
    }

    fn visit_use_tree(&mut self, tree: &'ast syn::UseTree) {
        let name = match tree {
            syn::UseTree::Name(name) => Some(name.ident.to_string()),
            // The same under another name.
            syn::UseTree::Rename(rename) => Some(rename.ident.to_string()),
            _ => None,
        };
        self.cells
            .extend(name.filter(|name| BLOCKING_CELLS.contains(&name.as_str())));
        visit::visit_use_tree(self, tree);
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        let mut names = Names::default();
        names.visit_type(&item.ty);
        // Such a static has a value of its own for each process.
        let is_per_process = names
            .0
            .iter()
            .any(|name| name == "PerProcess" || name == "ProcessMutex");
        if !is_per_process && names.0.iter().any(|name| LOCKS.contains(&name.as_str())) {
            self.locked_statics.insert(item.ident.to_string());
        }
        visit::visit_item_static(self, item);
    }
}

#[derive(Default)]
struct Names(Vec<String>);

impl<'ast> Visit<'ast> for Names {
    fn visit_ident(&mut self, ident: &'ast syn::Ident) {
        self.0.push(ident.to_string());
    }
}

fn sources(directory: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("named").to_string_lossy().into_owned();
        if path.is_dir() && name != "tests" {
            sources(&path, into);
        } else if name.ends_with(".rs") && !name.ends_with("_tests.rs") {
            into.push(path);
        }
    }
}

#[test]
fn nothing_that_a_forked_child_may_need_is_behind_a_cell_or_a_lock_that_a_fork_leaves_locked() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found_statics = BTreeSet::new();
    for directory in SOURCES {
        let mut files = Vec::new();
        sources(&root.join(directory), &mut files);
        assert!(!files.is_empty(), "{directory} has no sources");
        for file in files {
            let name = file.strip_prefix(root).expect("below").display().to_string();
            let found = Found::of(&fs::read_to_string(&file).expect("text"));
            assert!(
                found.cells.is_empty(),
                "{name} has {:?}, in which a forked child may wait for ever: use once_cell::race",
                found.cells
            );
            found_statics.extend(found.locked_statics.into_iter().map(|item| (name.clone(), item)));
        }
    }
    let argued = ARGUED
        .iter()
        .map(|(file, item, _)| ((*file).to_owned(), (*item).to_owned()));
    assert_eq!(
        found_statics,
        argued.collect(),
        "a static that is a lock belongs into a ProcessMutex, or into the list with a reason"
    );
}

#[test]
fn cells_and_locks_are_found_wherever_they_are_named() {
    let cells = |text: &str| Found::of(text).cells.len();
    assert_eq!(cells("use std::sync::{Arc, OnceLock as Cell};"), 1);
    assert_eq!(cells("struct Kept { cell: std::sync::LazyLock<u8> }"), 1);
    assert_eq!(
        cells("fn ask() { static ASKED: std::sync::Once = std::sync::Once::new(); }"),
        1
    );
    assert_eq!(cells("#[cfg(test)] mod tests { use std::sync::LazyLock; }"), 0);
    assert_eq!(cells("use once_cell::race::OnceBox;"), 0);
    let statics = |text: &str| Found::of(text).locked_statics.len();
    assert_eq!(statics("static LOCK: Mutex<u8> = Mutex::new(0);"), 1);
    assert_eq!(
        statics("fn note() { static KEPT: [std::sync::RwLock<u8>; 2] = todo!(); }"),
        1
    );
    assert_eq!(
        statics("static OWN: PerProcess<Mutex<u8>> = PerProcess::new();"),
        0
    );
}
