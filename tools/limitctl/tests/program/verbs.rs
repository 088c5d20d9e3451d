//! Each verb, and each exit code.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::support;
use crate::support::health::{assert_well, findings, the};
use crate::support::{create, directory, limitctl, run, run_command, text};
use shmlimit::{LimitSet, Segment};
use tempfile::TempDir;

const DECLARATION: &str = r#"
[segment]
participants = 8

[[set]]
name = "openai"
metadata = { region = "us-east-1" }

  [[set.limit]]
  name = "tokens"
  kind = "rate"
  capacity = 90_000
  window = "60s"
  algorithm = "token_bucket"

  [[set.limit]]
  name = "dollars"
  kind = "rate"
  unit = "0.01"
  capacity = "99.95"
  window = "calendar:month"
  algorithm = "fixed_window"

[[set]]
name = "local"

  [[set.limit]]
  name = "in_flight"
  kind = "concurrency"
  capacity = 64
"#;

fn write(directory: &Path, name: &str, content: impl AsRef<[u8]>) -> String {
    let path = directory.join(name);
    fs::write(&path, content).expect("written");
    text(&path).to_owned()
}

/// A segment and its only set, opened.
fn created() -> (TempDir, PathBuf, LimitSet) {
    let directory = directory();
    let path = create(directory.path());
    let segment = Segment::open(&path).expect("attached");
    let api = segment.set("api").expect("declared");
    (directory, path, api)
}

#[test]
fn creates_from_a_declaration_and_shows_what_it_declared() {
    let directory = directory();
    let config = write(directory.path(), "limits.toml", DECLARATION);
    let path = text(&directory.path().join("limits")).to_owned();
    let run_ = run(["create", "--mode", "0640", "--participants", "9", &path, &config]).ended(0);
    assert!(
        run_.stdout.starts_with(&format!("created {path}: 2 sets, ")),
        "{run_:?}"
    );
    // By default, 5,120 requests may wait; a set whose capacity bounds its permits has room for four times as many.
    for part in [
        "  openai     1  64 B      0       0 B    5,120  960.0 KiB  ",
        "  local      1  64 B    256  16.0 KiB    5,120  640.0 KiB  ",
        "  and 7.7 KiB for the header and 9 processes\n",
    ] {
        assert!(run_.stdout.contains(part), "{part} in {run_:?}");
    }
    let mode = fs::metadata(&path).expect("created").permissions().mode();
    assert_eq!(mode & 0o7777, 0o640);

    let shown = run(["inspect", &path]).ended(0).stdout;
    for part in [
        "processes 0 of 9",
        "set openai",
        "region=us-east-1",
        "90,000 per 1m, token_bucket, at most 179,999 in any 1m",
        "99.95 per calendar:month, fixed_window, counted in units of 0.01",
        "set local",
        "0 of 256 hold something",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    assert!(!shown.contains('\u{1b}'), "no colours where there is no terminal");

    let dry = run([
        "create",
        "--dry-run",
        "--mode",
        "0640",
        "--participants",
        "9",
        &format!("{path}.next"),
        &config,
    ])
    .ended(0);
    assert!(dry.stdout.starts_with("would take "), "{dry:?}");
    assert_eq!(
        run_.stdout.split_once('\n').map(|(_, table)| table),
        dry.stdout.split_once('\n').map(|(_, table)| table)
    );
    let size = fs::metadata(&path).expect("created").len();
    run(["create", "--dry-run", "--all", text(directory.path())]).ended(0);
    let files = fs::read_dir(directory.path()).expect("a directory").count();
    assert_eq!((files, size % 64), (2, 0), "nothing more is created");

    let json = run(["inspect", "--json", &path]).ended(0).json();
    assert_eq!(json["participant_capacity"], 9);
    assert_eq!(json["sets"][0]["limits"][1]["remaining"], 9995);
    assert_eq!(json["declaration"]["set"][0]["limit"][1]["capacity"], "99.95");
}

#[test]
fn the_kind_of_locks_is_chosen_and_shown() {
    let directory = directory();
    let path = text(&directory.path().join("limits")).to_owned();
    let create = |lock: &str| {
        let concurrency = ["--concurrency", "in_flight=8", "--lock", lock];
        let arguments = ["create", "--set", "api"].into_iter().chain(concurrency);
        run_command(limitctl().args(arguments).arg(&path))
    };
    let refused = create("spin").ended(64);
    assert!(refused.stderr.contains("slot, robust"), "{refused:?}");
    for (lock, is_default) in [("slot", true), ("robust", false)] {
        create(lock).ended(0);
        let attached = Segment::open(&path).expect("opens");
        let json = run(["inspect", "--json", &path]).ended(0).json();
        assert_eq!(json["lock_kind"], lock);
        assert_eq!(json["declaration"]["segment"]["lock"], lock);
        assert_eq!(json["participants"][0]["pid"], std::process::id());
        // No namespace is named, because it is this process's own.
        assert_eq!(json["participants"][0]["pid_namespace"], serde_json::Value::Null);
        let shown = run(["inspect", &path]).ended(0).stdout;
        assert!(shown.contains("locks") != is_default, "{shown}");
        drop(attached);
        run(["remove", &path]).ended(0);
    }
}

#[test]
fn creates_where_the_declaration_says() {
    let directory = directory();
    let path = directory.path().join("limits");
    let declaration = DECLARATION.replace("[segment]", &format!("[segment]\npath = {:?}", text(&path)));
    let config = write(directory.path(), "limits.toml", declaration);
    run(["create", &config]).ended(0);
    assert!(path.exists());
}

#[test]
fn text_and_json_of_an_inspection_agree() {
    let (_directory, path, api) = created();
    let permits: Vec<_> = (0..5)
        .filter_map(|_| api.request().try_acquire().expect("works").into_result().ok())
        .collect();
    assert_eq!(permits.len(), 4);

    let json = run(["inspect", "--json", text(&path)]).ended(0).json();
    let set = &json["sets"][0];
    assert_eq!(set["counts"]["admitted"], 4);
    assert_eq!(set["counts"]["refused_concurrency"], 1);
    assert_eq!(set["active"], 4);
    assert_eq!(set["holds"].as_array().expect("holds").len(), 4);
    assert_eq!(set["holds"][0]["owner_pid"], std::process::id());
    assert_eq!(json["participants"][0]["alive"], true);
    assert_eq!(set["limits"][0]["bound"], "at most 19 in any 1d");
    assert!(set["limits"][1]["bound"].is_null(), "its capacity is its bound");
    assert_eq!(json["declaration"]["set"][0]["name"], "api");

    let shown = run(["inspect", text(&path)]).ended(0).stdout;
    let pid = std::process::id().to_string();
    for part in [
        "processes 1 of 256",
        "4 admitted, 1 refused (1 by concurrency)",
        "4 of 64 hold something, at most 4 at once",
        "lock     free",
        "in_flight 1",
        &pid,
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let row = |name: &str| -> Vec<String> {
        let line = shown
            .lines()
            .find(|line| line.trim_start().starts_with(name))
            .expect("a row");
        line.split_whitespace().map(str::to_owned).collect()
    };
    // The declaration, `10 per 1d, gcra, at most 19 in any 1d`, is ten words.
    assert_eq!(row("requests ")[12], set["limits"][0]["remaining"].to_string());
    assert_eq!(row("in_flight ")[3], set["limits"][1]["remaining"].to_string());
}

#[test]
fn an_inspection_has_the_labels_of_what_is_held_with_what_harms_a_terminal_escaped() {
    let directory = directory();
    let declaration = "[[set]]\nname = \"api\"\nlabels = true\n\
                       limit = [{ name = \"in_flight\", kind = \"concurrency\", capacity = 4 }]";
    let declaration = write(directory.path(), "limits.toml", declaration);
    let path = directory.path().join("limits");
    run(["create", text(&path), &declaration]).ended(0);
    let segment = Segment::open(&path).expect("attached");
    let api = segment.set("api").expect("declared");
    fn take(request: shmlimit::Request<'_>) -> Option<shmlimit::Permit<'_>> {
        request.try_acquire().expect("works").into_result().ok()
    }
    let unlabelled = take(api.request());
    let inspect = || run(["inspect", text(&path)]).ended(0).stdout;
    assert!(!inspect().contains("LABEL"));
    let json = || run(["inspect", "--json", text(&path)]).ended(0).json();
    assert_eq!(json()["sets"][0]["holds"][0].get("label"), None);

    let import = take(api.request().label("nightly \"import\""));
    let harmful = take(api.request().label("\x1b[2Jgone\nHOLD"));
    let holds = json()["sets"][0]["holds"].clone();
    assert_eq!(holds[0].get("label"), None);
    assert_eq!(holds[1]["label"], "nightly \"import\"");
    assert_eq!(holds[2]["label"], "\x1b[2Jgone\nHOLD");
    let shown = inspect();
    let of_holds: Vec<&str> = shown
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("HOLD "))
        .collect();
    assert!(of_holds[0].ends_with("LABEL"), "{shown}");
    assert!(of_holds[1].ends_with("in_flight 1"), "{shown}");
    assert!(of_holds[2].ends_with("nightly \"import\""), "{shown}");
    assert!(of_holds[3].ends_with(r"\u{1b}[2Jgone\nHOLD"), "{shown}");
    drop((unlabelled, import, harmful));
}

#[test]
fn lists_the_segments_of_a_directory_with_their_state() {
    let directory = directory();
    let empty = run(["list", text(directory.path())]).ended(0);
    assert!(empty.stdout.starts_with("no segments in "), "{empty:?}");

    let path = create(directory.path());
    let copy = |name: &str| {
        let copy = directory.path().join(name);
        fs::copy(&path, &copy).expect("copied");
        copy
    };
    let truncated = fs::OpenOptions::new()
        .write(true)
        .open(copy("truncated"))
        .expect("opened");
    truncated.set_len(6000).expect("truncated");
    let mut bytes = fs::read(&path).expect("read");
    bytes[8] = 99;
    write(directory.path(), "foreign", &bytes);
    copy("copied");
    let retired = copy("retired");
    Segment::open(&retired).expect("started cold").retire();
    write(directory.path(), "notes", "not a segment");
    write(directory.path(), "empty", "");
    fs::create_dir(directory.path().join("inner")).expect("created");

    let json = run(["list", "--json", text(directory.path())]).ended(0).json();
    let states: Vec<(&str, &str)> = json["segments"]
        .as_array()
        .expect("segments")
        .iter()
        .map(|entry| {
            let path = Path::new(entry["path"].as_str().expect("a path"));
            let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
            (name, entry["state"].as_str().expect("a state"))
        })
        .collect();
    assert_eq!(
        states,
        [
            ("copied", "cold"),
            ("foreign", "foreign_format"),
            ("limits", "ok"),
            ("retired", "retired"),
            ("truncated", "damaged"),
        ]
    );
    let shown = run(["list", text(directory.path())]).ended(0).stdout;
    for (name, state) in states {
        let line = shown.lines().find(|line| line.starts_with(name)).expect("a row");
        assert!(line.contains(&state.replace('_', " ")), "{line}");
    }
    run(["list", text(&directory.path().join("missing"))]).ended(69);
}

#[test]
fn recovering_what_is_in_order_changes_nothing() {
    let directory = directory();
    let path = create(directory.path());
    assert_well(&path);
    let run = run(["recover", text(&path)]).ended(0);
    assert!(run.stdout.contains("nothing to recover"), "{run:?}");
}

#[test]
fn a_copy_is_cold_until_it_is_recovered() {
    let directory = directory();
    let path = directory.path().join("copy");
    fs::copy(create(directory.path()), &path).expect("copied");
    the("cold", &findings(&path));
    assert!(run(["inspect", text(&path)]).ended(0).stdout.contains("cold"));
    let json = run(["recover", "--json", text(&path)]).ended(0).json();
    assert_eq!(json["started_cold"], true);
    assert_well(&path);
    let json = run(["recover", "--json", text(&path)]).ended(0).json();
    assert_eq!(json["started_cold"], false);
}

#[test]
fn a_checkpoint_is_what_create_begins_with_where_the_segment_is_gone() {
    let directory = directory();
    let (path, kept) = (directory.path().join("limits"), directory.path().join("kept"));
    let config = directory.path().join("limits.toml");
    let declaration = format!(
        "[segment]\ncheckpoint = {{ path = {:?} }}\n[[set]]\nname = \"api\"\n[[set.limit]]\nname = \"requests\"\nkind = \"calls\"\n\
         capacity = 10\nwindow = \"100d\"\n",
        text(&kept)
    );
    fs::write(&config, declaration).expect("written");
    let create = || run(["create", text(&path), text(&config)]).ended(0);
    let remaining = || {
        run(["inspect", "--json", text(&path)]).ended(0).json()["sets"][0]["limits"][0]["remaining"].clone()
    };
    create();
    let segment = Segment::open(&path).expect("attached");
    let api = segment.set("api").expect("declared");
    assert!(api.request().check().expect("works").is_admitted());
    let taken = run(["checkpoint", text(&path), text(&kept)]).ended(0);
    assert_eq!(
        taken.stdout,
        format!("{}: has the state of {}\n", kept.display(), path.display())
    );
    drop((api, segment));
    run(["remove", text(&path)]).ended(0);
    create();
    assert_eq!(remaining(), 9);
    run(["remove", text(&path)]).ended(0);
    fs::remove_file(&kept).expect("there");
    create();
    assert_eq!(remaining(), 10);
    let refused = run(["checkpoint", text(&path), text(&config)]).ended(65);
    assert!(refused.stderr.contains("is not a checkpoint"), "{refused:?}");
}

#[test]
fn resets_what_is_named_and_everything_where_nothing_is() {
    let (_directory, path, api) = created();
    let use_some = || drop((0..3).map(|_| api.request().try_acquire()).collect::<Vec<_>>());
    let inspect = || run(["inspect", "--json", text(&path)]).ended(0).json()["sets"][0].clone();
    use_some();
    assert_eq!(inspect()["limits"][0]["remaining"], 7);

    run(["reset", text(&path), "api", "in_flight"]).ended(0);
    assert_eq!(inspect()["limits"][0]["remaining"], 7, "only what is named");
    let reset = run(["reset", text(&path), "api", "requests"]).ended(0);
    assert_eq!(reset.stdout, "api: replenished requests\n");
    assert_eq!(inspect()["limits"][0]["remaining"], 10);
    assert_eq!(inspect()["counts"]["admitted"], 3, "the counters stay");

    use_some();
    let reset = run(["reset", "--counters", text(&path)]).ended(0);
    assert_eq!(
        reset.stdout,
        "api: replenished requests, in_flight; zeroed the counters\n"
    );
    assert_eq!(inspect()["limits"][0]["remaining"], 10);
    assert_eq!(inspect()["counts"]["admitted"], 0);
}

#[test]
fn a_set_that_cannot_be_repaired_is_poisoned_until_it_is_reset() {
    let directory = directory();
    let path = create(directory.path());
    let mut bytes = fs::read(&path).expect("read");
    // The journal's word follows the lock, which follows two areas for definitions. Each is half as long again as the
    // first definition, but at least 512 bytes longer (shm-layout.md).
    let definition = find(&bytes, b"[segment]");
    let size = bytes[definition..]
        .iter()
        .position(|byte| *byte == 0)
        .expect("the end of the text");
    let room = (size + (size / 2).max(512)).next_multiple_of(64);
    let journal = definition + 2 * room + 64;
    bytes[journal] = 200;
    fs::write(&path, bytes).expect("written");

    the("half_done", &findings(&path));
    let recover = run(["recover", text(&path)]).ended(1);
    assert!(
        recover.stdout.contains("api: is poisoned: reset it"),
        "{recover:?}"
    );
    the("poisoned", &findings(&path));
    let shown = run(["inspect", text(&path)]).ended(0).stdout;
    assert!(
        shown.contains("state    poisoned: run limitctl recover, then limitctl reset"),
        "{shown}"
    );
    run(["reset", text(&path), "api", "requests"]).ended(65);
    run(["reset", text(&path), "api"]).ended(0);
    assert_well(&path);
}

fn find(bytes: &[u8], part: &[u8]) -> usize {
    let place = bytes.windows(part.len()).position(|window| window == part);
    place.expect("it is there")
}

#[test]
fn removes_what_no_process_uses_and_nothing_that_is_no_segment() {
    let directory = directory();
    let path = create(directory.path());
    run(["remove", text(&path)]).ended(0);
    assert!(!path.exists());
    run(["remove", text(&path)]).ended(69);
    let notes = write(directory.path(), "notes", "not a segment");
    run(["remove", "--force", &notes]).ended(65);
    assert!(Path::new(&notes).exists());
}

#[test]
fn wrong_arguments_end_with_64() {
    let directory = directory();
    let path = create(directory.path());
    let path = text(&path);
    run([]).ended(64);
    run(["inspect"]).ended(64);
    run(["inspect", "--nonsense", path]).ended(64);
    run(["create"]).ended(64);
    run(["create", path]).ended(64);
    run(["create", "--set", "api", path]).ended(64);
    let of_calls = ["create", "--set", "api", "--calls"];
    let create = |rest: &[&str]| run_command(limitctl().args(of_calls).args(rest));
    create(&["requests=10/1d"]).ended(64);
    create(&["requests=10", path]).ended(64);
    create(&["requests=10/1fortnight", path]).ended(64);
    run(["create", "--calls", "requests=10/1d", path, "x.toml"]).ended(64);
    create(&["requests=10/1d", path, "x.toml"]).ended(64);
    create(&["requests=10/1d", "--mode", "rw", path]).ended(64);
    run(["recover", "--lock-timeout", "soon", path]).ended(64);
    run(["man", "nonsense"]).ended(64);
    let unknown = run(["reset", path, "nonsense"]).ended(64);
    assert_eq!(
        unknown.stderr,
        "limitctl: there is no set `nonsense`; the segment has api\n"
    );
    run(["reset", path, "api", "nonsense"]).ended(64);
    let of_no_format = run(["export", path]).ended(64).stderr;
    assert!(
        of_no_format.contains("<--prometheus|--openmetrics>"),
        "{of_no_format}"
    );
}

#[test]
fn a_declaration_before_its_segment_is_pointed_out() {
    let directory = directory();
    let path = create(directory.path());
    let config = write(directory.path(), "limits.toml", DECLARATION);
    let missing = directory.path().join("missing.limits");
    for (verb, segment, code) in [("apply", text(&path), 69), ("create", text(&missing), 69)] {
        let said = run([verb, &config, segment]).ended(code).stderr;
        let right = format!("the segment is named before its declaration: `{segment} {config}`");
        assert!(said.contains(&right), "{said}");
    }
}

#[test]
fn damaged_and_foreign_files_end_with_65() {
    let directory = directory();
    let path = create(directory.path());
    let whole = fs::read(&path).expect("read");
    let mut damaged = whole.clone();
    // A word in the checked part of the header: the number of sets.
    damaged[18 * 8] ^= 1;
    let mut foreign = whole.clone();
    foreign[8] = 99;
    for (name, content) in [
        ("damaged", &damaged[..]),
        ("foreign", &foreign),
        ("truncated", &whole[..whole.len() / 2]),
        ("stump", &whole[..100]),
    ] {
        let file = write(directory.path(), name, content);
        for verb in ["inspect", "recover", "reset", "remove"] {
            let run = run([verb, &file]).ended(65);
            assert!(run.stderr.starts_with("limitctl: "), "{run:?}");
            assert!(run.stdout.is_empty(), "{run:?}");
        }
        assert_eq!(fs::read(&file).expect("read"), content, "not a byte was changed");
        run(["remove", "--force", &file]).ended(0);
    }
    let notes = write(directory.path(), "notes", "not a segment");
    run(["inspect", &notes]).ended(65);
}

#[test]
fn what_is_not_there_ends_with_69() {
    let directory = directory();
    let missing = directory.path().join("missing");
    for verb in ["inspect", "recover", "reset", "remove"] {
        run([verb, text(&missing)]).ended(69);
    }
    let path = create(directory.path());
    Segment::open(&path).expect("attached").retire();
    run(["reset", text(&path)]).ended(69);
    run(["recover", text(&path)]).ended(69);
    assert!(run(["inspect", text(&path)]).ended(0).stdout.contains("retired"));
    run(["remove", text(&path)]).ended(0);
}

#[test]
fn what_cannot_be_created_ends_with_73() {
    let directory = directory();
    let path = create(directory.path());
    let set = ["create", "--set", "api", "--calls", "requests=10/1d"];
    let create = |path: &Path| support::run_command(support::limitctl().args(set).arg(path));
    create(&path).ended(73);
    create(&directory.path().join("missing/limits")).ended(73);
    let notes = write(directory.path(), "notes", "not a segment");
    create(Path::new(&notes)).ended(73);
    assert_eq!(fs::read(notes).expect("still there"), b"not a segment");
}

#[test]
fn what_must_not_be_trusted_ends_with_77() {
    let directory = directory();
    let path = create(directory.path());
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&path, &link).expect("linked");
    for verb in ["inspect", "recover", "reset", "remove"] {
        run([verb, text(&link)]).ended(77);
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("changed");
    for verb in ["recover", "reset", "remove"] {
        run([verb, text(&path)]).ended(77);
    }
    run(["inspect", text(&path)]).ended(0);
    for verb in ["recover", "reset", "remove"] {
        run([verb, "--trust-any-owner", text(&path)]).ended(0);
    }
}

#[test]
fn a_wrong_declaration_ends_with_78() {
    let directory = directory();
    let path = directory.path().join("limits");
    for content in [
        "nonsense",
        "[[set]]\nname = \"\"",
        &DECLARATION.replace("90_000", "0"),
    ] {
        let config = write(directory.path(), "limits.toml", content);
        let run = run(["create", text(&path), &config]).ended(78);
        assert!(run.stderr.starts_with("limitctl: "), "{run:?}");
    }
    run(["create", "--set", "api", "--calls", "requests=0/1d", text(&path)]).ended(78);
    assert!(!path.exists());
    let missing = directory.path().join("missing.toml");
    run(["create", text(&path), text(&missing)]).ended(69);
}

/// Asserts that each line of a paragraph is as full as possible, and not broken where the source was.
fn assert_filled(text: &str) {
    const WIDTH: usize = 100;
    let lines: Vec<&str> = text.lines().collect();
    for pair in lines.windows(2) {
        let next_word = pair[1].split(' ').next().expect("splits");
        let is_paragraph = !pair.iter().any(|line| line.is_empty() || line.starts_with(' '));
        assert!(
            !is_paragraph || pair[0].len() + 1 + next_word.len() > WIDTH,
            "there was room: {pair:#?}"
        );
    }
}

#[test]
fn help_version_completions_and_manual_are_answers() {
    assert!(run(["--version"]).ended(0).stdout.starts_with("limitctl "));
    assert!(run(["--help"]).ended(0).stdout.contains("Exit codes:"));
    for verb in [
        "create",
        "exec",
        "list",
        "inspect",
        "keys",
        "show",
        "recover",
        "reset",
        "apply",
        "edit",
        "remove",
        "simulate",
        "top",
        "watch",
        "doctor",
        "selftest",
        "export",
        "serve",
        "checkpoint",
        "assign",
        "throttle",
    ] {
        let help = run([verb, "--help"]).ended(0).stdout;
        let (about, _) = help.split_once("Usage: limitctl").expect("a usage");
        assert_filled(about);
        assert!(run([verb, "-h"]).ended(0).stdout.contains("Usage: limitctl"));
        let page = run(["man", verb]).ended(0).stdout;
        assert!(page.contains(&format!("limitctl\\-{verb}")), "{page}");
    }
    assert!(run(["man"]).ended(0).stdout.contains("limitctl"));
    for shell in ["bash", "zsh", "fish"] {
        assert!(run(["completions", shell]).ended(0).stdout.contains("limitctl"));
    }
}
