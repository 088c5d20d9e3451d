//! What inspect, doctor and fleet report about limits that hosts share.

use std::fs;
use std::path::{Path, PathBuf};
use std::slice;
use std::time::Duration;

use crate::scene::wait_for;
use crate::support;
use crate::support::health::findings;
use crate::support::{create_declared, directory, run, text};
use serde_json::Value;
use shmlimit::fleet::{LeaseReply, LeaseRequest, StoreProblem};
use shmlimit::{Declaration, LimitSet, Segment};

const DECLARED: &str = r#"
[fleet]
url = "redis://127.0.0.1:1"

[[set]]
name = "api"

  [[set.limit]]
  name = "calls"
  kind = "calls"
  capacity = 6000
  window = "60s"
  fleet = { key = "org/api/calls", lease = "2s" }
"#;

/// A segment with the limit, and in the same set another that is not shared.
fn create(directory: &Path) -> PathBuf {
    let own = "  [[set.limit]]\n  name = \"own\"\n  kind = \"concurrency\"\n  capacity = 2\n";
    create_declared(directory, "limits", &format!("{DECLARED}\n{own}"))
}

/// Takes one unit of what is leased, and settles it.
fn take_one(set: &LimitSet) {
    let outcome = set.request().try_acquire().expect("decides");
    drop(outcome.into_result().expect("leased"));
}

/// The answer of a store that grants everything that is asked for, for an hour.
fn all_of(request: &LeaseRequest, share: u64) -> LeaseReply {
    LeaseReply {
        share,
        grant_number: 1,
        ..LeaseReply::granting(request, request.wanted, Duration::from_secs(3600))
    }
}

#[test]
fn the_part_of_a_fleet_is_shown_as_it_changes_in_text_and_json_alike() {
    let directory = directory();
    let path = create(directory.path());
    let shown = || run(["fleet", text(&path)]).ended(0).stdout;
    let json = || run(["fleet", "--json", text(&path)]).ended(0).json();
    let segment = Segment::open(&path).expect("a segment");
    let host = segment.fleet().host();

    // No process asks the store yet.
    let before = json();
    assert_eq!(
        (
            &before["url"],
            &before["host"],
            &before["duty"],
            &before["takeovers"]
        ),
        (
            &"redis://127.0.0.1:1".into(),
            &host.into(),
            &Value::Null,
            &0.into()
        )
    );
    let [limit] = &before["limits"].as_array().expect("limits")[..] else {
        panic!("one is shared: {before}");
    };
    assert_eq!(
        (
            &limit["set"],
            &limit["limit"],
            &limit["kind"],
            &limit["key"],
            &limit["outage"]
        ),
        (
            &"api".into(),
            &"calls".into(),
            &"calls".into(),
            &"org/api/calls".into(),
            &"spend_out".into()
        )
    );
    assert_eq!(
        (&limit["left"], &limit["answered_ago"]),
        (&0.into(), &Value::Null)
    );
    let text_before = shown();
    for word in [
        "no process, taken over 0 times",
        &format!("{host:016x}"),
        "not asked yet",
        "never",
    ] {
        assert!(text_before.contains(word), "{word} is not in {text_before}");
    }

    let duty = segment.fleet().try_take_duty().expect("works").expect("free");
    let asked = duty.ask().expect("works").remove(0);
    let waiting = format!("request {} is not answered yet", asked.request().sequence);
    assert!(shown().contains(&waiting), "{}", shown());
    let reply = all_of(asked.request(), 5555);
    duty.install(&asked, &reply).expect("works");
    let set = segment.set("api").expect("declared");
    take_one(&set);
    let granted = json();
    let limit = &granted["limits"][0];
    assert_eq!(granted["duty"]["pid"], std::process::id());
    assert_eq!(
        (
            &limit["left"],
            &limit["share"],
            &limit["problem"],
            &limit["counts"]["grants"]
        ),
        (
            &(asked.request().wanted - 1).into(),
            &5555.into(),
            &Value::Null,
            &1.into()
        )
    );
    assert!(limit["valid_for"].as_f64().expect("seconds") > 3000.0, "{limit}");
    let text_granted = shown();
    for word in [
        "(fleet-",
        "answers",
        "5,555",
        " ago",
        &format!("process {}", std::process::id()),
    ] {
        assert!(text_granted.contains(word), "{word} is not in {text_granted}");
    }

    while duty.due_in() != Some(Duration::ZERO) {
        take_one(&set);
    }
    let asked = duty.ask().expect("works").remove(0);
    duty.report(&asked, StoreProblem::Denied, Duration::from_secs(3600))
        .expect("works");
    let failed = json();
    let limit = &failed["limits"][0];
    assert_eq!(
        (&limit["problem"], &limit["counts"]["failures"]),
        (&"denied".into(), &1.into())
    );
    assert!(limit["out_for"].is_number(), "{limit}");
    assert!(shown().contains("denied for "), "{}", shown());
    let exported = run(["export", "--openmetrics", text(&path)]).ended(0).stdout;
    let labels = format!("{{segment=\"{}\",set=\"api\",limit=\"calls\"", text(&path));
    for (name, more, value) in [
        ("shmlimit_lease_requests_total", ",result=\"asked\"", "2"),
        ("shmlimit_lease_requests_total", ",result=\"granted\"", "1"),
        ("shmlimit_lease_requests_total", ",result=\"failed\"", "1"),
        ("shmlimit_lease_units", "", &limit["left"].to_string()),
    ] {
        let sample = format!("{name}{labels}{more}}} {value}\n");
        assert!(exported.contains(&sample), "{sample} is not in {exported}");
    }
    assert!(!exported.contains("limit=\"own\",result=\"asked\""), "{exported}");
    // Inspect reports the same.
    assert!(
        run(["inspect", text(&path)])
            .ended(0)
            .stdout
            .contains("denied for ")
    );
}

/// The files of a directory are one host, and doctor and fleet say in what they differ.
#[test]
fn a_directory_is_shown_as_one_host() {
    let root = directory();
    let path = root.path().join("app.limits.d");
    let other = DECLARED
        .replace("\"api\"", "\"mail\"")
        .replace("org/api", "org/mail");
    let own =
        "[[set]]\nname = \"own\"\n[[set.limit]]\nname = \"jobs\"\nkind = \"concurrency\"\ncapacity = 2\n";
    for declared in [DECLARED, &other, own] {
        let declaration = Declaration::from_toml(declared).expect("a declaration");
        Segment::create(&path, &declaration).expect("a segment");
    }
    let segment = Segment::open(&path).expect("a segment");
    let half = format!("{:08x}", segment.fleet().host() >> 32);
    let shown = || run(["fleet", text(&path)]).ended(0).stdout;
    assert!(shown().contains("no process, taken over 0 times"), "{}", shown());
    let doctor = || run(["doctor", "--json", text(&path)]).stdout;
    assert_eq!(doctor().matches("no_duty").count(), 2, "{}", doctor());

    let duty = segment.fleet().try_take_duty().expect("works").expect("free");
    assert_eq!(duty.ask().expect("works").len(), 2);
    let me = format!("process {}", std::process::id());
    let line = shown()
        .lines()
        .find(|line| line.contains("duty"))
        .map(str::to_owned);
    let line = line.expect("a line");
    assert!(line.contains(&me) && !line.contains(" for "), "{line}");
    assert!(shown().contains(&format!("host   {half}\n")), "{}", shown());
    assert!(
        run(["inspect", text(&path)])
            .ended(0)
            .stdout
            .contains(&format!("host {half}\n"))
    );
    assert!(!doctor().contains("no_duty"), "{}", doctor());
    let file = run(["fleet", "--json", text(&path.join("mail"))]).ended(0).json();
    let of_file = format!("{:016x}", file["host"].as_u64().expect("a number"));
    assert!(
        of_file.starts_with(&half) && !of_file.ends_with("00000000"),
        "{of_file}"
    );

    // Another process asks the store for one of the files alone.
    drop(duty);
    let one = Segment::open(path.join("mail")).expect("a segment");
    let _duty = one.fleet().try_take_duty().expect("works").expect("free");
    let expected = format!("no process for api; {me} ");
    assert!(shown().contains(&expected), "{expected} is not in {}", shown());
    let whole = run(["fleet", "--json", text(&path)]).ended(0).json();
    assert_eq!(whole["duty"], Value::Null);
    // A set of this host alone is left out.
    assert_eq!(whole["limits"].as_array().expect("limits").len(), 2);
}

/// Whatever is wrong with the store is an error once nothing is left to spend, and a warning while what is leased
/// lasts.
#[test]
fn what_the_store_says_is_an_error_while_refusals_follow() {
    let directory = directory();
    // What is leased has to last while limitctl runs three times.
    let lasting = DECLARED.replace(r#"lease = "2s""#, r#"lease = "60s""#);
    let path = create_declared(directory.path(), "limits", &lasting);
    let segment = Segment::open(&path).expect("a segment");
    let duty = segment.fleet().try_take_duty().expect("works").expect("free");
    let about_the_store = || {
        let found = findings(&path).into_iter();
        found
            .filter(|finding| {
                finding["finding"]
                    .as_str()
                    .is_some_and(|kind| kind.starts_with("store_"))
            })
            .map(|finding| (finding["finding"].to_string(), finding["severity"].to_string()))
            .collect::<Vec<_>>()
    };
    let found = |kind: &str, severity: &str| vec![(format!("\"store_{kind}\""), format!("\"{severity}\""))];
    for (problem, kind) in [
        (StoreProblem::OutOfMemory.into(), "out_of_memory"),
        (StoreProblem::Quarantine.into(), "quarantine"),
        (StoreProblem::TimedOut.into(), "timed_out"),
        (StoreProblem::NotPermitted.naming("evalsha"), "not_permitted"),
    ] {
        let asked = duty.ask().expect("works").remove(0);
        duty.report(&asked, problem, Duration::ZERO).expect("works");
        assert_eq!(about_the_store(), found(kind, "error"));
        run(["doctor", text(&path)]).ended(1);
    }
    let shown = run(["fleet", text(&path)]).ended(0).stdout;
    assert!(shown.contains("not_permitted (evalsha) for "), "{shown}");

    let asked = duty.ask().expect("works").remove(0);
    let reply = all_of(asked.request(), 7);
    duty.install(&asked, &reply).expect("works");
    assert_eq!(about_the_store(), []);
    let set = segment.set("api").expect("declared");
    while duty.due_in() != Some(Duration::ZERO) {
        assert!(set.request().check().expect("decides").is_admitted());
    }
    for (problem, expected) in [
        (StoreProblem::OutOfMemory, found("out_of_memory", "warning")),
        // This is a note, which is no finding here.
        (StoreProblem::Quarantine, vec![]),
        // Only a person can end this problem.
        (StoreProblem::WrongDatabase, found("wrong_database", "error")),
    ] {
        let asked = duty.ask().expect("works").remove(0);
        duty.report(&asked, problem, Duration::ZERO).expect("works");
        assert_eq!(about_the_store(), expected);
    }
}

#[test]
fn a_segment_without_a_fleet_says_so() {
    let directory = directory();
    let path = support::create(directory.path());
    for run in [run(["fleet", text(&path)]), run(["fleet", "--json", text(&path)])] {
        let run = run.ended(64);
        assert!(run.stdout.is_empty(), "{run:?}");
        assert!(run.stderr.contains("without [fleet]"), "{run:?}");
    }
    run(["fleet", text(&directory.path().join("nowhere"))]).ended(69);
}

#[test]
fn leases_are_shown_and_what_is_wrong_with_them_is_found() {
    let directory = directory();
    let path = create_declared(directory.path(), "limits", DECLARED);
    let kinds = |path| -> Vec<String> {
        let found = findings(path);
        let kind = |finding: &serde_json::Value| finding["finding"].as_str().expect("a word").to_owned();
        found.iter().map(kind).collect()
    };
    let segment = Segment::open(&path).expect("a segment");
    assert!(kinds(&path).contains(&"no_duty".to_owned()));

    let duty = segment.fleet().try_take_duty().expect("works").expect("free");
    let asked = duty.ask().expect("works").remove(0);
    let reply = all_of(asked.request(), 7);
    duty.install(&asked, &reply).expect("works");
    assert!(
        !kinds(&path)
            .iter()
            .any(|kind| kind == "no_duty" || kind.starts_with("store_"))
    );
    for evicts in [true, false] {
        duty.note_eviction(slice::from_ref(&asked), evicts);
        assert_eq!(kinds(&path).contains(&"store_evicts".to_owned()), evicts);
    }
    let shown = run(["inspect", text(&path)]).ended(0);
    for word in ["redis://127.0.0.1:1", "org/api/calls", "spend_out", "answers"] {
        assert!(shown.stdout.contains(word), "{word} is not in {}", shown.stdout);
    }
    let json = run(["inspect", "--json", text(&path)]).ended(0).json();
    assert_eq!(json["sets"][0]["limits"][0]["lease"]["share"], 7);
    assert_eq!(json["fleet"]["duty"]["pid"], std::process::id());

    let set = segment.set("api").expect("declared");
    while duty.due_in() != Some(Duration::ZERO) {
        assert!(set.request().check().expect("decides").is_admitted());
    }
    let asked = duty.ask().expect("works").remove(0);
    duty.report(&asked, StoreProblem::Unreachable, Duration::from_secs(3600))
        .expect("works");
    assert!(kinds(&path).contains(&"store_unreachable".to_owned()));

    // A process that is denied something leaves asking to others for a moment. That is not what is wrong.
    duty.report(&asked, StoreProblem::NotPermitted, Duration::from_secs(3600))
        .expect("works");
    drop(duty);
    let found = kinds(&path);
    assert!(
        found.contains(&"store_not_permitted".to_owned()) && !found.contains(&"no_duty".to_owned()),
        "{found:?}"
    );
}

/// As after the last job of `limitctl exec`: nobody asks the store, but nobody is refused because of that.
#[test]
fn a_segment_that_no_process_uses_lacks_none_that_asks() {
    let directory = directory();
    let path = create_declared(directory.path(), "limits", DECLARED);
    let no_duty = || {
        let report = run(["doctor", "--json", text(&path)]).ended(0).json();
        let found = report["segments"][0]["findings"].as_array().expect("findings");
        let found = found.iter().find(|finding| finding["finding"] == "no_duty");
        found.map(|finding| finding["severity"].to_string())
    };
    assert_eq!(no_duty().as_deref(), Some("\"note\""));
    let segment = Segment::open(&path).expect("a segment");
    assert_eq!(no_duty().as_deref(), Some("\"warning\""));
    drop(segment.fleet().try_take_duty().expect("works").expect("free"));
    assert_eq!(no_duty().as_deref(), Some("\"warning\""));
    drop(segment);
    assert_eq!(no_duty().as_deref(), Some("\"note\""));
}

#[test]
fn a_burst_that_is_too_small_for_the_rate_is_created_with_a_warning_and_found_once_the_store_answers() {
    let directory = directory();
    let config = directory.path().join("limits.toml");
    let small = DECLARED.replace("window = \"60s\"", "window = \"60s\"\n  burst = 10");
    fs::write(&config, small).expect("written");
    let path = directory.path().join("limits");
    let created = run(["create", text(&path), text(&config)]).ended(0);
    assert!(
        created.stderr.contains("about 74 % of the rate"),
        "{}",
        created.stderr
    );

    let found = || {
        findings(&path)
            .into_iter()
            .find(|found| found["finding"] == "lease_share")
    };
    assert_eq!(found(), None);
    let segment = Segment::open(&path).expect("a segment");
    let duty = segment.fleet().try_take_duty().expect("works").expect("free");
    let asked = duty.ask().expect("works").remove(0);
    duty.install(&asked, &all_of(asked.request(), 7)).expect("works");
    let found = found().expect("found").to_string();
    assert!(
        found.contains("% of the rate of limit calls") && found.contains("a burst of at least"),
        "{found}"
    );
}

#[test]
fn what_is_leased_is_given_back_before_a_host_goes() {
    let directory = directory();
    let path = create(directory.path());
    let segment = Segment::open(&path).expect("a segment");
    let set = segment.set("api").expect("declared");
    let one = || set.request().try_acquire().expect("decides").into_result();
    let duty = segment.fleet().try_take_duty().expect("works").expect("free");
    let answer = |wanted: bool| {
        let asked = duty.ask().expect("works").remove(0);
        let request = asked.request().clone();
        assert_eq!(request.wanted > 0, wanted, "{request:?}");
        let reply = all_of(&request, 100);
        duty.install(&asked, &reply).expect("works");
        request
    };
    answer(true);
    drop(one().expect("leased"));

    let shows = |words: &str| {
        let shown = run(["fleet", text(&path)]).ended(0).stdout;
        assert!(shown.contains(words), "{shown}");
    };
    // No answer comes while it waits, so not everything is given back in time.
    let drained = run(["fleet", "drain", "--timeout", "0", text(&path)]).ended(1);
    assert!(
        drained.stderr.contains("api calls is not given back"),
        "{drained:?}"
    );
    shows("giving back");
    assert!(one().is_err(), "nothing is leased any more");
    assert_eq!(answer(false).spent, 1, "what was spent is reported");
    let drained = run(["fleet", "drain", text(&path)]).ended(0);
    assert!(drained.stdout.contains("everything is given back"), "{drained:?}");
    shows("given back");

    run(["fleet", "drain", "--end", text(&path)]).ended(0);
    assert!(one().is_err(), "it asks first");
    answer(true);
    drop(one().expect("leased"));

    // A segment without a fleet has nothing to give back.
    let alone = create_declared(
        directory.path(),
        "alone",
        "[[set]]\nname = \"a\"\n[[set.limit]]\nname = \"b\"\nkind = \"concurrency\"\ncapacity = 1\n",
    );
    run(["fleet", "drain", text(&alone)]).ended(64);
}

/// What each key has leased, which key is refused until when, and what the store does not know yet.
#[test]
fn what_each_key_has_leased_is_shown() {
    let declared = DECLARED
        .replace("name = \"api\"", "name = \"tenants\"\nkeyed = 100")
        .replace("lease = \"2s\"", "lease = \"1h\", cold_wait = \"0s\"");
    let directory = directory();
    let path = create_declared(directory.path(), "limits", &declared);
    let segment = Segment::open(&path).expect("a segment");
    let tenants = segment.set("tenants").expect("declared");
    let take = |key: &str| {
        let request = tenants.request().for_key(key).expect("a key");
        request.check().expect("a decision").is_admitted()
    };
    let duty = segment.fleet().try_take_duty().expect("works").expect("free");
    // Each key is admitted once, and wants more.
    for (key, granted, free_in) in [("leased", 5, 0), ("empty", 0, 3000)] {
        assert!(take(key) && !take(key));
        wait_for("a request", || {
            let asked = duty.ask().expect("works");
            for asked in &asked {
                let reply = LeaseReply {
                    granted,
                    free_in: Duration::from_secs(free_in),
                    ..all_of(asked.request(), 0)
                };
                duty.install(asked, &reply).expect("works");
            }
            !asked.is_empty()
        });
        assert_eq!(take(key), granted > 0);
    }
    assert!(take("new"));
    let shown = run(["keys", "--reveal", text(&path), "tenants"]).ended(0).stdout;
    let line = |key: &str| {
        let line = shown.lines().find(|line| line.contains(key)).unwrap_or_default();
        line.to_owned()
    };
    assert!(
        line("leased").contains("4 leased for ") && line("leased").contains(", 1 to report"),
        "{shown}"
    );
    assert!(line("empty").contains("none free for "), "{shown}");
    assert!(line("new").contains("nothing leased, 1 to report"), "{shown}");
    let of_key = run(["show", text(&path), "tenants", "empty"]).ended(0).stdout;
    assert!(of_key.contains("none free for "), "{of_key}");
    let json = run(["keys", "--json", "--match", "leased", text(&path), "tenants"])
        .ended(0)
        .json();
    let lease = &json["keys"][0]["limits"][0]["lease"];
    assert_eq!(
        (&lease["left"], &lease["unreported"]),
        (&4.into(), &1.into()),
        "{json}"
    );
    for verb in ["inspect", "fleet"] {
        let shown = run([verb, text(&path)]).ended(0).stdout;
        assert!(
            shown.contains("3 keys") && shown.contains("by key"),
            "{verb}: {shown}"
        );
    }
}
