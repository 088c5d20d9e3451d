//! The public API of each package, as it is kept beside this file so that those who change it see what they change.
//! `SHMLIMIT_RENEW=1 cargo test --test repository public_api` writes it anew.
//!
//! It is read from the sources, as signatures are written there. Tools that ask the compiler know more, such as what is
//! derived from private fields (`auto_traits.rs` checks that), but they need a nightly compiler, have to be installed,
//! and write something else with each of their versions.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;

use quote::ToTokens;
use syn::{Attribute, FnArg, GenericParam, Item, Pat, Type, Visibility};

use crate::sources::{derived, is_for_tests, is_public, leaves, sources_of};

/// Where an item is defined: its modules, and its name.
type Place = (Vec<String>, String);

/// The items of each module of a package.
struct Package {
    name: &'static str,
    modules: BTreeMap<Vec<String>, Vec<Item>>,
}

impl Package {
    fn read(name: &'static str, directory: &str) -> Self {
        let mut package = Self {
            name,
            modules: BTreeMap::new(),
        };
        for source in sources_of(directory) {
            package.add(source.module(), source.syntax.items);
        }
        package
    }

    fn add(&mut self, module: Vec<String>, mut items: Vec<Item>) {
        // `pin_project!` defines the items that it is given.
        for at in 0..items.len() {
            if let Item::Macro(item) = &items[at]
                && item.mac.path.is_ident("pin_project")
            {
                items.extend(item.mac.parse_body::<syn::File>().expect("items").items);
            }
        }
        for item in &items {
            if let Item::Mod(inner) = item
                && !is_for_tests(&inner.attrs)
                && let Some((_, items)) = &inner.content
            {
                self.add(with(&module, &inner.ident), items.clone());
            }
        }
        self.modules.insert(module, items);
    }

    /// Where the item is defined that a module names by this path, if that is in this package.
    fn resolve(&self, module: &[String], path: &[String]) -> Option<Place> {
        let (name, before) = path.split_last()?;
        let mut from = module.to_vec();
        for (index, part) in before.iter().enumerate() {
            from = match part.as_str() {
                "crate" => Vec::new(),
                "self" => from,
                "super" => from.split_last()?.1.to_vec(),
                part if index == 0 => self.find(&from, part).map(|place| with(&place.0, place.1))?,
                part => with(&from, part),
            };
        }
        // An item that a macro defines is not found by its name.
        let by_macro = !before.is_empty() && self.modules.contains_key(&from);
        let found = self.find(&from, name);
        found.or_else(|| by_macro.then(|| (from, name.clone())))
    }

    /// Where the item is defined that has this name in a module: there, or where the module has it from.
    fn find(&self, module: &[String], name: &str) -> Option<Place> {
        let items = self.modules.get(module)?;
        if items
            .iter()
            .any(|item| name_of(item).is_some_and(|it| it == name))
        {
            return Some((module.to_vec(), name.to_owned()));
        }
        let mut uses = items.iter().filter_map(|item| match item {
            Item::Use(item) => Some(&item.tree),
            _ => None,
        });
        uses.find_map(|tree| {
            let (_, path) = leaves(&[], tree).into_iter().find(|(alias, _)| alias == name)?;
            self.resolve(module, &path)
        })
    }

    /// All public items, with the paths that users write.
    fn public(&self) -> BTreeMap<Place, String> {
        let mut public = BTreeMap::new();
        self.add_public(&[], self.name, &mut public);
        public
    }

    fn add_public(&self, module: &[String], path: &str, public: &mut BTreeMap<Place, String>) {
        for item in self.modules.get(module).into_iter().flatten() {
            match item {
                Item::Use(item) if is_public(&item.vis) => {
                    for (alias, target) in leaves(&[], &item.tree) {
                        let place = self.resolve(module, &target);
                        let place = place.unwrap_or_else(|| panic!("{path}::{alias} is of another package"));
                        let inner = with(&place.0, &place.1);
                        public.insert(place, format!("{path}::{alias}"));
                        self.add_public(&inner, &format!("{path}::{alias}"), public);
                    }
                }
                _ => {
                    if let (Some(name), true) = (name_of(item), visibility_of(item).is_some_and(is_public)) {
                        public.insert((module.to_vec(), name.clone()), format!("{path}::{name}"));
                        if let Item::Mod(_) = item {
                            self.add_public(&with(module, &name), &format!("{path}::{name}"), public);
                        }
                    }
                }
            }
        }
    }

    /// The facts of the API, one line for each, so that comparing the lines shows what has changed.
    fn facts(&self) -> BTreeSet<String> {
        let public = self.public();
        let mut facts = BTreeSet::new();
        for (module, items) in &self.modules {
            for item in items {
                if let Some(path) = name_of(item).and_then(|name| public.get(&(module.clone(), name))) {
                    add_definition(path, item, &mut facts);
                }
                let of = |name: &[String]| self.resolve(module, name).and_then(|place| public.get(&place));
                match item {
                    Item::Impl(item) if !is_for_tests(&item.attrs) => {
                        let of_trait = item.trait_.as_ref().map(|(_, path, _)| names_of(path));
                        let of_trait = of_trait.and_then(|name| self.resolve(module, &name));
                        if of_trait.is_some_and(|place| !public.contains_key(&place)) {
                            continue;
                        }
                        if let Some(path) = path_of(&item.self_ty).and_then(|name| of(&name)) {
                            add_implementation(path, item, &mut facts);
                        }
                    }
                    Item::Macro(item) if item.ident.is_none() && !item.mac.path.is_ident("pin_project") => {
                        let text = text(&item.mac);
                        let names = item.mac.tokens.clone().into_iter().map(|token| token.to_string());
                        for path in names.filter_map(|name| of(&[name])) {
                            facts.insert(format!("{path}: {text}"));
                        }
                    }
                    _ => {}
                }
            }
        }
        facts
    }
}

fn with(module: &[String], name: impl ToString) -> Vec<String> {
    let mut longer = module.to_vec();
    longer.push(name.to_string());
    longer
}

fn name_of(item: &Item) -> Option<String> {
    Some(match item {
        Item::Struct(item) => item.ident.to_string(),
        Item::Enum(item) => item.ident.to_string(),
        Item::Trait(item) => item.ident.to_string(),
        Item::Type(item) => item.ident.to_string(),
        Item::Fn(item) => item.sig.ident.to_string(),
        Item::Const(item) => item.ident.to_string(),
        Item::Static(item) => item.ident.to_string(),
        Item::Mod(item) => item.ident.to_string(),
        _ => return None,
    })
}

fn visibility_of(item: &Item) -> Option<&Visibility> {
    Some(match item {
        Item::Struct(item) => &item.vis,
        Item::Enum(item) => &item.vis,
        Item::Trait(item) => &item.vis,
        Item::Type(item) => &item.vis,
        Item::Fn(item) => &item.vis,
        Item::Const(item) => &item.vis,
        Item::Static(item) => &item.vis,
        Item::Mod(item) => &item.vis,
        _ => return None,
    })
}

fn names_of(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|part| part.ident.to_string()).collect()
}

/// The path of a type, or of what it refers to.
fn path_of(of: &Type) -> Option<Vec<String>> {
    match of {
        Type::Path(path) => Some(names_of(&path.path)),
        Type::Reference(reference) => path_of(&reference.elem),
        _ => None,
    }
}

/// The text of tokens, without the spaces that tokens are written with.
fn text(tokens: &impl ToTokens) -> String {
    let mut text = tokens.to_token_stream().to_string().replace('\n', " ");
    for (spaced, close) in [
        (" :: ", "::"),
        (":: ", "::"),
        (" ::", "::"),
        (" < ", "<"),
        ("< ", "<"),
        (" <", "<"),
        (" >", ">"),
        ("& ", "&"),
        (" ,", ","),
        (" ;", ";"),
        (" :", ":"),
        (" (", "("),
        ("( ", "("),
        (" )", ")"),
        ("# [", "#["),
        ("[ ", "["),
        (" ]", "]"),
        (" !", "!"),
        (" ?", "?"),
        ("' ", "'"),
        (" . ", "."),
        (",)", ")"),
        (",>", ">"),
        ("->(", "-> ("),
        ("fn<", "fn <"),
        ("=(", "= ("),
    ] {
        text = text.replace(spaced, close);
    }
    text
}

/// What attributes say to those who use the item.
fn attributes_of(attributes: &[Attribute]) -> String {
    let told = [
        "cfg",
        "non_exhaustive",
        "must_use",
        "deprecated",
        "track_caller",
        "repr",
    ];
    let mut words = String::new();
    for attribute in attributes {
        let is_told = told.iter().any(|name| attribute.path().is_ident(name));
        if is_told || text(attribute) == "#[doc(hidden)]" {
            write!(words, "{} ", text(attribute)).expect("to memory");
        }
    }
    words
}

/// Adds the item itself: its fields, variants or methods, and what it derives.
fn add_definition(path: &str, item: &Item, facts: &mut BTreeSet<String>) {
    let mut add = |attributes: &[Attribute], fact: String| {
        facts.insert(format!(
            "{path}: {}{}",
            attributes_of(attributes),
            fact.trim_end_matches([' ', ':'])
        ));
    };
    match item {
        Item::Struct(item) => {
            let (generics, bounds) = (&item.generics, &item.generics.where_clause);
            add(&item.attrs, format!("struct{} {}", text(generics), text(bounds)));
            for (index, field) in item
                .fields
                .iter()
                .enumerate()
                .filter(|(_, it)| is_public(&it.vis))
            {
                let name = field
                    .ident
                    .as_ref()
                    .map_or(index.to_string(), ToString::to_string);
                add(&field.attrs, format!("pub {name}: {}", text(&field.ty)));
            }
            facts.extend(derives(path, &item.attrs));
        }
        Item::Enum(item) => {
            add(&item.attrs, format!("enum{}", text(&item.generics)));
            for variant in &item.variants {
                let mut fields = variant.fields.clone();
                fields.iter_mut().for_each(|field| field.attrs.clear());
                add(
                    &variant.attrs,
                    format!("variant {}{}", variant.ident, text(&fields)),
                );
            }
            facts.extend(derives(path, &item.attrs));
        }
        Item::Trait(item) => {
            let supertraits = &item.supertraits;
            add(
                &item.attrs,
                format!("trait{}: {}", text(&item.generics), text(supertraits)),
            );
            for item in &item.items {
                match item {
                    syn::TraitItem::Fn(item) => {
                        let provided = if item.default.is_some() { " { .. }" } else { "" };
                        add(&item.attrs, format!("{}{provided}", signature(&item.sig)));
                    }
                    syn::TraitItem::Type(item) => add(&item.attrs, text(item)),
                    syn::TraitItem::Const(item) => add(&item.attrs, text(item)),
                    _ => {}
                }
            }
        }
        Item::Fn(item) => add(&item.attrs, signature(&item.sig)),
        Item::Type(item) => add(
            &item.attrs,
            format!("type{} = {}", text(&item.generics), text(&item.ty)),
        ),
        Item::Const(item) => add(&item.attrs, format!("const: {}", text(&item.ty))),
        Item::Static(item) => add(&item.attrs, format!("static: {}", text(&item.ty))),
        Item::Mod(item) => add(&item.attrs, "mod".to_owned()),
        _ => {}
    }
}

fn derives(path: &str, attributes: &[Attribute]) -> impl Iterator<Item = String> {
    let derived = derived(attributes).into_iter();
    derived.map(move |derived| format!("{path}: derives {}", text(&derived)))
}

/// Adds the public methods, or the fact that a trait is implemented.
fn add_implementation(path: &str, item: &syn::ItemImpl, facts: &mut BTreeSet<String>) {
    let (generics, of) = (text(&item.generics), text(&item.self_ty));
    let bounds = text(&item.generics.where_clause);
    let start = format!("{path}: {}", attributes_of(&item.attrs));
    if let Some((_, name, _)) = &item.trait_ {
        let fact = format!("{start}impl{generics} {} for {of} {bounds}", text(name));
        facts.insert(fact.trim_end().to_owned());
        return;
    }
    // Lifetimes say nothing that signatures do not.
    let mut parameters = item.generics.params.iter();
    let is_plain = bounds.is_empty() && parameters.all(|it| matches!(it, GenericParam::Lifetime(_)));
    let head = if is_plain {
        start
    } else {
        let head = format!("{start}impl{generics} {of} {bounds}");
        format!("{}: ", head.trim_end())
    };
    let mut add = |attributes: &[Attribute], fact: String| {
        facts.insert(format!("{head}{}{fact}", attributes_of(attributes)));
    };
    for item in &item.items {
        match item {
            syn::ImplItem::Fn(item) if is_public(&item.vis) => add(&item.attrs, signature(&item.sig)),
            syn::ImplItem::Const(item) if is_public(&item.vis) => {
                add(&item.attrs, format!("const {}: {}", item.ident, text(&item.ty)));
            }
            _ => {}
        }
    }
}

/// The signature as callers see it: whether a function changes its own arguments is not part of it.
fn signature(of: &syn::Signature) -> String {
    let mut of = of.clone();
    for input in &mut of.inputs {
        match input {
            FnArg::Receiver(receiver) if receiver.reference.is_none() => receiver.mutability = None,
            FnArg::Typed(argument) => {
                if let Pat::Ident(name) = &mut *argument.pat {
                    name.mutability = None;
                }
            }
            FnArg::Receiver(_) => {}
        }
    }
    text(&of)
}

#[test]
fn the_public_api_is_what_is_kept() {
    let mut changed = Vec::new();
    for (name, directory) in [
        ("shmlimit", "src"),
        ("shmlimit_fleet", "fleet/src"),
        ("shmlimit_reqwest_middleware", "reqwest-middleware/src"),
    ] {
        let kept = format!(
            "{}/tests/repository/public_api/{name}.txt",
            env!("CARGO_MANIFEST_DIR")
        );
        let facts = Package::read(name, directory).facts();
        if std::env::var_os("SHMLIMIT_RENEW").is_some() {
            let lines: String = facts.iter().map(|fact| format!("{fact}\n")).collect();
            fs::write(&kept, lines).expect("written");
            continue;
        }
        let kept = fs::read_to_string(&kept).expect("what is kept");
        let kept: BTreeSet<String> = kept.lines().map(str::to_owned).collect();
        changed.extend(kept.difference(&facts).map(|fact| format!("- {fact}")));
        changed.extend(facts.difference(&kept).map(|fact| format!("+ {fact}")));
    }
    assert!(
        changed.is_empty(),
        "the public API has changed:\n{}\nWhere a line is gone, programs may no longer compile. If that is meant, \
         `SHMLIMIT_RENEW=1 cargo test --test repository public_api` keeps it, and CHANGELOG.md says it.",
        changed.join("\n")
    );
}

#[test]
fn what_is_public_is_found_wherever_it_is_defined() {
    let file = |text: &str| syn::parse_file(text).expect("Rust").items;
    let mut package = Package {
        name: "it",
        modules: BTreeMap::new(),
    };
    let root = "mod inner; pub mod outer { pub use crate::inner::deep::Told as Seen; } pub use inner::Two;";
    package.add(vec![], file(root));
    let inner = "pub mod deep; pub use deep::Two; pub struct Hidden; trait Own {} impl Own for Two {}";
    package.add(vec!["inner".to_owned()], file(inner));
    let deep = "use super::Two as Other; #[derive(Clone)] pub struct Told { pub a: u8, b: u8 } pub enum Two { A, B(u8) } \
        impl<'a> Other { pub fn change(&'a mut self, mut to: u8) {} fn own(&self) {} } impl From<u8> for Told {} \
        #[cfg(test)] impl From<u16> for Told {} impl<T: Copy> Told { pub fn of(mut self, _: T) -> Self {} }";
    package.add(vec!["inner".to_owned(), "deep".to_owned()], file(deep));
    let facts: Vec<String> = package.facts().into_iter().collect();
    let expected = [
        "it::Two: enum",
        "it::Two: fn change(&'a mut self, to: u8)",
        "it::Two: variant A",
        "it::Two: variant B(u8)",
        "it::outer: mod",
        "it::outer::Seen: derives Clone",
        "it::outer::Seen: impl From<u8> for Told",
        "it::outer::Seen: impl<T: Copy> Told: fn of(self, _: T) -> Self",
        "it::outer::Seen: pub a: u8",
        "it::outer::Seen: struct",
    ];
    assert_eq!(facts, expected);
}
