//! The JSON of each verb has the fields that the guide names, and no others.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use shmlimit::Segment;

use crate::support::{create_declared, directory, run, text};

const DECLARATION: &str = r#"
[fleet]
url = "redis://127.0.0.1:1"

[[set]]
name = "model"
keyed = 100
labels = true
  [[set.limit]]
  name = "calls"
  kind = "calls"
  capacity = 500
  window = "365d"
  [[set.limit]]
  name = "in_flight"
  kind = "concurrency"
  capacity = 64
[[set]]
name = "shared"
  [[set.limit]]
  name = "calls"
  kind = "calls"
  capacity = 10
  window = "1h"
  fleet = { key = "calls" }
"#;

/// Fields in which names are those of TOML, or chosen in the declaration.
const NAMED_ELSEWHERE: [&str; 5] = ["amounts", "costs", "declaration", "figures", "metadata"];

/// The fields of a value and of everything in it.
fn fields(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields_of_it) => {
            for (name, value) in fields_of_it {
                found.insert(name.clone());
                if !NAMED_ELSEWHERE.contains(&name.as_str()) {
                    fields(value, found);
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| fields(value, found)),
        _ => {}
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The words between backticks in the guide's section on JSON, without the endings of names.
fn documented() -> BTreeSet<String> {
    let guide = fs::read_to_string(root().join("docs/limitctl.md")).expect("there");
    let (_, section) = guide.split_once("\n## JSON\n").expect("a section");
    let (section, _) = section.split_once("\n## ").expect("another one");
    let quoted = section.split('`').skip(1).step_by(2);
    quoted
        .filter(|word| word.starts_with(|sign: char| sign.is_ascii_lowercase()))
        .filter(|word| word.chars().all(|sign| sign.is_ascii_lowercase() || sign == '_'))
        .map(str::to_owned)
        .collect()
}

/// Finds the words of all sources in a directory.
fn in_sources(directory: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).expect("there") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            in_sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = fs::read_to_string(&path).expect("text");
            let words = source.split(|sign: char| !(sign.is_ascii_alphanumeric() || sign == '_'));
            found.extend(words.map(str::to_owned));
        }
    }
}

#[test]
fn the_guide_names_each_field_and_no_other() {
    let directory = directory();
    let path = create_declared(directory.path(), "limits", DECLARATION);
    let declaration = directory.path().join("limits.toml");
    fs::write(&declaration, DECLARATION).expect("written");
    let segment = Segment::open(&path).expect("created");
    let set = segment.set("model").expect("declared");
    let request = set.request().for_key("acme").expect("keyed").label("job");
    let _held = request.try_permit().expect("there is enough");

    let (path, declaration, directory) = (text(&path), text(&declaration), text(directory.path()));
    let mut found = BTreeSet::new();
    for run in [
        run(["inspect", "--json", path]),
        run(["keys", "--json", path, "model"]),
        run(["show", "--json", path, "model", "acme"]),
        run(["list", "--json", directory]),
        run(["fleet", "--json", path]),
        run(["doctor", "--json", path]),
        run(["recover", "--json", path]),
        run(["apply", "--json", "--dry-run", path, declaration]),
        run([
            "watch", "--json", "--count", "2", "--every", "50ms", "--keys", "2", path,
        ]),
    ] {
        let values = serde_json::Deserializer::from_str(&run.stdout).into_iter::<Value>();
        for value in values {
            fields(&value.expect("JSON"), &mut found);
        }
    }
    assert!(found.contains("owner_pid") && found.contains("lease") && found.contains("repairs"));

    let documented = documented();
    let missing: Vec<_> = found.difference(&documented).collect();
    assert!(missing.is_empty(), "docs/limitctl.md does not name {missing:?}");
    let mut known = found;
    in_sources(&root().join("src"), &mut known);
    in_sources(&root().join("tools/limitctl/src"), &mut known);
    let gone: Vec<_> = documented.difference(&known).collect();
    assert!(
        gone.is_empty(),
        "docs/limitctl.md names {gone:?}, which no source has"
    );
}
