//! Limits of all keys, in each view: what is left of them is shown, which limits of single keys do not have.

use std::future::Future;
use std::path::PathBuf;
use std::task::{Context, Waker};
use std::time::Duration;

use shmlimit::{Permit, Segment};

use super::amounts::line_of;
use super::serve::{Server, first_page};
use super::top::OnPty;
use crate::support::{create_declared, directory, limitctl, run, run_command, text};

const DECLARATION: &str = r#"
[[set]]
name = "model"
keyed = 100
  [[set.limit]]
  name = "requests"
  kind = "calls"
  capacity = 500
  window = "365d"
  [[set.limit]]
  name = "dollars"
  kind = "budget"
  capacity = "99.95"
  window = "365d"
  unit = "0.01"
  scope = "all_keys"
  [[set.limit]]
  name = "in_flight"
  kind = "concurrency"
  capacity = 64
  scope = "all_keys"
"#;

/// Two tenants hold a place each, and have spent 1.5 dollars each.
struct Scene {
    directory: tempfile::TempDir,
    path: PathBuf,
    _held: [Permit<'static>; 2],
}

impl Scene {
    fn new() -> Self {
        let directory = directory();
        let path = create_declared(directory.path(), "limits", DECLARATION);
        let segment = Segment::open(&path).expect("created");
        let set = segment.set("model").expect("declared");
        let held = ["acme", "initech"].map(|tenant| {
            let request = set.request().for_key(tenant);
            let request = request.and_then(|it| it.with_decimal("dollars", "1.5"));
            let permit = request.expect("keyed").try_permit().expect("there is enough");
            permit.into_owned()
        });
        Self {
            directory,
            path,
            _held: held,
        }
    }
}

#[test]
fn inspect_says_whose_each_limit_is_and_what_is_left() {
    let scene = Scene::new();
    let shown = run(["inspect", text(&scene.path)]).ended(0).stdout;
    for (limit, declared, left) in [
        ("requests", "500 per", "by key"),
        ("dollars", "99.95 of all keys per", "96.95"),
        ("in_flight", "64 of all keys", "62"),
    ] {
        let line = line_of(&shown, limit);
        assert!(line.contains(declared) && line.contains(left), "{line}");
    }
    let json = run(["inspect", "--json", text(&scene.path)]).ended(0).json();
    let limits = &json["sets"][0]["limits"];
    assert!(
        limits[0]["scope"].is_null(),
        "each key's need not be said: {limits}"
    );
    assert_eq!(limits[1]["scope"], "all_keys", "{limits}");
    assert_eq!(
        (&limits[1]["remaining"], &limits[2]["remaining"]),
        (&9_695.into(), &62.into())
    );
}

#[test]
fn a_key_is_shown_with_its_own_limits_alone() {
    let scene = Scene::new();
    for arguments in [
        &["show", text(&scene.path), "model", "acme"][..],
        &["keys", text(&scene.path), "model"],
    ] {
        let shown = run_command(limitctl().args(arguments)).ended(0).stdout;
        assert!(shown.contains("499 of 500"), "{arguments:?}: {shown}");
        assert!(
            shown.contains("96.95 of 99.95") == (arguments[0] == "show"),
            "{arguments:?}: {shown}"
        );
        for limit in ["dollars", "in_flight"] {
            let is_heading = |line: &&str| line.split_whitespace().any(|word| word == "QUEUED");
            let heading = shown.lines().find(is_heading).unwrap_or_default();
            assert!(!heading.contains(limit), "no key has any of `{limit}`: {heading}");
        }
    }
}

#[test]
fn watch_top_export_and_the_page_have_what_is_used_of_them() {
    let scene = Scene::new();
    let watched = run_command(limitctl().args(["watch", "--count", "1", text(&scene.path)])).ended(0);
    assert!(
        watched.stdout.contains("dollars 3 of 99.95, "),
        "{}",
        watched.stdout
    );
    assert!(watched.stdout.contains("in_flight 2 of 64"), "{}", watched.stdout);

    let mut view = OnPty::start_with(&[], &scene.path, &[]);
    view.wait_for("in_flight");
    view.press(b"q");
    let shown = view.end();
    assert!(shown.contains("by key") && shown.contains("99.95"), "{shown}");

    let exported = run(["export", "--prometheus", text(&scene.path)]).ended(0).stdout;
    let remaining = |limit: &str| {
        let is_its = |line: &&str| {
            line.starts_with("shmlimit_limit_remaining{") && line.contains(&format!("limit=\"{limit}\""))
        };
        let line = exported.lines().find(is_its)?;
        line.rsplit(' ').next().map(str::to_owned)
    };
    assert_eq!(remaining("dollars").as_deref(), Some("96.95"), "{exported}");
    assert_eq!(remaining("in_flight").as_deref(), Some("62"), "{exported}");
    assert_eq!(remaining("requests"), None, "each key has its own: {exported}");

    let server = Server::start_with(&[], &[&scene.path]);
    if let Some(page) = first_page(&server, scene.directory.path()) {
        assert!(
            page.contains(" 3 of 99.95, ") && page.contains(" 2 of 64"),
            "{page}"
        );
        assert!(
            page.contains(" 1 of 500") && page.contains(", the fullest key"),
            "{page}"
        );
    }
}

#[test]
fn who_waits_for_what_all_keys_have_is_shown_with_its_share() {
    let directory = directory();
    let tier = "  [[set.tier]]\n  name = \"gold\"\n  weight = 3\n";
    let path = create_declared(directory.path(), "limits", &format!("{DECLARATION}{tier}"));
    let segment = Segment::open(&path).expect("created");
    let set = segment.set("model").expect("declared");
    let all = set
        .request()
        .with("in_flight", 64)
        .and_then(|it| it.for_key("first"));
    let _held = all.expect("keyed").try_permit().expect("nobody has any");
    let mut context = Context::from_waker(Waker::noop());
    let _waiting = [("acme", "gold"), ("initech", "default")].map(|(tenant, tier)| {
        let request = set.request().for_key(tenant).and_then(|it| it.with_tier(tier));
        let mut waiting = Box::pin(request.expect("keyed").acquire_async(None));
        assert!(
            waiting.as_mut().poll(&mut context).is_pending(),
            "no place is free"
        );
        waiting
    });
    let (gold, plain) = ("75 % (weight 3)", "25 % (weight 1)");
    for (arguments, shares) in [
        (&["inspect", text(&path)][..], &[gold, plain][..]),
        (&["keys", text(&path), "model"], &[gold, plain]),
        (&["show", text(&path), "model", "acme"], &[gold]),
    ] {
        let shown = run_command(limitctl().args(arguments)).ended(0).stdout;
        for share in shares {
            assert!(shown.contains(share), "{share} in {arguments:?}: {shown}");
        }
    }
    let queued = run([
        "keys",
        "--json",
        "--reveal",
        "--by",
        "queued",
        text(&path),
        "model",
    ]);
    let queued = queued.ended(0).json();
    let waiting = |index: usize| &queued["keys"][index]["queued"];
    assert_eq!([waiting(0), waiting(1), waiting(2)], [1, 1, 0], "{queued}");
    let shown = run(["show", text(&path), "model", "first"]).ended(0).stdout;
    assert!(
        line_of(&shown, "in_flight").contains("0 of 64"),
        "why it would be refused: {shown}"
    );
    assert!(shown.contains("2 requests of all keys wait"), "{shown}");
    let json = run(["show", "--json", text(&path), "model", "first"])
        .ended(0)
        .json();
    assert_eq!(json["all_keys"][1]["name"], "in_flight", "{json}");
    let shown = run(["show", text(&path), "model", "acme"]).ended(0).stdout;
    assert!(line_of(&shown, "state").contains("in use"), "it waits: {shown}");
    let shown = run(["inspect", text(&path)]).ended(0).stdout;
    assert!(line_of(&shown, "gold").contains("weight 3"), "{shown}");
    let json = run(["inspect", "--json", text(&path)]).ended(0).json();
    let in_order = &json["sets"][0]["tickets"][0]["in_order"];
    assert_eq!(
        (&in_order["weight"], &in_order["weight_of_all"]),
        (&3.into(), &4.into())
    );
}

#[test]
fn a_reset_of_a_key_leaves_alone_what_all_keys_have() {
    let scene = Scene::new();
    run(["reset", "--key", "acme", text(&scene.path), "model"]).ended(0);
    let shown = run(["inspect", text(&scene.path)]).ended(0).stdout;
    assert!(line_of(&shown, "dollars").contains("96.95"), "{shown}");
    let refused = run([
        "edit",
        "--key",
        "acme",
        text(&scene.path),
        "model",
        "in_flight",
        "capacity=1",
    ]);
    assert_ne!(refused.code, 0, "{refused:?}");
    run(["reset", text(&scene.path), "model"]).ended(0);
    let shown = run(["inspect", text(&scene.path)]).ended(0).stdout;
    assert!(line_of(&shown, "dollars").contains("99.95 "), "{shown}");
}

#[test]
fn who_waits_for_a_limit_of_its_own_key_is_not_said_to_be_in_the_way_of_others() {
    let scene = Scene::new();
    let segment = Segment::open(&scene.path).expect("created");
    let set = segment.set("model").expect("declared");
    let key = set.key("globex").expect("keyed");
    key.throttle(Duration::from_secs(600)).expect("throttled");
    let request = set.request().for_key("globex").expect("keyed");
    let mut waiting = Box::pin(request.acquire_async(None));
    let first_look = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(first_look.is_pending(), "it is throttled");
    let shown = run(["show", text(&scene.path), "model", "acme"]).ended(0).stdout;
    assert!(!shown.contains("of all keys wait"), "{shown}");
    assert!(set.request().for_key("acme").expect("keyed").try_permit().is_ok());
}
