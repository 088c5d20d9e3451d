//! Enums and structs with public fields can be extended: other crates may not match or build them whole.

use syn::{Attribute, Fields, Item, Visibility};

use crate::layers::sources_of;

/// What nothing can be added to: see docs/api-guidelines.md.
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
fn public_enums_and_fields_can_be_added_to_unless_they_are_listed_as_complete() {
    let mut found: Vec<String> = ["src", "fleet/src", "reqwest-middleware/src"]
        .iter()
        .flat_map(|directory| sources_of(directory))
        .flat_map(|source| source.syntax.items)
        .filter_map(|item| exhaustive(&item))
        .collect();
    found.sort();
    let mut complete = COMPLETE.map(str::to_owned);
    complete.sort();
    assert_eq!(found, complete);
}
