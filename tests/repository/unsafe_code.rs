//! Unsafe code, found in the sources of all packages: every file that has any opts in as a whole, and either states a
//! reason or is on the audit list of its package.
//!
//! The compiler refuses unsafe code elsewhere. This test is for what the compiler accepts: an exception for a module
//! that extends to the files below it, one on an item in the middle of a file, one that is no longer needed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// The audit lists of what is shipped, in the documentation of a module: the directory that each is about, and its
/// file.
const AUDIT_LISTS: &[(&str, &str)] = &[
    ("src", "src/shm/mod.rs"),
    ("python/src", "python/src/lib.rs"),
    ("tools/limitctl/src", "tools/limitctl/src/lib.rs"),
];

/// A workspace of its own, with the same lint.
const OUTSIDE_THE_WORKSPACE: &str = "fuzz";

const LINT: &str = "unsafe_code";

/// Macros of other crates that expand to unsafe code, which the compiler's lint does not report.
const EXPAND_TO_UNSAFE_CODE: &[&str] = &["probe", "probe_lazy"];

/// Files whose acquire loads only read the process's own memory.
const LOADS_OF_OWN_MEMORY: &[&str] = &[
    "src/api/pool/pool_strategy.rs",
    "src/engine/shard/batches.rs",
    "src/engine/rules/versions.rs",
    "src/shm/file/descriptor.rs",
    "src/shm/process/image_lock.rs",
    "src/shm/process/fork_identity.rs",
    "src/shm/process/participant.rs",
    "src/shm/wake/death_watch.rs",
];

/// What a file has to do with unsafe code.
#[derive(Debug, Default, PartialEq, Eq)]
struct Findings {
    has_unsafe_code: bool,
    /// Whether the file opts in as a whole, by its own attributes.
    opts_in: bool,
    states_a_reason: bool,
    /// How often it opts in for less than a file, or where the reason cannot be seen.
    other_exceptions: usize,
}

impl Findings {
    fn of(text: &str) -> Self {
        let syntax = syn::parse_file(text).expect("a source that compiles");
        let mut findings = Self::default();
        for attribute in syntax.attrs.iter().filter(|it| is_exception(it)) {
            findings.opts_in = true;
            findings.states_a_reason |= words(attribute).any(|word| word == "reason");
        }
        for item in &syntax.items {
            findings.visit_item(item);
        }
        findings
    }
}

impl<'ast> Visit<'ast> for Findings {
    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        // #[unsafe(no_mangle)], also within cfg_attr.
        self.has_unsafe_code |= words(attribute).any(|word| word == "unsafe");
        if is_exception(attribute) {
            self.other_exceptions += 1;
        }
    }

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        let words = words_of(invocation.tokens.clone());
        self.has_unsafe_code |= words.iter().any(|word| word == "unsafe");
        // The macro may be called here, or by a macro that is defined here.
        let name = invocation.path.segments.last().map(|last| last.ident.to_string());
        let mut named = name.into_iter().chain(calls_of(invocation.tokens.clone()));
        self.has_unsafe_code |= named.any(|name| EXPAND_TO_UNSAFE_CODE.contains(&name.as_str()));
        if words.iter().any(|word| word == LINT) {
            self.other_exceptions += 1;
        }
    }

    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.has_unsafe_code = true;
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        self.has_unsafe_code |= signature.unsafety.is_some();
        visit::visit_signature(self, signature);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.has_unsafe_code |= item.unsafety.is_some();
        visit::visit_item_impl(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.has_unsafe_code |= item.unsafety.is_some();
        visit::visit_item_trait(self, item);
    }

    fn visit_item_foreign_mod(&mut self, item: &'ast syn::ItemForeignMod) {
        self.has_unsafe_code = true;
        visit::visit_item_foreign_mod(self, item);
    }
}

/// Whether an attribute does anything with the lint other than denying it.
fn is_exception(attribute: &syn::Attribute) -> bool {
    let path = attribute.path();
    let is_denial = path.is_ident("deny") || path.is_ident("forbid");
    !is_denial && words(attribute).any(|word| word == LINT)
}

/// All identifiers and keywords of an attribute, except for those in strings.
fn words(attribute: &syn::Attribute) -> impl Iterator<Item = String> {
    let of_path = attribute.path().segments.iter();
    let of_list = match &attribute.meta {
        syn::Meta::List(list) => words_of(list.tokens.clone()),
        syn::Meta::Path(_) | syn::Meta::NameValue(_) => Vec::new(),
    };
    of_path.map(|segment| segment.ident.to_string()).chain(of_list)
}

fn words_of(tokens: TokenStream) -> Vec<String> {
    let mut words = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Group(group) => words.extend(words_of(group.stream())),
            TokenTree::Ident(word) => words.push(word.to_string().trim_start_matches("r#").to_owned()),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
    words
}

/// The names before an exclamation mark.
fn calls_of(tokens: TokenStream) -> Vec<String> {
    let mut calls = Vec::new();
    let mut before = None;
    for token in tokens {
        match token {
            TokenTree::Group(group) => calls.extend(calls_of(group.stream())),
            TokenTree::Ident(word) => {
                before = Some(word.to_string());
                continue;
            }
            TokenTree::Punct(sign) if sign.as_char() == '!' => calls.extend(before.take()),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
        before = None;
    }
    calls
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn manifest_of(package: &Path) -> toml::Table {
    let text = fs::read_to_string(package.join("Cargo.toml")).expect("a manifest");
    text.parse().expect("a manifest that cargo reads")
}

/// The directories of all packages of the workspace, and of the one outside.
fn packages() -> Vec<PathBuf> {
    let manifest = manifest_of(root());
    let members = manifest["workspace"]["members"].as_array().expect("a list");
    let members = members.iter().map(|member| member.as_str().expect("a directory"));
    members
        .chain([OUTSIDE_THE_WORKSPACE])
        .map(|member| root().join(member))
        .collect()
}

/// Every source file of every package, by its path from the root.
fn sources() -> Vec<PathBuf> {
    let mut sources = BTreeSet::new();
    for package in packages() {
        collect(&package, &mut sources);
    }
    assert!(sources.len() > 300, "only {} files found", sources.len());
    sources.into_iter().collect()
}

fn collect(directory: &Path, sources: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let entry = entry.expect("an entry");
        let (path, name) = (entry.path(), entry.file_name());
        let is_made = name == "target" || name.as_encoded_bytes().starts_with(b".");
        if path.is_dir() && !is_made {
            collect(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.insert(path.strip_prefix(root()).expect("below the root").to_owned());
        }
    }
}

/// The findings for every source file of every package.
static FINDINGS: LazyLock<Vec<(PathBuf, Findings)>> = LazyLock::new(|| {
    let found = sources().into_iter().map(|path| {
        let text = fs::read_to_string(root().join(&path)).expect("a source");
        let findings = Findings::of(&text);
        (path, findings)
    });
    found.collect()
});

#[test]
fn every_package_denies_unsafe_code() {
    let manifest = manifest_of(root());
    assert_eq!(
        manifest["workspace"]["lints"]["rust"][LINT].as_str(),
        Some("deny")
    );
    for package in packages() {
        let lints = &manifest_of(&package)["lints"];
        let denies = if package.ends_with(OUTSIDE_THE_WORKSPACE) {
            lints["rust"][LINT].as_str() == Some("deny")
        } else {
            lints["workspace"].as_bool() == Some(true)
        };
        assert!(denies, "{} does not deny {LINT}", package.display());
    }
}

#[test]
fn a_file_opts_in_as_a_whole_and_only_if_it_has_unsafe_code() {
    let mut wrong = Vec::new();
    for (path, findings) in &*FINDINGS {
        if findings.opts_in != findings.has_unsafe_code || findings.other_exceptions > 0 {
            wrong.push((path, findings));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn what_opts_in_is_on_the_audit_list_of_its_package_or_states_a_reason() {
    let is_of = |path: &Path, directory: &str| path.starts_with(directory);
    for (directory, list) in AUDIT_LISTS {
        let text = fs::read_to_string(root().join(list)).expect("a list");
        let audited: BTreeSet<PathBuf> = text
            .lines()
            .filter_map(|line| line.strip_prefix("//! - `")?.split_once('`'))
            .map(|(name, _)| Path::new(list).with_file_name(name))
            .collect();
        let opted_in: BTreeSet<PathBuf> = FINDINGS
            .iter()
            .filter(|(path, findings)| is_of(path, directory) && findings.opts_in)
            .map(|(path, _)| path.clone())
            .collect();
        assert_eq!(audited, opted_in, "in {list}");
    }
    for (path, findings) in &*FINDINGS {
        let is_listed = AUDIT_LISTS.iter().any(|(directory, _)| is_of(path, directory));
        assert!(
            is_listed || !findings.opts_in || findings.states_a_reason,
            "{} opts in without a reason",
            path.display()
        );
    }
}

/// In a mapping without write permission, Rust only promises that relaxed loads work. For other orders, the library has
/// `load_acquire`.
#[test]
fn what_may_be_mapped_read_only_is_loaded_relaxed() {
    let has_other_loads = |path: &PathBuf| {
        let text = fs::read_to_string(root().join(path)).expect("a source");
        ["load(Ordering::Acquire)", "load(Ordering::SeqCst)"]
            .iter()
            .any(|load| text.contains(load))
    };
    let found: BTreeSet<PathBuf> = sources()
        .into_iter()
        .filter(|path| path.starts_with("src") && has_other_loads(path))
        .collect();
    let known: BTreeSet<PathBuf> = LOADS_OF_OWN_MEMORY.iter().map(PathBuf::from).collect();
    assert_eq!(found, known, "these are to load memory of the process alone");
}

/// Tests the test: it finds what it is meant to find, however that is written.
#[test]
fn exceptions_and_unsafe_code_are_found_however_they_are_written() {
    for exception in [
        "#![allow(unsafe_code)]",
        "#![allow(dead_code, unsafe_code)]",
        "#![ allow ( dead_code ,\n unsafe_code ) ]",
        "#![expect(unsafe_code)]",
        "#![warn(unsafe_code)]",
        "#![cfg_attr(target_os = \"linux\", allow(unsafe_code))]",
        "#![allow(r#unsafe_code)]",
    ] {
        let findings = Findings::of(exception);
        assert!(findings.opts_in && !findings.states_a_reason, "{exception}");
    }
    let reasoned = Findings::of("#![allow(unsafe_code, reason = \"forks\")]");
    assert!(reasoned.opts_in && reasoned.states_a_reason);
    for denial in [
        "#![deny(unsafe_code)]",
        "#![forbid(dead_code, unsafe_code)]",
        "//! `unsafe_code`",
    ] {
        assert_eq!(Findings::of(denial), Findings::default(), "{denial}");
    }
    for exception in [
        "#[allow(unsafe_code)] fn f() {}",
        "mod inner { #![allow(unsafe_code)] }",
        "fn f() { #[expect(unsafe_code)] let x = 1; }",
        "#[cfg_attr(all(), allow(unsafe_code))] mod inner {}",
        "macro_rules! m { () => { #[allow(unsafe_code)] fn f() {} } }",
    ] {
        let findings = Findings::of(exception);
        assert!(
            !findings.opts_in && findings.other_exceptions == 1,
            "{exception}: {findings:?}"
        );
    }
    for code in [
        "fn f() { unsafe { g() } }",
        "unsafe fn f() {}",
        "trait T { unsafe fn f(); }",
        "unsafe impl Send for T {}",
        "unsafe trait T {}",
        "unsafe extern \"C\" { fn f(); }",
        "#[unsafe(no_mangle)] fn f() {}",
        "macro_rules! m { () => { unsafe { g() } } }",
        "fn f() { m!(unsafe { g() }) }",
        "fn f() { probe::probe_lazy!(provider, name) }",
        "macro_rules! m { () => { probe::probe!(provider, name) } }",
    ] {
        assert!(Findings::of(code).has_unsafe_code, "{code}");
    }
    assert_eq!(
        Findings::of("fn f() { assert!(probe); probe(1) }"),
        Findings::default()
    );
    assert_eq!(
        Findings::of("/// Unsafe: unsafe_code. type F = unsafe fn(); \nfn f() { log(\"unsafe\") }"),
        Findings::default()
    );
}
