//! Segments whose path is a directory, with a file for each set.

mod operations;
mod processes;
mod trust;

use std::path::PathBuf;
use std::time::Duration;

use shmlimit::declare::OnMismatch;
use shmlimit::{
    ChangeError, Declaration, Error, Limit, LimitSet, OpenError, OpenOptions, Removal, RequestError, Segment,
    SegmentError, SetDeclaration,
};

use crate::scene::names::names_in;
use crate::scene::{self, expect_differences};

const HOUR: Duration = Duration::from_secs(3600);

fn set_of(name: &str, capacity: u64) -> SetDeclaration {
    SetDeclaration::new(name).add_limit(Limit::calls("calls", capacity, HOUR))
}

/// A declaration of sets, each with a capacity.
fn declaring(sets: &[(&str, u64)]) -> Declaration {
    let sets = sets.iter().map(|(name, capacity)| set_of(name, *capacity));
    sets.fold(scene::declaration(), Declaration::add_set)
}

/// The path of a directory that does not exist yet.
fn place() -> (tempfile::TempDir, PathBuf) {
    let root = tempfile::tempdir().expect("a directory");
    let path = root.path().join("app.limits.d");
    (root, path)
}

fn names_of(segment: &Segment) -> Vec<String> {
    segment.sets().map(|set| set.name().to_owned()).collect()
}

/// Takes calls until one is refused. Returns how many were admitted.
fn use_up(set: &LimitSet) -> u64 {
    let is_admitted = || set.request().check().expect("a decision").is_admitted();
    (0..).take_while(|_| is_admitted()).count() as u64
}

fn use_one(set: &LimitSet) -> bool {
    set.request().check().expect("a decision").is_admitted()
}

#[test]
fn a_set_is_added_while_workers_with_the_former_list_go_on_and_nothing_is_lost() {
    let (_root, path) = place();
    let former = Segment::open_or_create(&path, &declaring(&[("chat", 3)])).expect("created");
    let chat = former.set("chat").expect("declared");
    assert!(use_one(&chat));
    // A worker of the next release.
    let next = Segment::open_or_create(&path, &declaring(&[("mail", 5), ("chat", 3)])).expect("another list");
    assert_eq!(names_of(&next), ["mail", "chat"]);
    assert!(next.mismatches().is_empty());
    assert_eq!(names_in(&path), ["chat", "mail"]);
    assert!(use_one(&next.set("chat").expect("declared")));
    assert!(use_one(&chat), "goes on");
    assert!(!use_one(&chat), "of three, in all");
    // And one of the previous release, which is restarted.
    let again = Segment::open_or_create(&path, &declaring(&[("chat", 3)])).expect("the former list");
    assert_eq!(names_of(&again), ["chat"]);
    assert!(!use_one(&again.set("chat").expect("declared")));
    assert_eq!(use_up(&next.set("mail").expect("declared")), 5);
}

#[test]
fn a_set_that_a_handle_was_not_opened_with_is_opened_when_it_is_asked_for() {
    let (_root, path) = place();
    let former = Segment::open_or_create(&path, &declaring(&[("chat", 3)])).expect("created");
    match former.set("mail") {
        Err(Error::Request(RequestError::UnknownSet { name, known })) => {
            assert_eq!((name.as_str(), &known[..]), ("mail", &["chat".to_owned()][..]));
        }
        other => panic!("{other:?}"),
    }
    let next = Segment::open_or_create(&path, &declaring(&[("chat", 3), ("mail", 2)])).expect("created");
    let mail = former.set("mail").expect("is there by now");
    assert!(use_one(&mail) && use_one(&next.set("mail").expect("declared")));
    assert!(!use_one(&mail), "both count together");
    assert_eq!(names_of(&former), ["chat", "mail"], "kept from then on");
    assert_eq!(names_of(&former.clone()), ["chat", "mail"]);
    assert!(former.set("mail").is_ok());
}

#[test]
fn a_changed_set_changes_alone_and_in_place() {
    let (_root, path) = place();
    let former = Segment::open_or_create(&path, &declaring(&[("chat", 3), ("mail", 5)])).expect("created");
    let mail = former.set("mail").expect("declared");
    assert!(use_one(&mail));
    let options = OpenOptions::new().on_mismatch(OnMismatch::Apply);
    let next = options
        .open_or_create(&path, &declaring(&[("chat", 3), ("mail", 2)]))
        .expect("changed");
    let changed: Vec<_> = next.mismatches().iter().map(|it| it.set()).collect();
    assert_eq!(changed, [Some("mail")]);
    assert_eq!(use_up(&mail), 2, "what was left, up to the new burst");
    assert_eq!(use_up(&former.set("chat").expect("declared")), 3);
}

#[test]
fn what_cannot_change_in_place_costs_that_set_alone() {
    let (_root, path) = place();
    let first = Segment::open_or_create(&path, &declaring(&[("chat", 3), ("mail", 5)])).expect("created");
    assert!(use_one(&first.set("chat").expect("declared")));
    let other_kind = SetDeclaration::new("mail").add_limit(Limit::concurrency("calls", 2));
    let changed = declaring(&[("chat", 3)]).add_set(other_kind);
    match Segment::open_or_create(&path, &changed) {
        Err(Error::Open(OpenError::ConfigMismatch {
            path: file, remedy, ..
        })) => {
            assert_eq!(file, path.join("mail"));
            assert!(
                remedy.contains(&format!("limitctl remove {}", file.display())),
                "{remedy}"
            );
        }
        other => panic!("{other:?}"),
    }
    drop(first);
    OpenOptions::new()
        .remove(path.join("mail"), Removal::Unused)
        .expect("removed alone");
    let next = Segment::open_or_create(&path, &changed).expect("created");
    assert_eq!(
        use_up(&next.set("chat").expect("declared")),
        2,
        "of three, one is used"
    );
}

#[test]
fn a_set_that_left_the_list_keeps_its_file_until_it_is_removed() {
    let (_root, path) = place();
    let former = Segment::open_or_create(&path, &declaring(&[("chat", 3), ("mail", 5)])).expect("created");
    assert!(use_one(&former.set("mail").expect("declared")));
    drop(former);
    let next = Segment::open_or_create(&path, &declaring(&[("chat", 3)])).expect("opened");
    assert_eq!(names_of(&next), ["chat"]);
    assert_eq!(names_in(&path), ["chat", "mail"]);
    // A process that declares it again continues where it was.
    let again = Segment::open_or_create(&path, &declaring(&[("mail", 5)])).expect("opened");
    assert_eq!(use_up(&again.set("mail").expect("declared")), 4);
    drop(again);
    OpenOptions::new()
        .remove(path.join("mail"), Removal::Unused)
        .expect("nobody has it");
    assert!(use_one(&next.set("chat").expect("declared")));
    assert!(next.set("mail").is_err());
}

#[test]
fn a_directory_is_removed_whole_or_not_at_all() {
    let (_root, path) = place();
    drop(Segment::open_or_create(&path, &declaring(&[("a", 1), ("mail", 5)])).expect("created"));
    let user = Segment::open_or_create(&path, &declaring(&[("mail", 5)])).expect("opened");
    let options = OpenOptions::new();
    match options.remove(&path, Removal::Unused) {
        Err(Error::Open(OpenError::InUse { path: file, .. })) => assert_eq!(file, path.join("mail")),
        other => panic!("{other:?}"),
    }
    assert_eq!(names_in(&path), ["a", "mail"], "not even the one that is unused");
    options.remove(&path, Removal::Forced).expect("removed");
    assert!(!path.exists());
    let mail = user.set("mail").expect("open");
    assert!(matches!(
        mail.request().check(),
        Err(Error::Segment(SegmentError::Removed { .. }))
    ));
    assert!(matches!(
        options.remove(&path, Removal::Forced),
        Err(Error::Open(OpenError::NotFound { .. }))
    ));
}

#[test]
fn each_set_has_a_successor_of_its_own() {
    let (_root, path) = place();
    let list = declaring(&[("chat", 3), ("mail", 5)]);
    let segment = Segment::open_or_create(&path, &list).expect("created");
    let (chat, mail) = (
        segment.set("chat").expect("declared"),
        segment.set("mail").expect("declared"),
    );
    assert!(use_one(&chat) && use_one(&mail));
    assert!(segment.successor().is_none());
    OpenOptions::new()
        .remove(path.join("mail"), Removal::Forced)
        .expect("removed");
    assert!(mail.request().check().is_err());
    assert!(segment.removal().is_some());
    assert!(segment.successor().is_none(), "there is none yet");
    let _other = Segment::open_or_create(&path, &list).expect("created anew");
    let mut successor = None;
    scene::process::eventually("it is looked for again", || {
        successor = segment.successor();
        successor.is_some()
    });
    let successor = successor.expect("found");
    assert!(successor.removal().is_none());
    assert_eq!(names_of(&successor), ["chat", "mail"]);
    assert_eq!(use_up(&successor.set("mail").expect("new")), 5, "a new one");
    assert_eq!(use_up(&successor.set("chat").expect("the same")), 2, "as it was");
    let of_set = mail.successor().expect("one").expect("has the set");
    assert!(!use_one(&of_set));
}

#[test]
fn a_directory_is_found_by_a_path_without_a_slash_once_it_is_there() {
    let root = tempfile::tempdir().expect("a directory");
    let named = root.path().join("limits/");
    let plain = root.path().join("limits");
    let segment = Segment::open_or_create(&named, &declaring(&[("chat", 3)])).expect("created");
    assert_eq!(segment.path(), plain);
    assert!(use_one(&segment.set("chat").expect("declared")));
    let again = Segment::open(&plain).expect("the same");
    assert_eq!(use_up(&again.set("chat").expect("there")), 2);
}

#[test]
fn sets_with_any_names_have_files() {
    let (_root, path) = place();
    let names = ["openai/gpt-4o", "100 %", "app.d", "caf\u{e9}", "a/b/c"];
    let list = names
        .iter()
        .fold(scene::declaration(), |list, name| list.add_set(set_of(name, 2)));
    let segment = Segment::create(&path, &list).expect("created");
    for name in names {
        assert!(use_one(&segment.set(name).expect("declared")));
    }
    let mut found = names_of(&Segment::open(&path).expect("opened"));
    found.sort_unstable();
    let mut sorted = names.map(str::to_owned);
    sorted.sort_unstable();
    assert_eq!(found, sorted);
    // Each is a segment of its own.
    for file in names_in(&path) {
        let alone = Segment::open(path.join(file)).expect("a segment");
        assert_eq!(use_up(&alone.sets().next().expect("one")), 1);
    }
}

#[test]
fn create_takes_no_set_that_is_there() {
    let (_root, path) = place();
    drop(Segment::create(&path, &declaring(&[("chat", 3)])).expect("created"));
    match Segment::create(&path, &declaring(&[("mail", 1), ("chat", 3)])) {
        Err(Error::Open(OpenError::AlreadyExists { path: file })) => assert_eq!(file, path.join("chat")),
        other => panic!("{other:?}"),
    }
    assert_eq!(names_in(&path), ["chat"]);
}

#[test]
fn apply_changes_all_sets_or_none_and_creates_those_that_are_missing() {
    let (_root, path) = place();
    let segment = Segment::create(&path, &declaring(&[("chat", 3), ("mail", 5)])).expect("created");
    let other_kind = SetDeclaration::new("mail").add_limit(Limit::concurrency("calls", 2));
    let refused = segment.apply(&declaring(&[("chat", 9), ("new", 1)]).add_set(other_kind));
    assert!(matches!(&refused, Err(Error::Change(ChangeError::CannotApply { path: of, .. })) if *of == path));
    assert!(expect_differences(refused).contains("mail"));
    assert_eq!(names_in(&path), ["chat", "mail"]);
    let asked = declaring(&[("chat", 4), ("new", 1)]);
    let preview = shmlimit::snapshot::SegmentReader::open(&path)
        .expect("readable")
        .preview(&asked)
        .expect("possible");
    let changes = segment.apply(&asked).expect("applied");
    assert_eq!(preview, changes);
    let words: Vec<String> = changes.iter().map(ToString::to_string).collect();
    assert!(words[0].contains("declared 4, in the segment 3"), "{words:?}");
    assert_eq!(
        words.last().map(String::as_str),
        Some("set \"new\": declared present, in the segment absent")
    );
    assert_eq!(names_in(&path), ["chat", "mail", "new"]);
    assert_eq!(use_up(&segment.set("new").expect("created")), 1);
    assert_eq!(use_up(&segment.set("mail").expect("stays")), 5);
    assert!(segment.apply(&asked).expect("nothing to do").is_empty());
    let in_force = segment.declaration_in_force().expect("readable");
    let names: Vec<&str> = in_force.sets().iter().map(SetDeclaration::name).collect();
    assert_eq!(names, ["chat", "mail", "new"]);
}

#[test]
fn a_file_with_another_list_of_sets_names_the_directory_as_the_way_without_downtime() {
    let root = tempfile::tempdir().expect("a directory");
    let path = root.path().join("app.limits");
    let _workers = Segment::create(&path, &declaring(&[("chat", 3)])).expect("created");
    let recipe = format!("{}.d/", path.display());
    for mismatch in [OnMismatch::Error, OnMismatch::Apply, OnMismatch::RecreateIfUnused] {
        for list in [declaring(&[("chat", 3), ("mail", 1)]), declaring(&[("mail", 1)])] {
            let _other = Segment::open(&path).expect("in use");
            match OpenOptions::new()
                .on_mismatch(mismatch)
                .open_or_create(&path, &list)
            {
                Err(Error::Open(OpenError::ConfigMismatch { remedy, .. })) => {
                    assert!(remedy.contains(&recipe), "{remedy}");
                }
                // Without other processes it is replaced.
                Ok(_) => assert_eq!(mismatch, OnMismatch::RecreateIfUnused),
                Err(error) => panic!("{error}"),
            }
        }
    }
    // And it works: the previous workers continue with the file.
    let next = Segment::open_or_create(&recipe, &declaring(&[("chat", 3), ("mail", 1)])).expect("created");
    assert_eq!(names_of(&next), ["chat", "mail"]);
    // A different capacity alone is no reason to move.
    let changed = Segment::open_or_create(&path, &declaring(&[("mail", 7)]));
    if let Err(error) = changed {
        assert!(!error.to_string().contains(&recipe), "{error}");
    }
}
