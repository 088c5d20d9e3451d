//! A host's segments, created from a directory of declarations.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::support;
use crate::support::{directory, run, text};

fn declaration(path: Option<&Path>, capacity: u64) -> String {
    let path = path
        .map(|path| format!("path = {:?}", text(path)))
        .unwrap_or_default();
    format!(
        "[segment]\n{path}\n[[set]]\nname = \"api\"\n[[set.limit]]\nname = \"places\"\nkind = \"concurrency\"\n\
         capacity = {capacity}\n"
    )
}

#[test]
fn each_declaration_becomes_a_segment_and_again_at_the_next_boot() {
    let directory = directory();
    let [declarations, segments] = ["declared", "segments"].map(|name| directory.path().join(name));
    fs::create_dir(&declarations).expect("made");
    fs::create_dir(&segments).expect("made");
    let own_path = directory.path().join("elsewhere");
    fs::write(declarations.join("b.toml"), declaration(None, 2)).expect("written");
    fs::write(declarations.join("a.toml"), declaration(Some(&own_path), 1)).expect("written");
    fs::write(declarations.join("README"), "no declaration").expect("written");
    fs::create_dir(declarations.join("d.toml")).expect("made");
    symlink("b.toml", declarations.join("c.toml")).expect("linked");

    let all = |ways: &[&str]| {
        let arguments = [
            &["create"][..],
            ways,
            &["--all", text(&declarations), text(&segments)],
        ]
        .concat();
        support::run_command(support::limitctl().args(arguments))
    };
    let created = all(&["--on-mismatch", "error", "--mode", "0640"]).ended(0).stdout;
    let headings: Vec<&str> = created
        .lines()
        .filter(|line| line.starts_with("created "))
        .collect();
    let names: Vec<&str> = headings
        .iter()
        .filter_map(|line| line.split([' ', ':']).nth(1))
        .collect();
    let [b, c] = ["b.limits", "c.limits"].map(|name| segments.join(name));
    assert_eq!(names, [text(&own_path), text(&b), text(&c)], "{created}");

    assert_eq!(
        all(&["--on-mismatch", "error"])
            .ended(0)
            .stdout
            .matches("found ")
            .count(),
        3
    );
    // Without `--on-mismatch`, existing files are left alone, and each of them is reported.
    let refused = all(&[]).ended(73);
    assert_eq!(refused.stderr.matches("exists already").count(), 3, "{refused:?}");

    fs::write(declarations.join("b.toml"), declaration(None, 5)).expect("written");
    let changed = all(&["--on-mismatch", "apply"]).ended(0).stdout;
    assert_eq!(
        changed.matches("capacity: declared 5, in the segment 2").count(),
        2,
        "{changed}"
    );
    let json = run(["inspect", "--json", text(&b)]).ended(0).json();
    assert_eq!(json["sets"][0]["limits"][0]["capacity"], 5);
}

#[test]
fn a_declaration_that_is_wrong_does_not_keep_the_others_from_being_created() {
    let directory = directory();
    let declarations = directory.path();
    fs::write(declarations.join("a.toml"), "nonsense").expect("written");
    fs::write(declarations.join("b.toml"), declaration(None, 2)).expect("written");
    let run_ = run(["create", "--all", text(declarations), text(declarations)]).ended(78);
    assert!(run_.stderr.contains("a.toml"), "{run_:?}");
    assert!(run_.stdout.starts_with("created "), "{run_:?}");
    assert!(declarations.join("b.limits").exists());
    // Nothing says where to create the segment.
    fs::remove_file(declarations.join("a.toml")).expect("removed");
    let nowhere = run(["create", "--all", text(declarations)]).ended(64);
    assert!(
        nowhere.stderr.contains("b.toml: it does not say where"),
        "{nowhere:?}"
    );
}

#[test]
fn a_directory_without_declarations_is_no_failure_and_one_that_is_missing_is() {
    let directory = directory();
    let empty = run(["create", "--all", text(directory.path()), "/nowhere"]).ended(0);
    assert!(empty.stdout.starts_with("no declarations in"), "{empty:?}");
    run(["create", "--all", text(&directory.path().join("missing"))]).ended(69);
    // `--all` makes no sense with flags that declare a segment.
    for flags in [
        &["/run", "x.toml"][..],
        &["--set", "api"],
        &["--calls", "requests=1/1s"],
    ] {
        let arguments = [&["create", "--all", text(directory.path())][..], flags].concat();
        support::run_command(support::limitctl().args(arguments)).ended(64);
    }
}

#[test]
fn each_segment_that_declares_a_checkpoint_is_kept_and_begins_with_it() {
    let directory = directory();
    let [declarations, segments] = ["declared", "segments"].map(|name| directory.path().join(name));
    fs::create_dir(&declarations).expect("made");
    fs::create_dir(&segments).expect("made");
    let kept = directory.path().join("a.checkpoint");
    let calls = "[[set]]\nname = \"api\"\n[[set.limit]]\nname = \"calls\"\nkind = \"calls\"\ncapacity = 10\nwindow = \"30d\"\n\
                 algorithm = \"fixed_window\"\n";
    let declared = format!("[segment]\ncheckpoint = {{ path = {:?} }}\n{calls}", text(&kept));
    fs::write(declarations.join("a.toml"), declared).expect("written");
    fs::write(declarations.join("b.toml"), declaration(None, 1)).expect("written");
    let all = |verb: &str| run([verb, "--all", text(&declarations), text(&segments)]);
    all("create").ended(0);
    let path = segments.join("a.limits");
    run(["exec", text(&path), "api", "--", "true"]).ended(0);
    let taken = all("checkpoint").ended(0).stdout;
    assert_eq!(
        taken,
        format!("{}: has the state of {}\n", text(&kept), text(&path)),
        "only one declares it"
    );

    fs::remove_file(&path).expect("as a reboot does");
    fs::remove_file(segments.join("b.limits")).expect("as a reboot does");
    all("create").ended(0);
    let json = run(["inspect", "--json", text(&path)]).ended(0).json();
    assert_eq!(json["sets"][0]["limits"][0]["remaining"], 9);

    // A failure does not keep other checkpoints from being written.
    fs::write(declarations.join("0.toml"), "nonsense").expect("written");
    let taken = all("checkpoint").ended(78);
    assert!(taken.stderr.contains("0.toml"), "{taken:?}");
    assert!(
        taken.stdout.contains("a.checkpoint: has the state of"),
        "{taken:?}"
    );
    run(["checkpoint", text(&path)]).ended(64);
    run([
        "checkpoint",
        "--all",
        text(&declarations),
        text(&segments),
        text(&kept),
    ])
    .ended(64);
}
