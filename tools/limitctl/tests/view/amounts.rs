//! Each kind of limit in each view: amounts are those of its declaration, and what has an end is not called unlimited.

use std::path::PathBuf;
use std::time::Duration;

use shmlimit::Segment;
use shmlimit::fleet::LeaseReply;

use super::serve::{Server, first_page};
use super::top::OnPty;
use crate::support::{create_declared, directory, limitctl, run, run_command, text};

/// Some of each limit is taken.
const LIMITS: &str = r#"
  [[set.limit]]
  name = "dollars"
  kind = "budget"
  capacity = "9999.95"
  window = "365d"
  unit = "0.01"
  [[set.limit]]
  name = "tokens"
  kind = "rate"
  capacity = "8888.125"
  window = "365d"
  unit = "0.125"
  [[set.limit]]
  name = "shares"
  kind = "concurrency"
  capacity = 7_777
  [[set.limit]]
  name = "thousands"
  kind = "rate"
  capacity = 6_666_000
  window = "365d"
  unit = "1000"
  [[set.limit]]
  name = "calls"
  kind = "calls"
  capacity = 5_555
  window = "365d"
  [[set.limit]]
  name = "boundless"
  kind = "calls"
  capacity = "unlimited"
"#;

/// What is used of each limit, and out of what, as people read it.
const USED: [(&str, &str, &str); 5] = [
    ("dollars", "2.5", "9,999.95"),
    ("tokens", "2.5", "8,888.125"),
    ("shares", "2", "7,777"),
    ("thousands", "25,000", "6,666,000"),
    ("calls", "1", "5,555"),
];

/// What is left of each limit, likewise.
const LEFT: [(&str, &str); 5] = [
    ("dollars", "9,997.45"),
    ("tokens", "8,885.625"),
    ("shares", "7,775"),
    ("thousands", "6,641,000"),
    ("calls", "5,554"),
];

/// Numbers of units of these limits, which no declaration has: capacities, and what is left.
const RAW: [&str; 8] = [
    "999,995", "999,745", "71,105", "71,085", "999995", "999745", "71105", "71085",
];

struct Scene {
    directory: tempfile::TempDir,
    path: PathBuf,
    _segment: Segment,
}

impl Scene {
    fn new() -> Self {
        let directory = directory();
        let declaration =
            format!("[[set]]\nname = \"all\"\n{LIMITS}\n[[set]]\nname = \"keyed\"\nkeyed = 10\n{LIMITS}");
        let path = create_declared(directory.path(), "limits", &declaration);
        let segment = Segment::open(&path).expect("created");
        for (set, key) in [("all", None), ("keyed", Some("tenant"))] {
            let set = segment.set(set).expect("declared");
            let mut request = set.request();
            if let Some(key) = key {
                request.set_key(key).expect("keyed");
            }
            for (limit, cost) in [
                ("dollars", "2.5"),
                ("tokens", "2.5"),
                ("shares", "2"),
                ("thousands", "25000"),
            ] {
                request = request.with_decimal(limit, cost).expect("whole units");
            }
            // The permit stays held.
            std::mem::forget(request.try_permit().expect("there is enough").into_owned());
        }
        Self {
            directory,
            path,
            _segment: segment,
        }
    }
}

/// Views show what is leased of limits that hosts share, and the last fair share.
#[test]
fn leases_are_shown_in_amounts_of_the_declaration() {
    let directory = directory();
    let fleet = |key: &str| format!("fleet = {{ key = \"{key}\", lease = \"100ms\" }}\n");
    let declaration = format!(
        "[fleet]\nurl = \"redis://127.0.0.1:1\"\n[[set]]\nname = \"spending\"\n[[set.limit]]\nname = \"dollars\"\n\
         kind = \"budget\"\ncapacity = \"9999.95\"\nwindow = \"30d\"\nunit = \"0.01\"\nalign = \"utc\"\n{}\
         [[set.limit]]\nname = \"thousands\"\nkind = \"rate\"\ncapacity = 6_666_000\nwindow = \"30d\"\n\
         algorithm = \"token_bucket\"\nunit = \"1000\"\n{}",
        fleet("org/dollars"),
        fleet("org/thousands"),
    );
    let path = create_declared(directory.path(), "limits", &declaration);
    let segment = Segment::open(&path).expect("created");
    let duty = segment.fleet().try_take_duty().expect("works").expect("free");
    let asked = duty.ask().expect("works");
    assert_eq!(asked.len(), 2);
    for asked in asked {
        let request = asked.request();
        let reply = LeaseReply {
            share: 1_234,
            grant_number: 1,
            ..LeaseReply::granting(request, request.wanted.min(150), Duration::from_secs(3_600))
        };
        duty.install(&asked, &reply).expect("works");
    }
    for shown in [
        run(["fleet", text(&path)]).ended(0).stdout,
        run(["inspect", text(&path)]).ended(0).stdout,
    ] {
        for amount in ["12.34", "1,234,000"] {
            assert!(shown.contains(amount), "a share of {amount} in {shown}");
        }
        assert!(!shown.contains("1,234 "), "{shown}");
    }
    let json = run(["fleet", "--json", text(&path)]).ended(0).json();
    let limits = json["limits"].as_array().expect("limits");
    for (limit, unit) in limits.iter().zip(["0.01", "1000"]) {
        assert_eq!((&limit["unit"], &limit["share"]), (&unit.into(), &1_234.into()));
    }
    let exported = run(["export", "--prometheus", text(&path)]).ended(0).stdout;
    let left = |name: &str| segment_left(&segment, name);
    for (limit, of_one) in [("dollars", 0.01), ("thousands", 1_000.0)] {
        let begin = "shmlimit_lease_units{";
        let is_its = |line: &&str| line.starts_with(begin) && line.contains(&format!("limit=\"{limit}\""));
        let line = exported.lines().find(is_its).expect("a sample");
        let figure: f64 = line
            .rsplit(' ')
            .next()
            .expect("a number")
            .parse()
            .expect("a number");
        let expected = left(limit) as f64 * of_one;
        assert!(
            (figure - expected).abs() < 1e-6 && figure > 0.0,
            "{line}, {expected}"
        );
    }
}

fn segment_left(segment: &Segment, limit: &str) -> u64 {
    let snapshot = segment.snapshot().expect("a snapshot");
    let mut limits = snapshot.sets[0].limits.iter();
    let limit = limits.find(|it| it.name == limit).expect("declared");
    limit.lease.as_ref().expect("shared").left
}

fn has_no_raw_number(shown: &str) {
    for raw in RAW {
        assert!(!shown.contains(raw), "{raw} in {shown}");
    }
}

/// The first line that names a limit.
pub fn line_of<'a>(shown: &'a str, limit: &str) -> &'a str {
    let is_its = |line: &&str| line.split_whitespace().any(|word| word == limit);
    shown
        .lines()
        .find(is_its)
        .unwrap_or_else(|| panic!("no {limit} in {shown}"))
}

fn uses_and_capacities_are_in(shown: &str) {
    has_no_raw_number(shown);
    for (limit, used, capacity) in USED {
        let words = format!("{used} of {capacity}");
        assert!(shown.contains(&words), "{limit}: no {words:?} in {shown}");
    }
}

/// The text with everything from each `begin` to the next `is_end` replaced by a space, and no two spaces in a row.
fn without(begin: char, is_end: fn(char) -> bool, shown: &str) -> String {
    let mut parts = shown.split(begin);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push(' ');
        text.push_str(part.split_once(is_end).map_or("", |(_, rest)| rest));
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn inspect_and_show_have_what_is_left() {
    let scene = Scene::new();
    let path = text(&scene.path);
    let inspected = run(["inspect", path]).ended(0).stdout;
    has_no_raw_number(&inspected);
    let (of_all, of_keys) = inspected.split_once("keyed").expect("two sets");
    for (limit, left) in LEFT {
        let line = line_of(of_all, limit);
        assert!(
            line.contains(left) && !line.contains("unlimited"),
            "{left} in {line}"
        );
        let line = line_of(of_keys, limit);
        assert!(!line.contains("unlimited"), "{line}");
    }
    assert!(of_all.contains("shares 2"), "what is held is shown: {of_all}");
    assert!(line_of(of_all, "boundless").contains("unlimited"), "{of_all}");
    let shown = run(["show", path, "keyed", "tenant"]).ended(0).stdout;
    has_no_raw_number(&shown);
    for ((limit, left), (_, _, capacity)) in LEFT.into_iter().zip(USED) {
        let line = line_of(&shown, limit);
        assert!(line.contains(&format!("{left} of {capacity}")), "{line}");
    }
    assert!(line_of(&shown, "boundless").contains("unlimited"), "{shown}");
}

#[test]
fn keys_without_anything_left_are_found_whatever_the_kind() {
    let directory = directory();
    let declaration = "[[set]]\nname = \"spending\"\nkeyed = 10\n[[set.limit]]\nname = \"dollars\"\nkind = \"budget\"\n\
                       capacity = \"1.5\"\nwindow = \"365d\"\nunit = \"0.01\"\n";
    let path = create_declared(directory.path(), "limits", declaration);
    let segment = Segment::open(&path).expect("created");
    let set = segment.set("spending").expect("declared");
    for (key, spent) in [("thrifty", "1.25"), ("spent", "1.5")] {
        let request = set
            .request()
            .for_key(key)
            .and_then(|it| it.with_decimal("dollars", spent));
        assert!(request.expect("keyed").check().expect("works").is_admitted());
    }
    let found = run(["keys", "--json", "--limited", text(&path), "spending"])
        .ended(0)
        .json();
    assert_eq!(found["matching"], 1, "{found}");
    let shown = run(["keys", text(&path), "spending"]).ended(0).stdout;
    assert!(
        shown.contains("0.25 of 1.5") && shown.contains("0 of 1.5"),
        "{shown}"
    );
}

#[test]
fn watch_and_top_have_what_is_used() {
    let scene = Scene::new();
    let watched = run_command(limitctl().args(["watch", "--count", "1", text(&scene.path)])).ended(0);
    uses_and_capacities_are_in(&watched.stdout);
    let budget = watched.stdout.split("9,999.95, ").nth(1).expect("a budget");
    assert!(
        budget.split(',').next().expect("a time").ends_with(" left"),
        "{budget}"
    );
    let mut view = OnPty::start_with(&[], &scene.path, &[]);
    view.wait_for("boundless");
    view.press(b"q");
    uses_and_capacities_are_in(&without('\x1b', char::is_alphabetic, &view.end()));
}

#[test]
fn exported_figures_are_amounts_of_the_declaration() {
    let scene = Scene::new();
    let exported = run(["export", "--prometheus", text(&scene.path)]).ended(0).stdout;
    let sample = |name: &str, limit: &str| {
        let labels = format!("set=\"all\",limit=\"{limit}\"}} ");
        let is_its = |line: &&str| line.starts_with(name) && line.contains(&labels);
        let line = exported.lines().find(is_its)?;
        line.rsplit(' ').next().map(str::to_owned)
    };
    for ((limit, left), (_, _, capacity)) in LEFT.into_iter().zip(USED) {
        let plain = |amount: &str| Some(amount.replace(',', ""));
        assert_eq!(
            sample("shmlimit_limit_remaining", limit),
            plain(left),
            "{exported}"
        );
        assert_eq!(
            sample("shmlimit_limit_capacity", limit),
            plain(capacity),
            "{exported}"
        );
    }
    assert_eq!(sample("shmlimit_limit_capacity", "boundless"), None);
    assert!(
        !exported.contains("shmlimit_limit_remaining{segment=\"\",set=\"keyed\""),
        "each key has its own: {exported}"
    );
}

#[test]
fn json_has_units_and_what_a_unit_is() {
    let scene = Scene::new();
    let path = text(&scene.path);
    let inspected = run(["inspect", "--json", path]).ended(0).json();
    let shown = run(["show", "--json", path, "keyed", "tenant"]).ended(0).json();
    for limits in [
        &inspected["sets"][0]["limits"],
        &inspected["sets"][1]["limits"],
        &shown["rows"][0]["limits"],
    ] {
        assert_eq!(limits[0]["unit"], "0.01", "{limits}");
        assert_eq!(limits[0]["capacity"], 999_995, "{limits}");
        assert_eq!(limits[4]["unit"], "1", "{limits}");
        assert!(limits[5]["capacity"].is_null(), "{limits}");
    }
    assert_eq!(inspected["sets"][0]["limits"][0]["remaining"], 999_745);
    assert_eq!(shown["rows"][0]["limits"][1]["remaining"], 71_085);
}

#[test]
fn the_page_has_what_is_used() {
    let scene = Scene::new();
    let server = Server::start_with(&[], &[&scene.path]);
    let Some(page) = first_page(&server, scene.directory.path()) else {
        return;
    };
    let (_, body) = page.split_once("</head>").expect("a page");
    let (body, _) = body.split_once("<script>").expect("a script at the end");
    uses_and_capacities_are_in(&without('<', |end| end == '>', body));
}
