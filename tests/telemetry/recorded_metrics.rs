//! What a program's recorder of metrics is given, compared with what was asked of the limits.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use shmlimit::declare::FleetLease;
use shmlimit::snapshot::{Metric, MetricKind, MetricValue, SegmentReader};
use shmlimit::{Declaration, Keyed, Limit, LimitSet, OpenOptions, Removal, Segment, SetDeclaration};

const HOUR: Duration = Duration::from_secs(3600);

/// Keeps the last value of each metric, by its name and labels as they are written.
#[derive(Default)]
struct LastValues {
    counters: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    gauges: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
}

fn written(key: &Key) -> String {
    // Which segment does not matter: each test has only one.
    let labels = key.labels().filter(|label| label.key() != "segment");
    let labels: Vec<String> = labels
        .map(|label| format!("{}={}", label.key(), label.value()))
        .collect();
    format!("{} {}", key.name(), labels.join(","))
}

impl Recorder for LastValues {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let mut counters = self.counters.lock().expect("not poisoned");
        Counter::from_arc(Arc::clone(counters.entry(written(key)).or_default()))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        let mut gauges = self.gauges.lock().expect("not poisoned");
        Gauge::from_arc(Arc::clone(gauges.entry(written(key)).or_default()))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        panic!("there is none");
    }
}

impl LastValues {
    fn counter(&self, name: &str) -> u64 {
        let counters = self.counters.lock().expect("not poisoned");
        let counter = counters
            .get(name)
            .unwrap_or_else(|| panic!("no {name} in {counters:?}"));
        counter.load(Ordering::Relaxed)
    }

    fn gauge(&self, name: &str) -> f64 {
        let gauges = self.gauges.lock().expect("not poisoned");
        let gauge = gauges
            .get(name)
            .unwrap_or_else(|| panic!("no {name} in {gauges:?}"));
        f64::from_bits(gauge.load(Ordering::Relaxed))
    }
}

#[test]
fn a_recorder_is_given_the_counts_of_all_processes_and_no_key() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits");
    let day = Duration::from_secs(86_400);
    let declaration = shmlimit::Declaration::new()
        .add_set(
            SetDeclaration::new("chat")
                .add_limit(Limit::calls("requests", 4, day))
                .add_limit(Limit::concurrency("in_flight", 8)),
        )
        .add_set(
            SetDeclaration::new("tenants")
                .keyed(Keyed::new(100))
                .add_limit(Limit::calls("requests", 5, day)),
        );
    let segment = shmlimit::Segment::create(&path, &declaration).expect("created");
    let chat = segment.set("chat").expect("declared");
    let held: Vec<_> = (0..7)
        .map(|_| chat.request().try_acquire().expect("works"))
        .collect();
    let tenants = segment.set("tenants").expect("declared");
    let request = tenants.request().for_key("secret-tenant").expect("keyed");
    assert!(request.check().expect("works").is_admitted());

    let reader = SegmentReader::open(&path).expect("opened");
    let recorder = LastValues::default();
    let record = || {
        let snapshot = reader.snapshot().expect("copied");
        metrics::with_local_recorder(&recorder, || snapshot.record_metrics());
    };
    record();
    for (name, number) in [
        ("shmlimit_requests_total set=chat,limit=,result=admitted", 4),
        ("shmlimit_requests_total set=chat,limit=,result=refused", 3),
        ("shmlimit_requests_total set=chat,limit=,result=timed_out", 0),
        (
            "shmlimit_requests_total set=chat,limit=requests,result=refused",
            3,
        ),
        (
            "shmlimit_requests_total set=chat,limit=in_flight,result=refused",
            0,
        ),
        (
            "shmlimit_requests_total set=tenants,limit=requests,result=admitted",
            1,
        ),
        ("shmlimit_lapsed_total set=chat", 0),
        ("shmlimit_reclaimed_total set=chat", 0),
        ("shmlimit_recoveries_total set=chat", 0),
        ("shmlimit_evicted_total set=tenants,kind=in_use", 0),
        ("shmlimit_evicted_total set=tenants,kind=unused", 0),
    ] {
        assert_eq!(recorder.counter(name), number, "{name}");
    }
    assert_eq!(recorder.gauge("shmlimit_active_permits set=chat,limit="), 4.0);
    assert_eq!(
        recorder.gauge("shmlimit_active_permits set=chat,limit=in_flight"),
        4.0
    );
    assert_eq!(recorder.gauge("shmlimit_queued set=chat"), 0.0);
    let names = format!("{:?}{:?}", recorder.counters, recorder.gauges);
    assert!(!names.contains("secret-tenant"), "{names}");
    // Values that are recorded later replace these.
    drop(held);
    record();
    assert_eq!(recorder.gauge("shmlimit_active_permits set=chat,limit="), 0.0);
    assert_eq!(
        recorder.counter("shmlimit_requests_total set=chat,limit=,result=admitted"),
        4
    );
}

/// Compares what a recorder is given with the list of metrics, which is also what `limitctl export` prints.
#[test]
fn a_recorder_is_given_every_metric_except_histograms_with_the_values_that_are_exported() {
    let directory = tempfile::tempdir().expect("a directory");
    let declaration = Declaration::new()
        .fleet_url("redis://127.0.0.1:1")
        .add_set(
            SetDeclaration::new("shared")
                .add_limit(Limit::calls("calls", 10, HOUR).fleet(FleetLease::new("calls")))
                .add_limit(Limit::concurrency("places", 10)),
        )
        .add_set(SetDeclaration::new("billed").add_limit(Limit::rate("money", 2_500, HOUR).unit("0.001")))
        .add_set(
            SetDeclaration::new("keyed")
                .keyed(Keyed::new(10))
                .add_limit(Limit::calls("calls", 10, HOUR)),
        );
    let segment = Segment::create(directory.path().join("limits"), &declaration).expect("created");
    let keyed = segment.set("keyed").expect("declared");
    let request = keyed.request().for_key("someone").expect("keyed");
    assert!(request.check().expect("works").is_admitted());
    let billed = segment.set("billed").expect("declared");
    let request = billed.request().with("money", 123).expect("declared");
    assert!(request.check().expect("works").is_admitted());
    let snapshot = segment.snapshot().expect("copied");
    let recorder = LastValues::default();
    metrics::with_local_recorder(&recorder, || snapshot.record_metrics());

    let mut counters = BTreeMap::new();
    let mut gauges = BTreeMap::new();
    for metric in Metric::all() {
        let mut is_sampled = false;
        for set in &snapshot.sets {
            for sample in metric.samples(set) {
                is_sampled = true;
                let labels = [("set", &*set.name)].into_iter().chain(sample.labels);
                let labels: Vec<String> = labels.map(|(name, value)| format!("{name}={value}")).collect();
                let value = match &sample.value {
                    MetricValue::Count(count) => *count as f64,
                    MetricValue::Amount(amount) => amount.parse().expect("a number"),
                    MetricValue::Time(time) => time.as_secs_f64(),
                    _ => continue,
                };
                let key = format!("{} {}", metric.name, labels.join(","));
                match metric.kind {
                    MetricKind::Counter => counters.insert(key, value),
                    MetricKind::Gauge => gauges.insert(key, value),
                    _ => panic!("{key} is neither"),
                };
            }
        }
        assert!(is_sampled, "{} is a metric of no set", metric.name);
    }
    let recorded = |values: &Mutex<BTreeMap<String, Arc<AtomicU64>>>, read: fn(u64) -> f64| {
        let values = values.lock().expect("not poisoned");
        values
            .iter()
            .map(|(key, value)| (key.clone(), read(value.load(Ordering::Relaxed))))
            .collect::<BTreeMap<_, _>>()
    };
    assert_eq!(recorded(&recorder.counters, |count| count as f64), counters);
    assert_eq!(recorded(&recorder.gauges, f64::from_bits), gauges);
    let billed = snapshot.sets.iter().find(|set| set.name == "billed");
    let remaining = billed.expect("declared").limits[0].remaining;
    assert_eq!(
        gauges["shmlimit_limit_remaining set=billed,limit=money"],
        remaining as f64 / 1_000.0
    );
}

const DAY: Duration = Duration::from_secs(86_400);

/// A limit of two calls a day, and one in shadow, of which only what it would have refused is reported.
fn created(path: &Path) -> Segment {
    let limits = SetDeclaration::new("api")
        .add_limit(Limit::calls("requests", 2, DAY))
        .add_limit(Limit::calls("tried", 1, DAY).shadow(true));
    Segment::create(path, &Declaration::new().add_set(limits)).expect("created")
}

fn ask(set: &LimitSet, times: usize) {
    for _ in 0..times {
        drop(set.request().try_acquire().expect("works"));
    }
}

#[track_caller]
fn counted(recorder: &LastValues, segment: &Segment, [admitted, refused, would_refuse]: [u64; 3]) {
    let snapshot = segment.snapshot().expect("copied");
    metrics::with_local_recorder(recorder, || snapshot.record_metrics());
    for (name, number) in [
        ("shmlimit_requests_total set=api,limit=,result=admitted", admitted),
        (
            "shmlimit_requests_total set=api,limit=requests,result=refused",
            refused,
        ),
        ("shmlimit_would_refuse_total set=api,limit=tried", would_refuse),
        ("shmlimit_would_refuse_total set=api,limit=requests", 0),
    ] {
        assert_eq!(recorder.counter(name), number, "{name}");
    }
}

#[test]
fn counters_go_on_where_a_segment_is_made_anew_or_its_counters_are_reset() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits");
    let recorder = LastValues::default();
    let first = created(&path);
    ask(&first.set("api").expect("declared"), 5);
    counted(&recorder, &first, [2, 3, 1]);
    counted(&recorder, &first, [2, 3, 1]);
    OpenOptions::new()
        .remove(&path, Removal::Forced)
        .expect("removed");

    // As many as before, so that not even the sum shows that it is another segment.
    let second = created(&path);
    let set = second.set("api").expect("declared");
    ask(&set, 5);
    counted(&recorder, &second, [4, 6, 2]);
    set.reset().counters().run().expect("works");
    ask(&set, 1);
    counted(&recorder, &second, [5, 6, 2]);
}

#[test]
fn a_copy_that_is_recorded_late_is_no_reset() {
    let directory = tempfile::tempdir().expect("a directory");
    let segment = created(&directory.path().join("limits"));
    let set = segment.set("api").expect("declared");
    let recorder = LastValues::default();
    ask(&set, 1);
    let early = segment.snapshot().expect("copied");
    ask(&set, 1);
    counted(&recorder, &segment, [2, 0, 1]);
    metrics::with_local_recorder(&recorder, || early.record_metrics());
    counted(&recorder, &segment, [2, 0, 1]);
}

#[test]
fn a_set_of_a_directory_that_is_made_anew_starts_no_other_over() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits.d");
    let set = |name: &str| SetDeclaration::new(name).add_limit(Limit::calls("calls", 100, HOUR));
    let declaration = Declaration::new().add_set(set("chat")).add_set(set("mail"));
    let recorder = LastValues::default();
    let mut admitted = Vec::new();
    for _ in 0..3 {
        let segment = Segment::open_or_create(&path, &declaration).expect("opened");
        for set in segment.sets() {
            assert!(set.request().check().expect("works").is_admitted());
        }
        let snapshot = SegmentReader::open(&path)
            .expect("opened")
            .snapshot()
            .expect("copied");
        metrics::with_local_recorder(&recorder, || snapshot.record_metrics());
        admitted.push(["chat", "mail"].map(|set| {
            recorder.counter(&format!(
                "shmlimit_requests_total set={set},limit=,result=admitted"
            ))
        }));
        // Removes the set that was created first.
        OpenOptions::new()
            .remove(path.join("chat"), Removal::Forced)
            .expect("removed");
    }
    assert_eq!(admitted, [[1, 1], [2, 2], [3, 3]]);
}
