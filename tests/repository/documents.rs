//! What the documents refer to exists: files and directories of this repository, and the targets of links.

use std::fs;
use std::path::{Path, PathBuf};

fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found: Vec<PathBuf> = [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "shm-layout.md",
        "src/README.md",
        "fleet/README.md",
        "reqwest-middleware/README.md",
        "tools/limitctl/README.md",
        "python/README.md",
    ]
    .iter()
    .map(|name| root.join(name))
    .collect();
    let mut directories = vec![root.join("docs")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found
}

/// The text in single backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// The targets of links of the form `[text](target)`.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', ' ']).next())
}

/// The anchor of a heading: in lower case, with hyphens for spaces and without other signs.
fn anchor(heading: &str) -> String {
    let letters = heading.trim().to_lowercase();
    letters
        .chars()
        .filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter))
        .map(|letter| if letter == ' ' { '-' } else { letter })
        .collect()
}

fn has_anchor(document: &str, wanted: &str) -> bool {
    let headings = document.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| anchor(line.trim_start_matches('#')))
        .any(|found| found == wanted)
        || document.contains(&format!("<a id=\"{wanted}\"></a>"))
}

#[test]
fn files_that_documents_name_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut missing = Vec::new();
    for document in documents() {
        let text = fs::read_to_string(&document).expect("text");
        let paths = quoted(&text).filter(|word| {
            let is_path = word
                .chars()
                .all(|letter| letter.is_ascii_alphanumeric() || "/._-".contains(letter));
            let roots = [
                "src/",
                "tests/",
                "tools/",
                "packaging/",
                "python/",
                "docs/",
                "benches/",
                "examples/",
                "demos/",
                "fleet/",
                "reqwest-middleware/",
                "fuzz/",
            ];
            is_path && roots.iter().any(|root| word.starts_with(root))
        });
        missing.extend(
            paths
                .filter(|path| !root.join(path).exists())
                .map(|path| format!("{}: {path}", document.display())),
        );
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut broken = Vec::new();
    for document in documents() {
        let text = fs::read_to_string(&document).expect("text");
        let directory = document.parent().expect("a directory");
        for link in links(&text).filter(|link| !link.contains("://") && !link.starts_with("mailto:")) {
            let (file, wanted) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() {
                document.clone()
            } else {
                directory.join(file)
            };
            let is_image = target.extension().is_some_and(|extension| extension == "png");
            let leads = (target.is_dir() || is_image && target.is_file()) && wanted.is_empty()
                || fs::read_to_string(&target)
                    .is_ok_and(|text| wanted.is_empty() || has_anchor(&text, wanted));
            if !leads {
                broken.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Cargo fails if it is given the name of a test program that does not exist, and some scripts run for hours before
/// that happens. If it is given a module that does not exist, it runs no test and succeeds.
#[test]
fn tests_that_scripts_name_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tests = [
        "tests",
        "tests/c_libraries",
        "tools/limitctl/tests",
        "fleet/tests",
        "reqwest-middleware/tests",
    ]
    .map(|directory| root.join(directory));
    let exists = |name: &str| {
        let mut places = tests.iter();
        places.any(|place| {
            place.join(format!("{name}.rs")).exists() || place.join(name).join("main.rs").exists()
        })
    };
    let mut sources = Vec::new();
    sources_below(&root.join("src"), &mut sources);
    for place in &tests {
        sources_below(place, &mut sources);
    }
    let is_module = |name: &str| {
        let [file, directory] = [format!("/{name}.rs"), format!("/{name}/mod.rs")];
        let mut paths = sources.iter().map(|source| source.to_string_lossy());
        paths.any(|path| path.ends_with(&file) || path.ends_with(&directory))
    };
    let mut missing = Vec::new();
    let mut scripts = vec![root.join("tools/check")];
    for directory in ["tools/checks", "tools/checks/containers"] {
        let entries = fs::read_dir(root.join(directory)).expect("a directory");
        let files = entries.map(|entry| entry.expect("an entry").path());
        scripts.extend(files.filter(|path| path.is_file()));
    }
    for script in scripts {
        let text = fs::read_to_string(&script).expect("text");
        let named = text
            .split("--test ")
            .skip(1)
            .filter_map(|rest| rest.split_whitespace().next());
        let listed = text
            .split_once("engine_tests='")
            .and_then(|(_, rest)| rest.split_once('\''));
        let names = named.chain(listed.into_iter().flat_map(|(names, _)| names.split_whitespace()));
        // Variables stand for names that are in the list.
        let names = names.filter(|name| {
            name.chars()
                .all(|letter| letter.is_ascii_lowercase() || letter == '_')
        });
        let modules = text
            .split_whitespace()
            .filter_map(|word| word.strip_suffix("::"))
            .map(|path| path.rsplit("::").next().unwrap_or(path));
        missing.extend(
            names
                .filter(|name| !exists(name))
                .chain(modules.filter(|module| !is_module(module)))
                .map(|name| format!("{}: {name}", script.display())),
        );
    }
    assert_eq!(missing, Vec::<String>::new());
}

/// A link into the repository leads nowhere on such a page, because no manifest says where the repository is.
#[test]
fn links_on_the_pages_of_registries_stay_there_or_lead_out() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // These are shown with the library's documentation.
    let mut pages = ["CHANGELOG.md", "shm-layout.md"]
        .map(|name| root.join(name))
        .to_vec();
    for manifest in [
        "Cargo.toml",
        "fleet/Cargo.toml",
        "reqwest-middleware/Cargo.toml",
        "tools/limitctl/Cargo.toml",
        "python/pyproject.toml",
    ] {
        let manifest = root.join(manifest);
        let text = fs::read_to_string(&manifest).expect("a manifest");
        let readme = text
            .lines()
            .find_map(|line| line.strip_prefix("readme = \"")?.strip_suffix('"'))
            .unwrap_or_else(|| panic!("{}: a page", manifest.display()));
        pages.push(manifest.parent().expect("a directory").join(readme));
    }
    let mut leading_nowhere = Vec::new();
    for page in pages {
        let text = fs::read_to_string(&page).expect("a page");
        let inward = links(&text).filter(|link| !link.starts_with("https://") && !link.starts_with('#'));
        leading_nowhere.extend(inward.map(|link| format!("{}: {link}", page.display())));
    }
    assert_eq!(leading_nowhere, Vec::<String>::new());
}

#[test]
fn the_readme_is_short() {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).expect("text");
    let lines = readme.lines().count();
    assert!(lines <= 150, "{lines} lines: what is for later goes into docs/");
}

#[test]
fn pages_of_one_job_are_short_and_listed() {
    check_short_and_listed("docs/how-to", 80, "docs/how-to/README.md", "");
}

#[test]
fn pages_for_those_who_move_are_short_and_listed() {
    check_short_and_listed("docs/moving", 80, "docs/moving/README.md", "");
}

#[test]
fn tutorials_take_ten_minutes_and_are_listed() {
    check_short_and_listed("docs/tutorials", 210, "docs/tutorials/README.md", "");
}

#[test]
fn examples_are_short_and_listed_in_the_readme() {
    let programs = check_short_and_listed("examples", 60, "README.md", "examples/");
    assert_eq!(programs, 6, "README.md says how many");
}

/// Checks that no file of a directory has more lines than `most_lines`, and that `index` links each of them by its name
/// after `prefix`. Returns how many it links, which leaves out the index itself and the declarations of programs.
fn check_short_and_listed(directory: &str, most_lines: usize, index: &str, prefix: &str) -> usize {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let index = root.join(index);
    let text = fs::read_to_string(&index).expect("text");
    let mut listed = 0;
    for entry in fs::read_dir(root.join(directory)).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            continue;
        }
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let lines = fs::read_to_string(&path).expect("text").lines().count();
        assert!(
            lines <= most_lines,
            "{name} has {lines} lines: at most {most_lines}"
        );
        if path == index {
            continue;
        }
        assert!(
            text.contains(&format!("]({prefix}{name})")),
            "{} lists the files of {directory}, without {name}",
            index.display()
        );
        listed += 1;
    }
    listed
}

fn sources_below(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources_below(&path, found);
        } else if path
            .extension()
            .is_some_and(|extension| ["rs", "py", "pyi"].iter().any(|known| extension == *known))
        {
            found.push(path);
        }
    }
}

/// The declarations in `text`: blocks of TOML that have sets.
fn declarations(text: &str) -> impl Iterator<Item = &str> {
    text.split("```toml")
        .skip(1)
        .filter_map(|rest| rest.split_once('\n')?.1.split("```").next())
        .filter(|block| block.contains("[[set]]"))
}

/// The size of a container's /dev/shm, unless it is given more.
const ROOM_OF_A_CONTAINER: u64 = 64 << 20;

#[test]
fn declarations_that_are_shown_fit_a_container() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut shown: Vec<(PathBuf, String)> = [
        "examples/axum_gateway.toml",
        "packaging/declarations/api.toml",
        "tools/limitctl/examples/gateway.toml",
    ]
    .iter()
    .map(|name| {
        (
            root.join(name),
            fs::read_to_string(root.join(name)).expect("a declaration"),
        )
    })
    .collect();
    for document in documents() {
        let text = fs::read_to_string(&document).expect("a document");
        shown.extend(declarations(&text).map(|block| (document.clone(), block.to_owned())));
    }
    for (path, text) in &shown {
        let declaration = shmlimit::Declaration::from_toml(text);
        let declaration = declaration.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let memory = declaration.memory().expect("a valid declaration");
        assert!(
            memory.bytes < ROOM_OF_A_CONTAINER,
            "{}: {memory:?}",
            path.display()
        );
    }
    assert!(shown.len() > 5, "no documents with declarations were found");
}
