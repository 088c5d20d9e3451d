//! Metrics for Prometheus, compared with the counters, and read by Prometheus' own tool.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support;
use crate::support::{Actor, create, directory, run, text};
use shmlimit::declare::FleetLease;
use shmlimit::{Declaration, Keyed, Limit, Segment, SetDeclaration};

/// The samples of an exposition, by their name and labels as written.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let mut samples = BTreeMap::new();
    for line in lines {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        let value = value.parse().unwrap_or_else(|_| panic!("{line}"));
        assert!(samples.insert(name.to_owned(), value).is_none(), "twice: {line}");
    }
    samples
}

/// What Prometheus' tool says about its input; `None` if the machine does not have the tool.
fn promtool(arguments: &[&str], input: &str) -> Option<(bool, String)> {
    let started = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match started {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("skipped: no promtool");
            return None;
        }
        started => started.expect("started"),
    };
    let mut pipe = child.stdin.take().expect("piped");
    // It may stop reading before the end.
    let _ = pipe.write_all(input.as_bytes());
    drop(pipe);
    let output = child.wait_with_output().expect("a child of ours");
    let said = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8(said).expect("UTF-8")))
}

/// The names of metrics in a text, without the suffixes of histograms.
fn names_in(text: &str) -> BTreeSet<&str> {
    let is_of_a_name = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let words = text.split(|character| !is_of_a_name(character));
    words
        .filter(|word| word.starts_with("shmlimit_"))
        .map(|word| {
            let base = ["_bucket", "_count", "_sum"]
                .iter()
                .find_map(|suffix| word.strip_suffix(suffix));
            base.unwrap_or(word)
        })
        .collect()
}

fn keyed(path: &Path) -> Segment {
    let declaration = Declaration::new().add_set(
        SetDeclaration::new("tenants \"a\\b\"")
            .keyed(Keyed::new(8))
            .add_limit(Limit::calls("requests", 2, Duration::from_secs(86_400)))
            .add_limit(Limit::concurrency("in_flight", 3)),
    );
    Segment::create(path, &declaration).expect("created")
}

#[test]
fn what_is_exported_under_load_lies_between_the_counters_before_and_after() {
    let directory = directory();
    let path = create(directory.path());
    let spinning = [Actor::start("spin", &path), Actor::start("spin", &path)];
    let reader = shmlimit::snapshot::SegmentReader::open(&path).expect("a segment");
    let refused = || reader.snapshot().expect("copied").sets[0].counts.refused_rate;
    let segment = text(&path);
    let series = |limit: &str, result: &str| {
        format!(
            "shmlimit_requests_total{{segment=\"{segment}\",set=\"api\",limit=\"{limit}\",result=\"{result}\"}}"
        )
    };
    for _ in 0..5 {
        let before = refused();
        let shown = samples(&run(["export", "--prometheus", segment]).ended(0).stdout);
        let after = refused();
        // The process with the lock may have counted a refusal for the set and not yet for the limit.
        for (limit, behind) in [("", 0), ("requests", 1)] {
            let exported = shown[&series(limit, "refused")] as u64;
            assert!(
                (before.saturating_sub(behind)..=after).contains(&exported),
                "{before} {exported} {after}"
            );
        }
        // The traffic is real, and continues.
        let deadline = std::time::Instant::now() + support::TIMEOUT;
        while refused() == before {
            assert!(std::time::Instant::now() < deadline, "no one is refused");
            std::thread::yield_now();
        }
    }
    drop(spinning);
    let shown = samples(&run(["export", "--prometheus", segment]).ended(0).stdout);
    let counts = reader.snapshot().expect("copied").sets[0].counts;
    assert_eq!(shown[&series("", "admitted")], 10.0);
    assert_eq!(shown[&series("in_flight", "admitted")], 10.0);
    // Both were killed, and each may have counted a refusal for the set and not for the limit.
    let of_limit = shown[&series("requests", "refused")] as u64;
    assert!((of_limit..=of_limit + 2).contains(&counts.refused_rate));
    assert_eq!(shown[&series("", "timed_out")], 0.0);
    assert!(!shown.contains_key(&series("requests", "timed_out")));
}

#[test]
fn has_the_names_that_are_promised_and_promtool_finds_nothing_wrong() {
    let directory = directory();
    let path = create(directory.path());
    let holding = Actor::start("hold", &path);
    let other = directory.path().join("other \"quoted\"\n");
    let segment = keyed(&other);
    let tenants = segment.set("tenants \"a\\b\"").expect("declared");
    let permit = tenants
        .request()
        .for_key("secret-tenant")
        .expect("keyed")
        .try_acquire()
        .expect("works");
    let shown = run(["export", "--prometheus", text(&path), text(&other), text(&path)])
        .ended(0)
        .stdout;
    let found = samples(&shown);
    let names: Vec<&str> = names_in(&shown).into_iter().collect();
    assert_eq!(
        names,
        [
            "shmlimit_active_permits",
            "shmlimit_evicted_total",
            "shmlimit_lapsed_total",
            "shmlimit_limit_capacity",
            "shmlimit_limit_remaining",
            "shmlimit_near_limit_total",
            "shmlimit_permit_seconds",
            "shmlimit_queued",
            "shmlimit_reclaimed_total",
            "shmlimit_recoveries_total",
            "shmlimit_requests_total",
            "shmlimit_wait_seconds",
            "shmlimit_would_refuse_total",
        ]
    );
    let documented = document("docs/reference/metrics.md");
    // Metrics of fleet limits are only exported if there are any.
    let of_leases = |name: &&str| name.starts_with("shmlimit_lease_") || name.starts_with("shmlimit_store_");
    let mut documented = names_in(&documented);
    documented.retain(|name| !of_leases(name));
    assert_eq!(documented, names.into_iter().collect());
    assert!(!shown.contains("secret-tenant"), "a key is no label");
    let of_tenants = format!(
        "segment=\"{}\",set=\"tenants \\\"a\\\\b\\\"\"",
        text(&other).replace('"', "\\\"").replace('\n', "\\n")
    );
    assert_eq!(
        found[&format!("shmlimit_active_permits{{{of_tenants},limit=\"in_flight\"}}")],
        1.0
    );
    assert_eq!(
        found[&format!("shmlimit_active_permits{{{of_tenants},limit=\"requests\"}}")],
        0.0
    );
    let of_api = format!("segment=\"{}\",set=\"api\"", text(&path));
    assert_eq!(
        found[&format!("shmlimit_active_permits{{{of_api},limit=\"\"}}")],
        1.0
    );
    assert!(found[&format!("shmlimit_permit_seconds{{{of_api},kind=\"oldest\"}}")] > 0.0);
    drop((permit, holding));
    if let Some((is_accepted, said)) = promtool(&["check", "metrics"], &shown) {
        assert!(is_accepted && said.is_empty(), "{said}\n{shown}");
        // The tool does find mistakes.
        let (is_accepted, said) = promtool(&["check", "metrics"], "no_such{ 1\n").expect("it was there");
        assert!(!is_accepted, "{said}");
    }
}

#[test]
fn waits_are_a_histogram_that_has_all_of_them() {
    let directory = directory();
    let path = create(directory.path());
    let segment = Segment::open(&path).expect("attached");
    let api = segment.set("api").expect("declared");
    let request = api.request();
    let take = || {
        request
            .try_acquire()
            .expect("works")
            .into_result()
            .expect("admitted")
    };
    let held: Vec<_> = (0..4).map(|_| take()).collect();
    let reader = shmlimit::snapshot::SegmentReader::open(&path).expect("a segment");
    let is_queued = || !reader.snapshot().expect("copied").sets[0].tickets.is_empty();
    let queued = |shown: &BTreeMap<String, f64>| {
        shown[&format!("shmlimit_queued{{segment=\"{}\",set=\"api\"}}", text(&path))]
    };
    let began = std::time::Instant::now();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let waited = request.acquire(support::TIMEOUT).expect("works");
            drop(waited.into_result().expect("admitted"));
        });
        let deadline = std::time::Instant::now() + support::TIMEOUT;
        while !is_queued() {
            assert!(std::time::Instant::now() < deadline, "it never waits");
            std::thread::yield_now();
        }
        let shown = samples(&run(["export", "--prometheus", text(&path)]).ended(0).stdout);
        assert_eq!(queued(&shown), 1.0);
        drop(held);
        waiting.join().expect("admitted");
    });
    let shown = samples(&run(["export", "--prometheus", text(&path)]).ended(0).stdout);
    assert_eq!(queued(&shown), 0.0);
    let name = |suffix: &str| format!("shmlimit_wait_seconds_{suffix}");
    let of_set = format!("segment=\"{}\",set=\"api\"", text(&path));
    assert_eq!(shown[&name(&format!("count{{{of_set}}}"))], 1.0);
    let sum = shown[&name(&format!("sum{{{of_set}}}"))];
    assert!(sum > 0.0 && sum < began.elapsed().as_secs_f64(), "{sum}");
    assert_eq!(shown[&name(&format!("bucket{{{of_set},le=\"+Inf\"}}"))], 1.0);
    assert_eq!(shown[&name(&format!("bucket{{{of_set},le=\"0.000001\"}}"))], 0.0);
    let mut buckets: Vec<(f64, f64)> = shown
        .iter()
        .filter_map(|(series, value)| {
            let end = series.split_once("le=\"")?.1.strip_suffix("\"}")?;
            Some((end.parse().expect("a number"), *value))
        })
        .collect();
    buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
    assert_eq!(buckets.len(), 32);
    assert!(
        buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1),
        "{buckets:?}"
    );
}

#[test]
fn openmetrics_says_the_same_in_its_own_form_which_promtool_reads() {
    let directory = directory();
    let path = create(directory.path());
    let holding = Actor::start("hold", &path);
    let other = directory.path().join("other");
    let segment = keyed(&other);
    let export = |format: &str| run(["export", format, text(&path), text(&other)]).ended(0).stdout;
    let (prometheus, open) = (export("--prometheus"), export("--openmetrics"));
    // The time that a permit has been held changes, and the first bucket's end is a power of ten.
    let comparable = |text: &str| {
        let mut samples = samples(text);
        samples.retain(|series, _| !series.starts_with("shmlimit_permit_seconds"));
        let named = samples.into_iter().map(|(series, value)| {
            let series = series.replace("le=\"0.000001\"", "le=\"1e-06\"");
            (series, value)
        });
        named.collect::<BTreeMap<_, _>>()
    };
    assert_eq!(comparable(&open), comparable(&prometheus));
    for line in [
        "# TYPE shmlimit_requests counter",
        "# TYPE shmlimit_wait_seconds histogram",
        "# UNIT shmlimit_wait_seconds seconds",
        "# TYPE shmlimit_permit_seconds gauge",
        "# UNIT shmlimit_permit_seconds seconds",
    ] {
        assert!(open.lines().any(|found| found == line), "no {line} in {open}");
    }
    assert!(!open.contains("# TYPE shmlimit_requests_total"), "{open}");
    assert_eq!(open.matches("# EOF").count(), 1);
    assert!(open.ends_with("\n# EOF\n"), "{open}");
    assert!(!prometheus.contains("# EOF") && !prometheus.contains("# UNIT"));
    drop((segment, holding));

    // The part of the tool that reads OpenMetrics stores samples, and so needs their timestamps.
    let with_instants = |text: &str| -> String {
        let lines = text.lines().map(|line| match line.starts_with('#') {
            true => format!("{line}\n"),
            false => format!("{line} 1767225600\n"),
        });
        lines.collect()
    };
    let blocks = directory.path().join("blocks");
    let file = directory.path().join("openmetrics");
    let is_read = |content: &str| {
        fs::write(&file, content).expect("written");
        let arguments = [
            "tsdb",
            "create-blocks-from",
            "openmetrics",
            text(&file),
            text(&blocks),
        ];
        promtool(&arguments, "")
    };
    if let Some((is_accepted, said)) = is_read(&with_instants(&open)) {
        assert!(is_accepted, "{said}\n{open}");
        // The tool does find mistakes: the former format has no end mark.
        let (is_accepted, said) = is_read(&with_instants(&prometheus)).expect("it was there");
        assert!(!is_accepted, "{said}");
    }
}

#[test]
fn a_file_is_replaced_at_once_and_can_be_read_by_the_collector() {
    let directory = directory();
    let path = create(directory.path());
    let output = directory.path().join("limits.prom");
    fs::write(&output, "former").expect("written");
    let former = fs::File::open(&output).expect("there");
    run(["export", "--prometheus", "--output", text(&output), text(&path)]).ended(0);
    assert!(samples(&fs::read_to_string(&output).expect("there")).len() > 10);
    assert_eq!(std::io::read_to_string(former).expect("read"), "former");
    let mode = fs::metadata(&output).expect("there").permissions().mode();
    assert_eq!(mode & 0o444, 0o444, "{mode:o}");
    let entries = fs::read_dir(directory.path()).expect("a directory").count();
    assert_eq!(entries, 2, "nothing is left over");
    let nowhere = directory.path().join("nowhere/limits.prom");
    let refused = run(["export", "--prometheus", "--output", text(&nowhere), text(&path)]).ended(69);
    assert!(refused.stderr.contains("cannot write"), "{refused:?}");
}

#[test]
fn a_segment_that_is_not_there_does_not_keep_the_others_from_being_exported() {
    let directory = directory();
    let path = create(directory.path());
    let [one, other] = ["one", "other"].map(|name| directory.path().join(name));
    let shown = run(["export", "--prometheus", text(&one), text(&path), text(&other)]).ended(69);
    assert!(samples(&shown.stdout).len() > 10);
    assert!(
        shown.stderr.contains("/one") && shown.stderr.contains("/other"),
        "{shown:?}"
    );
    run(["export", text(&path)]).ended(64);
    run(["export", "--prometheus", "--openmetrics", text(&path)]).ended(64);
}

fn document(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(root.join(path)).expect("there")
}

#[test]
fn the_dashboard_asks_for_what_is_exported_in_queries_that_prometheus_understands() {
    let directory = directory();
    let (path, shared) = (directory.path().join("limits"), directory.path().join("shared"));
    let calls = Limit::calls("calls", 10, Duration::from_secs(60)).fleet(FleetLease::new("org/calls"));
    let of_fleet = Declaration::new()
        .fleet_url("redis://127.0.0.1:1")
        .add_set(SetDeclaration::new("api").add_limit(calls));
    let segments = [
        keyed(&path),
        Segment::create(&shared, &of_fleet).expect("created"),
    ];
    let shown = run(["export", "--prometheus", text(&path), text(&shared)])
        .ended(0)
        .stdout;
    drop(segments);
    let dashboard: serde_json::Value =
        serde_json::from_str(&document("docs/grafana/shmlimit.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let queries: Vec<String> = targets
        .map(|target| target["expr"].as_str().expect("a query").to_owned())
        .collect();
    let all = queries.join("\n");
    assert_eq!(names_in(&all), names_in(&shown), "all that is exported is on it");

    let rule = |(number, query): (usize, &String)| {
        let query = query
            .replace("$__rate_interval", "5m")
            .replace("$segment", ".*")
            .replace("$set", ".*");
        serde_json::json!({ "record": format!("query:{number}"), "expr": query })
    };
    let rules: Vec<_> = queries.iter().enumerate().map(rule).collect();
    let file = directory.path().join("rules.yml");
    // JSON is YAML as well.
    let groups = serde_json::json!({ "groups": [{ "name": "dashboard", "rules": rules }] });
    fs::write(&file, groups.to_string()).expect("written");
    if let Some((is_accepted, said)) = promtool(&["check", "rules", text(&file)], "") {
        assert!(is_accepted, "{said}");
    }
}
