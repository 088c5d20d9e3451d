//! What the crate shows: few names at its root, the others in modules.

use std::fs;
use std::path::Path;

/// As many names as a reader of the crate's first page looks through.
const MAX_NAMES: usize = 45;

/// The names that a file gives to all: modules, and what it re-exports.
pub fn public_names_of(file: &str) -> Vec<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).expect("a source");
    let syntax = syn::parse_file(&text).expect("a source that compiles");
    let is_public = |visibility: &syn::Visibility| matches!(visibility, syn::Visibility::Public(_));
    let mut names = Vec::new();
    for item in &syntax.items {
        match item {
            syn::Item::Use(item) if is_public(&item.vis) => collect(&item.tree, &mut names),
            syn::Item::Mod(item) if is_public(&item.vis) => names.push(item.ident.to_string()),
            syn::Item::Use(_) | syn::Item::Mod(_) | syn::Item::Macro(_) => {}
            // What only doctests see has no name for others.
            syn::Item::Struct(item) if !is_public(&item.vis) => {}
            _ => panic!("{file} defines something itself, of which this test knows nothing"),
        }
    }
    names
}

fn collect(tree: &syn::UseTree, names: &mut Vec<String>) {
    match tree {
        syn::UseTree::Path(path) => collect(&path.tree, names),
        syn::UseTree::Group(group) => group.items.iter().for_each(|tree| collect(tree, names)),
        syn::UseTree::Name(syn::UseName { ident })
        | syn::UseTree::Rename(syn::UseRename { rename: ident, .. }) => names.push(ident.to_string()),
        syn::UseTree::Glob(_) => panic!("what a glob exports is not seen here: name it"),
    }
}

#[test]
fn the_root_has_few_names_and_each_other_name_is_found_in_one_module() {
    let at_root = public_names_of("src/lib.rs");
    assert!(
        at_root.len() <= MAX_NAMES,
        "{} names at the root, of at most {MAX_NAMES}: put what the first pages do not use into a module: {at_root:?}",
        at_root.len()
    );
    let mut seen = at_root;
    for module in [
        "declare",
        "headers/mod",
        "pool",
        "request/mod",
        "snapshot",
        "api/fleet/mod",
    ] {
        for name in public_names_of(&format!("src/{module}.rs")) {
            assert!(!seen.contains(&name), "{name} of {module} has two paths");
            seen.push(name);
        }
    }
}
