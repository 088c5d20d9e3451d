//! The public names of the crate: few at its root, the others in modules.

use std::fs;
use std::path::Path;

use syn::visit::{self, Visit};

use crate::sources::{is_public, leaves, sources_of};

/// No more names than a reader of the crate's first page is willing to look through.
const MAX_NAMES: usize = 45;

/// The public names of a file: its modules, and what it re-exports.
pub fn public_names_of(file: &str) -> Vec<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).expect("a source");
    let syntax = syn::parse_file(&text).expect("a source that compiles");
    let mut names = Vec::new();
    for item in &syntax.items {
        match item {
            syn::Item::Use(item) if is_public(&item.vis) => {
                for (name, _) in leaves(&[], &item.tree) {
                    assert!(name != "*", "what a glob exports is not seen here: name it");
                    names.push(name);
                }
            }
            syn::Item::Mod(item) if is_public(&item.vis) => names.push(item.ident.to_string()),
            syn::Item::Use(_) | syn::Item::Mod(_) | syn::Item::Macro(_) => {}
            // What only doctests see is not public.
            syn::Item::Struct(item) if !is_public(&item.vis) => {}
            _ => panic!("{file} defines something itself, of which this test knows nothing"),
        }
    }
    names
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

/// Finds pointers to functions in public signatures and fields.
#[derive(Default)]
struct FunctionPointers {
    found: Vec<String>,
}

/// Whether something has a pointer to a function in it.
struct HasPointer(bool);

impl<'ast> Visit<'ast> for HasPointer {
    fn visit_type_bare_fn(&mut self, _: &'ast syn::TypeBareFn) {
        self.0 = true;
    }
}

impl FunctionPointers {
    fn note(&mut self, visibility: &syn::Visibility, name: &syn::Ident, look: impl FnOnce(&mut HasPointer)) {
        let mut has_pointer = HasPointer(false);
        look(&mut has_pointer);
        if has_pointer.0 && is_public(visibility) {
            self.found.push(name.to_string());
        }
    }
}

impl<'ast> Visit<'ast> for FunctionPointers {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.note(&item.vis, &item.sig.ident, |look| look.visit_signature(&item.sig));
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.note(&item.vis, &item.sig.ident, |look| look.visit_signature(&item.sig));
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.note(&item.vis, &item.ident, |look| look.visit_type(&item.ty));
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.note(&item.vis, &item.ident, |look| look.visit_item_trait(item));
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.note(&item.vis, &item.ident, |look| look.visit_item_enum(item));
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if let Some(name) = &field.ident {
            self.note(&field.vis, name, |look| look.visit_type(&field.ty));
        }
    }
}

#[test]
fn whatever_takes_a_function_takes_closures() {
    let mut pointers = FunctionPointers::default();
    let text =
        "pub struct A { pub a: fn() } impl A { pub fn b(self, _: Option<fn(u8) -> u8>) {} fn c(_: fn()) {} }";
    pointers.visit_file(&syn::parse_file(text).expect("Rust"));
    assert_eq!(pointers.found, ["a", "b"], "they are found");
    for directory in ["src", "fleet/src", "reqwest-middleware/src"] {
        for source in sources_of(directory) {
            let mut pointers = FunctionPointers::default();
            pointers.visit_file(&source.syntax);
            assert!(
                pointers.found.is_empty(),
                "{directory}/{}: {:?} take or give pointers to functions",
                source.path.display(),
                pointers.found
            );
        }
    }
}
