//! The shape of the library, read from its sources: which layer may use which, and what no file may contain.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

use crate::sources::{Source, is_for_tests, leaves, sources_of};

/// A layer uses the layers above it in this list. Within a layer, modules only use one another if the list says so.
const LAYERS: &[Layer] = &[
    Layer {
        modules: &[
            "callers_code",
            "message",
            "mutex",
            "sorting",
            "units",
            "words",
            "choices",
            "error",
        ],
        may_use_peers: true,
    },
    // The rules and the shared-memory layer do not know each other.
    Layer {
        modules: &["limit", "order", "queue", "shm", "table"],
        may_use_peers: false,
    },
    Layer {
        modules: &["engine"],
        may_use_peers: false,
    },
    Layer {
        modules: &["declaration"],
        may_use_peers: false,
    },
    Layer {
        modules: &["api"],
        may_use_peers: false,
    },
    Layer {
        modules: &["declare", "headers", "pool", "request", "snapshot"],
        may_use_peers: false,
    },
    Layer {
        modules: &["layer"],
        may_use_peers: false,
    },
];

const MAX_LINES: usize = 700;

struct Layer {
    modules: &'static [&'static str],
    may_use_peers: bool,
}

/// The files of `src` that are compiled into the library: not those that only belong to tests.
fn sources() -> Vec<Source> {
    let sources = sources_of("src");
    assert!(sources.len() > 30, "only {} files found", sources.len());
    sources
}

fn attributes_of(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Finds the modules of the crate's root that a file uses, and the calls that no library should make.
struct Uses {
    module: Vec<String>,
    /// The modules of the root that are used.
    used: BTreeSet<String>,
    /// All paths that are used, from the root of the crate however they are written, without re-exports.
    paths: BTreeSet<Vec<String>>,
    /// The path within the crate of what each re-export names.
    re_exports: BTreeMap<Vec<String>, Vec<String>>,
    forbidden: Vec<String>,
}

impl Uses {
    fn of(source: &Source) -> Self {
        let mut uses = Self {
            module: source.module(),
            used: BTreeSet::new(),
            paths: BTreeSet::new(),
            re_exports: BTreeMap::new(),
            forbidden: Vec::new(),
        };
        uses.visit_file(&source.syntax);
        uses
    }

    /// Where a path leads, from the root of the crate; `None` if it does not say that it stays in the crate.
    fn climb(&self, path: &[String]) -> Option<Vec<String>> {
        let mut at = match path.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            Some("self" | "super") => self.module.clone(),
            _ => return None,
        };
        for part in path {
            match part.as_str() {
                "crate" | "self" => {}
                "super" => drop(at.pop()),
                name => at.push(name.to_owned()),
            }
        }
        Some(at)
    }

    /// Notes where a path leads: perhaps to a module below this one, if it neither starts at the root nor climbs.
    fn note(&mut self, path: &[String]) {
        if let Some(path) = self.climb(path) {
            self.used.extend(path.first().cloned());
            self.paths.insert(path);
        } else {
            self.paths.insert([&self.module[..], path].concat());
        }
    }

    fn note_re_export(&mut self, name: String, path: &[String]) {
        let from = self
            .climb(path)
            .unwrap_or_else(|| [&self.module[..], path].concat());
        self.used
            .extend(self.climb(path).and_then(|path| path.into_iter().next()));
        self.re_exports.insert([&self.module[..], &[name]].concat(), from);
    }
}

impl<'ast> Visit<'ast> for Uses {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_for_tests(attributes_of(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        for (name, path) in leaves(&[], &item.tree) {
            if matches!(item.vis, syn::Visibility::Inherited) {
                self.note(&path);
            } else {
                self.note_re_export(name, &path);
            }
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<String> = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string())
            .collect();
        self.note(&parts);
        visit::visit_path(self, path);
    }

    /// Restricting visibility to a module does not use that module.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        const FORBIDDEN: &[&str] = &[
            "dbg",
            "eprint",
            "eprintln",
            "panic",
            "print",
            "println",
            "todo",
            "unimplemented",
            "unreachable",
        ];
        let name = invocation
            .path
            .segments
            .last()
            .map(|segment| segment.ident.to_string());
        self.forbidden
            .extend(name.filter(|name| FORBIDDEN.contains(&name.as_str())));
        visit::visit_macro(self, invocation);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let name = call.method.to_string();
        if ["unwrap", "expect", "unwrap_err", "expect_err"].contains(&name.as_str()) {
            self.forbidden.push(name);
        }
        visit::visit_expr_method_call(self, call);
    }
}

fn layer_of(module: &str) -> usize {
    LAYERS
        .iter()
        .position(|layer| layer.modules.contains(&module))
        .unwrap_or_else(|| panic!("src/{module} has no layer: give it one in tests/repository/layers.rs"))
}

#[test]
fn every_module_uses_only_what_lies_below_it() {
    let mut violations = Vec::new();
    for source in sources() {
        let module = source.module();
        // The crate's root names everything.
        let Some(user) = module.first() else { continue };
        for used in Uses::of(&source).used {
            // What starts with a capital is re-exported by the root, from the public API.
            let is_public_item = used.starts_with(char::is_uppercase);
            let used_layer = if is_public_item {
                layer_of("api")
            } else {
                layer_of(&used)
            };
            let layer = layer_of(user);
            let is_allowed =
                &used == user || used_layer < layer || (used_layer == layer && LAYERS[layer].may_use_peers);
            if !is_allowed {
                violations.push(format!("src/{} uses crate::{used}", source.path.display()));
            }
        }
    }
    assert!(violations.is_empty(), "{violations:#?}");
}

/// Which of its peers each of these files uses, by their modules. A re-exported item counts as used where it is
/// defined.
fn uses_among_peers(
    sources: &[Source],
    are_peers: fn(&[String], &[String]) -> bool,
) -> BTreeMap<Vec<String>, BTreeSet<Vec<String>>> {
    let modules: BTreeSet<Vec<String>> = sources.iter().map(Source::module).collect();
    let uses: Vec<(Vec<String>, Uses)> = sources
        .iter()
        .map(|source| (source.module(), Uses::of(source)))
        .collect();
    let re_exports: BTreeMap<&Vec<String>, &Vec<String>> = uses
        .iter()
        .flat_map(|(_, uses)| &uses.re_exports)
        // A macro that is exported from where it is defined leads to itself.
        .filter(|(name, from)| name != from && !modules.contains(*name))
        .collect();
    let file_of = |path: &[String]| {
        let mut path = path.to_vec();
        while let Some((length, from)) =
            (1..=path.len()).find_map(|length| Some((length, *re_exports.get(&path[..length].to_vec())?)))
        {
            path.splice(..length, from.iter().cloned());
        }
        let length = (0..=path.len())
            .rev()
            .find(|length| modules.contains(&path[..*length]));
        path[..length.unwrap_or(0)].to_vec()
    };
    uses.iter()
        .map(|(module, uses)| {
            let is_peer = |other: &Vec<String>| other != module && are_peers(module, other);
            let peers = uses.paths.iter().map(|path| file_of(path)).filter(is_peer);
            (module.clone(), peers.collect())
        })
        .collect()
}

/// The sets of files that use one another, directly or through others.
fn circles(uses: &BTreeMap<Vec<String>, BTreeSet<Vec<String>>>) -> BTreeSet<Vec<String>> {
    let reached_from = |start: &Vec<String>| {
        let mut reached = BTreeSet::new();
        let mut next: Vec<&Vec<String>> = uses[start].iter().collect();
        while let Some(module) = next.pop() {
            if reached.insert(module) {
                next.extend(&uses[module]);
            }
        }
        reached
    };
    let reached: BTreeMap<&Vec<String>, BTreeSet<&Vec<String>>> =
        uses.keys().map(|module| (module, reached_from(module))).collect();
    uses.keys()
        .filter(|module| reached[module].contains(module))
        .map(|module| {
            let in_circle = reached[module]
                .iter()
                .filter(|other| reached[*other].contains(module));
            in_circle.map(|other| other.join("::")).collect()
        })
        .collect()
}

/// The directories of the engine, each of which uses those before it in this list.
const FLOORS: &[&str] = &[
    "terms",
    "rules",
    "shard",
    "change",
    "recover",
    "settle",
    "admit",
    "queue",
    "credit",
    "fleet_lease",
    "observe",
];

#[test]
fn every_directory_of_the_engine_uses_only_those_below_it() {
    // A file of the engine itself, if there is one, would be the ground floor.
    let floor = |module: &[String]| match module {
        [_, directory, _, ..] => FLOORS
            .iter()
            .position(|floor| floor == directory)
            .unwrap_or_else(|| {
                panic!("src/engine/{directory} has no floor: give it one in tests/repository/layers.rs")
            }),
        _ => 0,
    };
    let uses = uses_among_peers(&sources(), |one, other| {
        let is_in_engine = |module: &[String]| module.first().is_some_and(|first| first == "engine");
        is_in_engine(one) && is_in_engine(other)
    });
    let mut violations = Vec::new();
    for (user, used) in &uses {
        let above = used.iter().filter(|used| floor(used) > floor(user));
        violations.extend(above.map(|used| format!("{} uses {}", user.join("::"), used.join("::"))));
    }
    assert!(violations.is_empty(), "{violations:#?}");
}

#[test]
fn files_use_one_another_in_no_circle() {
    // The ranks of the library already prevent circles between modules of its root.
    let of_one_rank: fn(&[String], &[String]) -> bool = |one, other| one.first() == other.first();
    for (directory, are_peers) in [
        ("src", of_one_rank),
        ("tools/limitctl/src", |_, _| true),
        ("python/src", |_, _| true),
        ("fleet/src", |_, _| true),
        ("reqwest-middleware/src", |_, _| true),
    ] {
        let found = circles(&uses_among_peers(&sources_of(directory), are_peers));
        assert!(
            found.is_empty(),
            "{directory}: a change of one may need a change of each: {found:#?}"
        );
    }
}

#[test]
fn no_two_files_have_one_name() {
    let mut names = BTreeSet::new();
    let mut paths = Vec::new();
    list_files(Path::new("src"), &mut paths);
    for path in paths {
        let name = path.file_name().expect("a name").to_owned();
        assert!(
            name == "mod.rs" || names.insert(name),
            "{} has the name of another file: say more",
            path.display()
        );
    }
}

/// Finds all files below a directory of the repository.
fn list_files(directory: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(directory)).expect("a directory") {
        let entry = entry.expect("an entry");
        let path = directory.join(entry.file_name());
        if entry.path().is_dir() {
            list_files(&path, paths);
        } else {
            paths.push(path);
        }
    }
}

/// A mapping may be read-only, and for such memory Rust only promises that relaxed loads work.
#[test]
fn words_of_a_segment_are_loaded_relaxed_whatever_fence_follows() {
    for source in sources() {
        let above_the_mapping = !["shm", "engine"]
            .iter()
            .any(|layer| source.path.starts_with(layer));
        for line in source.text.lines().filter(|_| !above_the_mapping) {
            let is_ordered = ["Acquire", "SeqCst"]
                .iter()
                .any(|order| line.contains(&format!(".load(Ordering::{order})")));
            // These fields belong to this process alone.
            let is_private = [
                "attended_by",
                "has_fired",
                "identity",
                "latest",
                "process",
                "sequence",
                "slot",
            ]
            .iter()
            .any(|field| line.contains(&format!("self.{field}.load")))
                || line.contains("PAGE.load(");
            assert!(
                !is_ordered || is_private,
                "{}: {}",
                source.path.display(),
                line.trim()
            );
        }
    }
}

#[test]
fn no_file_prints_panics_or_unwraps() {
    let mut found = Vec::new();
    for directory in ["src", "python/src"] {
        for source in sources_of(directory) {
            for name in Uses::of(&source).forbidden {
                found.push(format!("{directory}/{}: {name}", source.path.display()));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn no_file_is_too_long_to_read() {
    let directories = [
        "src",
        "tests",
        "benches",
        "examples",
        "demos",
        "tools",
        "fuzz/fuzz_targets",
        "python",
    ];
    let mut too_long = Vec::new();
    for directory in directories.map(|directory| Path::new(env!("CARGO_MANIFEST_DIR")).join(directory)) {
        if directory.is_dir() {
            note_long_files(&directory, &mut too_long);
        }
    }
    assert!(too_long.is_empty(), "split these files: {too_long:#?}");
}

fn note_long_files(directory: &Path, too_long: &mut Vec<String>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            note_long_files(&path, too_long);
        } else if path
            .extension()
            .is_some_and(|extension| ["rs", "py", "pyi"].map(OsStr::new).contains(&extension))
        {
            let lines = fs::read_to_string(&path).expect("a source").lines().count();
            if lines > MAX_LINES {
                too_long.push(format!("{} has {lines} lines", path.display()));
            }
        }
    }
}

/// Tests the test: it finds what it is meant to find.
#[test]
fn uses_are_found_however_they_are_written() {
    let text = "
        use super::{State, super::engine::{self, plan::Kind}};
        use crate::{clock as time, units::*};
        pub(crate) use super::super::table::Claim as Answer;
        fn decide() { let _ = crate::error::Error::new(); let _: crate::shm::Region; x.unwrap(); panic!() }
        #[cfg(test)] mod tests { use crate::config; fn f() { x.unwrap() } }
        mod inner { use super::super::units; use super::super::super::request; }
        #[test] fn g() { crate::snapshot::f() }
    ";
    let source = Source {
        path: PathBuf::from("limit/backlog.rs"),
        text: text.to_owned(),
        syntax: syn::parse_file(text).expect("valid"),
    };
    let uses = Uses::of(&source);
    let expected = [
        "clock", "engine", "error", "limit", "request", "shm", "table", "units",
    ];
    assert_eq!(uses.used, expected.map(str::to_owned).into());
    let path = |path: &str| path.split("::").map(str::to_owned).collect::<Vec<_>>();
    assert!(uses.paths.contains(&path("engine::plan::Kind")));
    assert!(!uses.paths.contains(&path("table::Claim")));
    assert_eq!(
        uses.re_exports[&path("limit::backlog::Answer")],
        path("table::Claim")
    );
    assert_eq!(uses.forbidden, ["unwrap", "panic"]);
}
