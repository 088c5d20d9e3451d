//! The sources of a library, parsed, and what the tests of this program ask of them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// One source file of a library.
pub struct Source {
    /// The path, relative to the directory of sources.
    pub path: PathBuf,
    pub text: String,
    pub syntax: syn::File,
}

impl Source {
    /// The modules from the crate's root down to this file.
    pub fn module(&self) -> Vec<String> {
        let mut module: Vec<String> = self
            .path
            .with_extension("")
            .components()
            .map(|part| part.as_os_str().to_string_lossy().into_owned())
            .collect();
        if module.last().is_some_and(|last| last == "mod" || last == "lib") {
            module.pop();
        }
        module
    }
}

/// The files in a directory of sources that are compiled into the library: not those that only belong to tests.
pub fn sources_of(directory: &str) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let mut sources = Vec::new();
    let mut test_modules = BTreeSet::new();
    collect(&root, &root, &mut sources);
    for source in &sources {
        let outer = source.module();
        for item in &source.syntax.items {
            if let syn::Item::Mod(module) = item
                && is_for_tests(&module.attrs)
            {
                let mut path = outer.clone();
                path.push(module.ident.to_string());
                test_modules.insert(path);
            }
        }
    }
    sources.retain(|source| {
        let module = source.module();
        !(0..=module.len()).any(|length| test_modules.contains(&module[..length]))
    });
    sources
}

fn collect(root: &Path, directory: &Path, sources: &mut Vec<Source>) {
    for entry in fs::read_dir(directory).expect("a directory of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(root, &path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source");
            let syntax = syn::parse_file(&text).expect("a source that compiles");
            let path = path.strip_prefix(root).expect("below the root").to_owned();
            sources.push(Source { path, text, syntax });
        }
    }
}

/// Whether something is only compiled for tests.
pub fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || (attribute.path().is_ident("cfg")
                && attribute
                    .parse_args::<syn::Path>()
                    .is_ok_and(|condition| condition.is_ident("test")))
    })
}

pub fn is_public(visibility: &syn::Visibility) -> bool {
    matches!(visibility, syn::Visibility::Public(_))
}

/// What an item derives.
pub fn derived(attributes: &[syn::Attribute]) -> Vec<syn::Path> {
    let mut paths = Vec::new();
    for attribute in attributes.iter().filter(|it| it.path().is_ident("derive")) {
        attribute
            .parse_nested_meta(|derived| {
                paths.push(derived.path);
                Ok(())
            })
            .expect("a list");
    }
    paths
}

/// The leaves of a tree of names: the name by which each is known, and its path. That of a glob is `*`.
pub fn leaves(before: &[String], tree: &syn::UseTree) -> Vec<(String, Vec<String>)> {
    let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
    match tree {
        syn::UseTree::Path(path) => leaves(&with(&path.ident), &path.tree),
        syn::UseTree::Name(name) if name.ident == "self" => {
            let last = before.last().cloned();
            last.map(|last| (last, before.to_vec())).into_iter().collect()
        }
        syn::UseTree::Name(name) => vec![(name.ident.to_string(), with(&name.ident))],
        syn::UseTree::Rename(name) => vec![(name.rename.to_string(), with(&name.ident))],
        syn::UseTree::Glob(_) => vec![("*".to_owned(), before.to_vec())],
        syn::UseTree::Group(group) => group.items.iter().flat_map(|tree| leaves(before, tree)).collect(),
    }
}
