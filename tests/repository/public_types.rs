//! Enums and structs with public fields can be extended: other crates may not match or build them whole.

use std::fs;
use std::path::{Path, PathBuf};

use syn::{Attribute, Fields, Item, Visibility};

/// What is complete by what it means: see docs/api-guidelines.md.
const COMPLETE: [&str; 8] = [
    "Outcome",
    "ReserveOutcome",
    "Weekday",
    "LeaseRequest",
    "LeasedLimit",
    "LeaseReply",
    "Timeouts",
    "ProcessId",
];

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn is_extensible(attributes: &[Attribute]) -> bool {
    attributes
        .iter()
        .any(|attribute| attribute.path().is_ident("non_exhaustive"))
}

/// The name of an item that other crates could match or build whole.
fn exhaustive(item: &Item) -> Option<String> {
    let is_public = |visibility: &Visibility| matches!(visibility, Visibility::Public(_));
    match item {
        Item::Enum(item) if is_public(&item.vis) && !is_extensible(&item.attrs) => {
            Some(item.ident.to_string())
        }
        Item::Struct(item) if is_public(&item.vis) && !is_extensible(&item.attrs) => {
            let fields = match &item.fields {
                Fields::Named(fields) => &fields.named,
                Fields::Unnamed(fields) => &fields.unnamed,
                Fields::Unit => return None,
            };
            let all_are_public = !fields.is_empty() && fields.iter().all(|field| is_public(&field.vis));
            all_are_public.then(|| item.ident.to_string())
        }
        _ => None,
    }
}

#[test]
fn fields_and_variants_may_come_wherever_it_is_not_said_that_they_never_do() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    sources(&root.join("src"), &mut files);
    sources(&root.join("fleet/src"), &mut files);
    let mut found: Vec<String> = files
        .iter()
        .flat_map(|file| {
            let text = fs::read_to_string(file).expect("a source");
            syn::parse_file(&text).expect("a source that compiles").items
        })
        .filter_map(|item| exhaustive(&item))
        .collect();
    found.sort();
    let mut complete = COMPLETE.map(str::to_owned);
    complete.sort();
    assert_eq!(found, complete);
}
