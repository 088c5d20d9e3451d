//! Enums and structs with public fields can be extended: other crates cannot match or build them exhaustively. Errors
//! print their message in every form.

use syn::{Attribute, Fields, Item, Visibility};

use crate::sources::{Source, derived, is_public, sources_of};

/// Types to which nothing will be added: see docs/api-guidelines.md.
const COMPLETE: [&str; 9] = [
    "Outcome",
    "ReserveOutcome",
    "Weekday",
    "LeaseRequest",
    "LeasedKey",
    "LeasedLimit",
    "LeaseReply",
    "Timeouts",
    "ProcessId",
];

fn is_extensible(attributes: &[Attribute]) -> bool {
    attributes
        .iter()
        .any(|attribute| attribute.path().is_ident("non_exhaustive"))
}

/// The name of an item that other crates could match or build exhaustively.
fn exhaustive(item: &Item) -> Option<String> {
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

fn sources() -> impl Iterator<Item = Source> {
    let directories = ["src", "fleet/src", "reqwest-middleware/src"];
    directories.into_iter().flat_map(sources_of)
}

#[test]
fn the_debug_form_of_a_public_error_is_not_derived() {
    let mut errors = 0;
    for item in sources().flat_map(|source| source.syntax.items) {
        let (name, attributes, Visibility::Public(_)) = (match &item {
            Item::Enum(item) => (&item.ident, &item.attrs, &item.vis),
            Item::Struct(item) => (&item.ident, &item.attrs, &item.vis),
            _ => continue,
        }) else {
            continue;
        };
        let derived = derived(attributes);
        let derives = |name: &str| {
            let mut last = derived.iter().filter_map(|path| path.segments.last());
            last.any(|last| last.ident == name)
        };
        if name == "Refusal" || derives("Error") {
            errors += 1;
            assert!(
                !derives("Debug"),
                "{name}: its Debug is its message, by debug_is_message!"
            );
        }
    }
    assert!(errors > 10, "{errors} public errors");
}

#[test]
fn public_enums_and_fields_can_be_added_to_unless_they_are_listed_as_complete() {
    let mut found: Vec<String> = sources()
        .flat_map(|source| source.syntax.items)
        .filter_map(|item| exhaustive(&item))
        .collect();
    found.sort();
    let mut complete = COMPLETE.map(str::to_owned);
    complete.sort();
    assert_eq!(found, complete);
}
