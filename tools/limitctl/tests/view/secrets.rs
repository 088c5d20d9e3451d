//! Keys are often secrets: no verb shows one whole, unless it is told to reveal them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::task::{Context, Poll, Waker};

use super::serve::Server;
use super::top::OnPty;
use crate::support::{TIMEOUT, create_declared, directory, limitctl, run, run_command, text, verbs};
use shmlimit::{Permit, Segment};

const SECRET: &str = "Bearer sk-live-7Hq2XbW0n5Vd3Kf8";

/// No more than the first four bytes of this are shown.
const HIDDEN: &str = "sk-live";

const DECLARATION: &str = r#"
[[set]]
name = "api"
keyed = { max_keys = 100, overrides = true }
  [[set.limit]]
  name = "requests"
  kind = "calls"
  capacity = 1_000
  window = "1d"
  [[set.limit]]
  name = "in_flight"
  kind = "concurrency"
  capacity = 2

[[set]]
name = "plans"
keyed = { max_keys = 100 }
  [[set.limit]]
  name = "requests"
  kind = "calls"
  capacity = 1
  window = "1d"
  [[set.tier]]
  name = "gold"
  limits = { requests = { capacity = 2 } }
"#;

/// Verbs that are shown here in another way.
const OTHERWISE: [&str; 4] = [
    // Over HTTP, and on a terminal.
    "serve", "top",      // Of segments and processes of its own.
    "selftest", // The keys of a trace, as the trace has them.
    "simulate",
];

/// A segment with a key that is held, waited for, and refused.
struct Scene {
    directory: tempfile::TempDir,
    path: PathBuf,
    _held: Permit<'static>,
}

impl Scene {
    fn new() -> Self {
        let directory = directory();
        let path = create_declared(directory.path(), "limits", DECLARATION);
        let segment = Segment::open(&path).expect("created");
        let api = segment.set("api").expect("declared");
        let request = api.request().for_key(SECRET).expect("keyed");
        let held = request.try_permit().expect("one of two").into_owned();
        let plans = segment.set("plans").expect("declared");
        let plan = plans.request().for_key(SECRET).expect("keyed");
        for _ in 0..3 {
            let _ = plan.check().expect("works").is_admitted();
        }
        Self {
            directory,
            path,
            _held: held,
        }
    }

    fn file(&self, name: &str) -> String {
        text(&self.directory.path().join(name)).to_owned()
    }
}

#[test]
fn no_verb_shows_a_key_whole_unless_it_is_to_reveal_it() {
    let scene = Scene::new();
    let segment = Segment::open(&scene.path).expect("created");
    let api = segment.set("api").expect("declared");
    let queued = api
        .request()
        .for_key(SECRET)
        .and_then(|it| it.with("in_flight", 2));
    let mut waiting = Box::pin(queued.expect("keyed").acquire_async(TIMEOUT));
    let first_look = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(first_look, Poll::Pending), "one of two is held");

    let path = text(&scene.path);
    let (config, kept) = (scene.file("limits.toml"), scene.file("kept"));
    let another = scene.file("another");
    let looks: &[&[&str]] = &[
        &["inspect", path],
        &["inspect", "--json", path],
        &["keys", path, "api"],
        &["keys", "--json", "--match", HIDDEN, path, "plans"],
        &["show", path, "api", SECRET],
        &["show", "--json", path, "api", SECRET],
        &["watch", "--count", "1", "--keys", "5", path],
        &["watch", "--json", "--count", "1", "--keys", "5", path],
    ];
    let others: &[&[&str]] = &[
        &["inspect", "--toml", path],
        &["list", "--json", text(scene.directory.path())],
        &["doctor", path],
        &["doctor", "--json", path],
        &["export", "--prometheus", path],
        &["export", "--openmetrics", path],
        &["fleet", path],
        &["checkpoint", path, &kept],
        &[
            "exec",
            "--timeout",
            "0s",
            "--key",
            SECRET,
            path,
            "plans",
            "--",
            "true",
        ],
        &["edit", "--key", SECRET, path, "api", "requests", "capacity=7"],
        &[
            "edit",
            "--json",
            "--key",
            SECRET,
            path,
            "api",
            "requests",
            "capacity=8",
        ],
        &["assign", path, "plans", SECRET, "gold"],
        &["throttle", "--key", SECRET, path, "plans", "1s"],
        &["reset", "--key", SECRET, path, "plans"],
        &["reset", "--key", SECRET, path, "nothing"],
        &["recover", path],
        &["recover", "--json", path],
        &["apply", path, &config],
        &["create", path, &config],
        &["create", &another, &config],
        &["remove", path],
        &["completions", "bash"],
        &["man", "show"],
    ];
    for arguments in looks.iter().chain(others) {
        let run = run_command(limitctl().args(*arguments));
        assert!(
            !run.stdout.is_empty() || !run.stderr.is_empty() || run.code == 0,
            "{run:?}"
        );
        assert!(
            !run.stdout.contains(HIDDEN) && !run.stderr.contains(HIDDEN),
            "{arguments:?}: {run:?}"
        );
    }
    for arguments in looks {
        let (verb, rest) = arguments.split_first().expect("a verb");
        let run = run_command(limitctl().arg(verb).arg("--reveal").args(rest)).ended(0);
        assert!(run.stdout.contains(SECRET), "{arguments:?}: {run:?}");
    }
    let walked = looks.iter().chain(others).map(|arguments| arguments[0]);
    let walked: BTreeSet<String> = walked.chain(OTHERWISE).map(str::to_owned).collect();
    assert_eq!(walked, verbs::<BTreeSet<String>>());
    drop(waiting);
}

#[test]
fn a_browser_is_shown_no_key_whole_unless_it_is_to_be_revealed() {
    let scene = Scene::new();
    let pages = |options: &[&str]| {
        let server = Server::start_with(options, &[&scene.path]);
        ["/", "/api/segments", "/api/segments/0", "/metrics"]
            .map(|path| server.get(path).1)
            .concat()
    };
    let masked = pages(&[]);
    assert!(masked.contains("Bear") && !masked.contains(HIDDEN), "{masked}");
    assert!(pages(&["--reveal"]).contains(SECRET));
}

#[test]
fn a_terminal_is_shown_no_key_whole_unless_it_is_to_be_revealed() {
    let scene = Scene::new();
    let shown = |options: &[&str], awaited: &str| {
        let mut view = OnPty::start_with(options, &scene.path, &[]);
        view.wait_for("plans");
        // The first set, the hottest of its keys, and back to the end.
        view.press(b"\r");
        view.wait_for(awaited);
        view.press(b"\r");
        view.wait_for("LEFT");
        view.press(b"q");
        view.end()
    };
    let masked = shown(&[], "Bear... (");
    assert!(!masked.contains(HIDDEN), "{masked}");
    shown(&["--reveal"], SECRET);
}

#[test]
fn what_is_found_by_a_text_need_not_show_it() {
    let scene = Scene::new();
    let keys = |text: &str| matching(&scene.path, text);
    assert_eq!((keys("7Hq2"), keys("no such key")), (1, 0));
}

fn matching(path: &Path, part: &str) -> u64 {
    let found = run(["keys", "--json", "--match", part, text(path), "api"]);
    found.ended(0).json()["matching"].as_u64().expect("a number")
}
