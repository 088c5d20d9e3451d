//! Every verb about a segment, with a directory that holds a file for each set.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::names::names_in;
use crate::support::{Actor, Run, directory, run, text};

const API: &str = r#"
[[set]]
name = "api"
limit = [
  { name = "requests", kind = "calls", capacity = 10, window = "1d" },
  { name = "in_flight", kind = "concurrency", capacity = 4 },
]
"#;

const TENANTS: &str = r#"
[[set]]
name = "tenants/all"
keyed = { max_keys = 100, overrides = true }
limit = [{ name = "requests", kind = "calls", capacity = 3, window = "1d" }]
"#;

const MAIL: &str = r#"
[[set]]
name = "mail"
  [[set.limit]]
  name = "sent"
  kind = "calls"
  capacity = 2
  window = "1d"
"#;

struct Scene {
    root: tempfile::TempDir,
    path: PathBuf,
}

impl Scene {
    /// A directory with two sets.
    fn new() -> Self {
        let root = directory();
        let path = root.path().join("app.limits.d");
        let scene = Self { root, path };
        let created = scene.create(&[API, TENANTS]).ended(0).stdout;
        assert!(
            created.starts_with(&format!("created {}: 2 sets, ", scene.segment())),
            "{created}"
        );
        scene
    }

    fn segment(&self) -> &str {
        text(&self.path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn config(&self, sets: &[&str]) -> PathBuf {
        let config = self.root.path().join("limits.toml");
        fs::write(&config, sets.concat()).expect("written");
        config
    }

    fn create(&self, sets: &[&str]) -> Run {
        let config = self.config(sets);
        run(["create", "--on-mismatch", "apply", self.segment(), text(&config)])
    }
}

fn names<'a>(values: &'a Value, field: &str) -> Vec<&'a str> {
    let values = values.as_array().expect("a list");
    values
        .iter()
        .map(|value| value[field].as_str().expect("text"))
        .collect()
}

/// The lines that say how much memory is taken. The first line is left out: it says whether the segment is created.
fn memory(run: &Run) -> &str {
    run.stdout.split_once('\n').expect("more than a line").1
}

#[test]
fn a_dry_run_says_what_all_files_of_a_directory_take() {
    let root = directory();
    let path = root.path().join("app.limits.d");
    let config = root.path().join("limits.toml");
    fs::write(&config, [API, MAIL, TENANTS].concat()).expect("written");
    let planned = run(["create", "--dry-run", text(&path), text(&config)]).ended(0);
    assert!(!path.exists());
    let created = run(["create", text(&path), text(&config)]).ended(0);
    assert_eq!(memory(&planned), memory(&created));
    let sizes = names_in(&path)
        .into_iter()
        .map(|name| fs::metadata(path.join(name)).expect("a file").len());
    let declaration = shmlimit::Declaration::from_toml_file(&config).expect("valid");
    let memory_at = |path: &Path| declaration.memory_at(path).expect("valid").bytes;
    assert_eq!(memory_at(&path), sizes.sum::<u64>());

    // The same holds for a declaration that names its path, and for one of several.
    let declared = format!("[segment]\npath = {path:?}\n{API}{MAIL}{TENANTS}");
    fs::write(&config, declared).expect("written");
    assert_eq!(
        memory(&run(["create", "--dry-run", text(&config)]).ended(0)),
        memory(&created)
    );
    let all = run(["create", "--dry-run", "--all", text(root.path())]).ended(0);
    assert_eq!(memory(&all), memory(&created));
}

#[test]
fn create_and_apply_add_sets_and_leave_the_others_alone() {
    let scene = Scene::new();
    let segment = scene.segment();
    assert_eq!(names_in(&scene.path), ["api", "tenants%2Fall"]);
    let user = Actor::start("hold", &scene.path);
    assert!(scene.create(&[API]).ended(0).stdout.starts_with("found "));
    assert!(
        scene
            .create(&[MAIL, API])
            .ended(0)
            .stdout
            .starts_with("added to ")
    );
    assert_eq!(names_in(&scene.path), ["api", "mail", "tenants%2Fall"]);
    run(["remove", text(&scene.file("mail"))]).ended(0);

    let config = scene.config(&[&API.replace("capacity = 10", "capacity = 12"), MAIL]);
    let planned = run(["apply", "--dry-run", segment, text(&config)])
        .ended(0)
        .stdout;
    assert!(planned.contains("set \"mail\": new\n"), "{planned}");
    assert_eq!(names_in(&scene.path), ["api", "tenants%2Fall"]);
    let applied = run(["apply", segment, text(&config)]).ended(0).stdout;
    assert_eq!(planned.replace("would change", "changed"), applied);
    assert_eq!(names_in(&scene.path), ["api", "mail", "tenants%2Fall"]);
    let inspected = run(["inspect", "--json", segment]).ended(0).json();
    assert_eq!(inspected["sets"][0]["limits"][0]["capacity"], 12, "{inspected}");
    assert_eq!(
        run(["apply", segment, text(&config)]).ended(0).stdout,
        "nothing to change\n"
    );

    let impossible = scene.config(&[&API.replace("\"calls\"", "\"rate\""), MAIL]);
    let refused = run(["apply", segment, text(&impossible)]).ended(4);
    assert!(refused.stderr.contains("kind"), "{refused:?}");
    drop(user);
}

#[test]
fn verbs_that_change_reach_the_file_of_their_set() {
    let scene = Scene::new();
    let segment = scene.segment();
    run(["edit", segment, "api", "requests", "capacity=20"]).ended(0);
    run([
        "edit",
        segment,
        "tenants/all",
        "requests",
        "capacity=5",
        "--key",
        "acme",
    ])
    .ended(0);
    run(["edit", segment, "none", "requests", "capacity=5"]).ended(64);
    run(["exec", segment, "api", "--", "true"]).ended(0);
    run(["exec", "--key", "acme", segment, "tenants/all", "--", "true"]).ended(0);
    let shown = run(["show", "--json", segment, "tenants/all", "acme"])
        .ended(0)
        .stdout;
    assert!(
        shown.contains("\"override_capacity\":5") || shown.contains("\"override_capacity\": 5"),
        "{shown}"
    );
    let keys = run(["keys", "--json", segment, "tenants/all"]).ended(0).json();
    assert_eq!(keys["keys"].as_array().map(Vec::len), Some(1));
    run(["reset", segment, "tenants/all", "--key", "acme"]).ended(0);
    run(["reset", "--counters", segment]).ended(0);
    let recovered = run(["recover", "--rebuild", "--json", segment]).ended(0).json();
    assert_eq!(names(&recovered["sets"], "set"), ["api", "tenants/all"]);
    let kept = scene.root.path().join("kept.d");
    run(["checkpoint", segment, text(&kept)]).ended(0);
    assert_eq!(names_in(&kept), ["api", "tenants%2Fall"]);
    let drained = run(["fleet", segment]).ended(64);
    assert!(drained.stderr.contains("[fleet]"), "{drained:?}");
}

#[test]
fn verbs_that_look_show_all_sets_as_one_segment() {
    let scene = Scene::new();
    let segment = scene.segment();
    let user = Actor::start("hold", &scene.path);
    let inspected = run(["inspect", "--json", segment]).ended(0).json();
    assert_eq!(inspected["path"], segment);
    assert_eq!(names(&inspected["sets"], "name"), ["api", "tenants/all"]);
    let participants = inspected["participants"].as_array().expect("a list");
    assert_eq!(participants.len(), 1, "attached to two files");
    assert_eq!(participants[0]["pid"], user.pid());
    let words = run(["inspect", segment]).ended(0).stdout;
    assert!(
        words.contains(&user.pid().to_string()) && words.contains("tenants/all"),
        "{words}"
    );
    let watched = run(["watch", "--json", "--count", "2", "--every", "10ms", segment]).ended(0);
    for look in watched.json_lines() {
        assert_eq!(names(&look["sets"], "name"), ["api", "tenants/all"]);
        assert_eq!((&look["state"], &look["participants"]), (&"ok".into(), &1.into()));
    }
    let exported = run(["export", "--prometheus", segment]).ended(0).stdout;
    for set in ["api", "tenants/all"] {
        let label = format!("segment=\"{segment}\",set=\"{set}\"");
        assert!(exported.contains(&label), "{label} in {exported}");
    }
    drop(user);
}

#[test]
fn list_shows_the_directory_as_one_segment_and_which_sets_no_process_declares() {
    let scene = Scene::new();
    scene.create(&[MAIL]).ended(0);
    // A directory with segments of other names, and one of another program.
    fs::create_dir_all(scene.root.path().join("other/deeper")).expect("made");
    crate::support::create(&scene.root.path().join("other"));
    let list = |path: &Path| run(["list", "--json", text(path)]).ended(0).json();
    let idle = list(scene.root.path());
    assert_eq!(names(&idle["segments"], "path"), [scene.segment()]);
    assert_eq!(idle["segments"][0]["sets"], 3);
    assert!(
        idle["segments"][0]["undeclared"].is_null(),
        "nobody is there who could declare them"
    );

    // A process that declares a list of sets has the files of those sets open, and no others.
    let user = Actor::start("attach", &scene.file("api"));
    let of_root = list(scene.root.path());
    let undeclared = of_root["segments"][0]["undeclared"].as_array().expect("two");
    let [mail, tenants] = ["mail", "tenants%2Fall"].map(|name| scene.file(name));
    assert_eq!(undeclared[..], [text(&mail), text(&tenants)].map(Value::from));
    let of_sets = list(&scene.path);
    assert_eq!(names(&of_sets["segments"], "path").len(), 3);
    assert!(of_sets["segments"][0]["undeclared"].is_null());
    let words = run(["list", scene.segment()]).ended(0).stdout;
    let command = format!("limitctl remove {}", text(&mail));
    assert!(words.contains(&command), "{words}");
    run(["remove", text(&mail)]).ended(0);
    run(["remove", scene.segment()]).ended(1);
    assert_eq!(names_in(&scene.path), ["api", "tenants%2Fall"]);
    run(["remove", "--force", scene.segment()]).ended(0);
    assert!(!scene.path.exists());
    drop(user);
}

#[test]
fn doctor_examines_each_set_and_the_directory() {
    let scene = Scene::new();
    for path in [scene.root.path(), &scene.path] {
        let report = run(["doctor", "--json", text(path)]).ended(0).json();
        let files = ["api", "tenants%2Fall"].map(|name| scene.file(name));
        assert_eq!(
            names(&report["segments"], "path"),
            files.each_ref().map(|file| text(file))
        );
    }
    fs::set_permissions(&scene.path, Permissions::from_mode(0o777)).expect("its owner's right");
    let report = run(["doctor", "--json", scene.segment()]).ended(1).json();
    assert!(
        names(&report["findings"], "finding").contains(&"untrusted"),
        "{report}"
    );
    let heal = format!("chmod o-w {}", scene.segment());
    assert!(report.to_string().contains(&heal), "{report}");
    fs::set_permissions(&scene.path, Permissions::from_mode(0o755)).expect("its owner's right");
    fs::copy(scene.file("api"), scene.file("api.bak")).expect("copied");
    let report = run(["doctor", "--json", scene.segment()]).ended(1).json();
    assert!(
        names(&report["findings"], "finding").contains(&"misplaced"),
        "{report}"
    );
    run(["inspect", scene.segment()]).ended(65);
}

#[test]
fn a_file_where_a_directory_is_named_is_an_error_of_usage() {
    let root = directory();
    let file = crate::support::create(root.path());
    let named = format!("{}/", text(&file));
    for verb in ["inspect", "recover", "remove"] {
        let refused = run([verb, &named]).ended(64);
        assert!(refused.stderr.contains("names a directory"), "{refused:?}");
    }
}
