//! Passes the numbers of a snapshot to the recorder of the crate `metrics`.

mod totals;

use metrics::{Key, Label, counter, gauge};

use super::metric::{Metric, MetricKind, MetricValue};
use super::snapshot::{SegmentSnapshot, SetSnapshot};
use totals::Count;

impl SegmentSnapshot {
    /// Passes counters and gauges to the recorder that the program has installed for the crate `metrics`. Does
    /// nothing if there is none.
    ///
    /// The numbers cover all processes together, so it is enough if one process of the host calls this with each
    /// scrape or every few seconds. It does not slow down requests. Names and labels are those of
    /// `limitctl export --prometheus` ([`Metric::all`]), without the histogram of waits: a recorder takes single values
    /// only. Its counters are whole numbers, so an amount of a limit whose units are fractions is rounded down in a counter.
    ///
    /// A recorder's counters never fall. If the counters of the segment are reset, or another segment takes its path,
    /// those of the recorder continue from where they are: each is the sum of what this process has seen.
    ///
    /// ```
    /// # use shmlimit::snapshot::SegmentReader;
    /// # use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("limits");
    /// # let declaration = Declaration::new()
    /// #     .add_set(SetDeclaration::new("api").add_limit(Limit::concurrency("in_flight", 8)));
    /// # let _segment = Segment::create(&path, &declaration)?;
    /// let reader = SegmentReader::open(&path)?;
    /// reader.snapshot()?.record_metrics();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn record_metrics(&self) {
        let segment = self.path.to_string_lossy();
        let mut counts = Vec::new();
        for set in &self.sets {
            set.record(&segment, &mut counts);
        }
        totals::accumulate(self, &mut counts);
        for total in counts {
            let (name, labels) = total.key.into_parts();
            counter!(name, labels).absolute(total.number);
        }
    }
}

impl SetSnapshot {
    /// Records the gauges, and adds the counters to `counts`.
    fn record(&self, segment: &str, counts: &mut Vec<Count>) {
        for metric in Metric::all() {
            for sample in metric.samples(self) {
                let of_all = [("segment", segment), ("set", &self.name)];
                let labels = of_all.iter().chain(&sample.labels);
                let labels: Vec<Label> = labels
                    .map(|(name, value)| Label::new(*name, (*value).to_owned()))
                    .collect();
                match metric.kind {
                    MetricKind::Gauge => gauge!(metric.name, labels).set(sample.value.as_float()),
                    MetricKind::Counter => counts.push(Count {
                        key: Key::from_parts(metric.name, labels),
                        created: self.created,
                        number: sample.value.as_whole_number(),
                    }),
                    MetricKind::Histogram => {}
                }
            }
        }
    }
}

impl MetricValue<'_> {
    fn as_float(&self) -> f64 {
        match self {
            Self::Count(count) => *count as f64,
            Self::Amount(amount) => amount.parse().unwrap_or_default(),
            Self::Time(time) => time.as_secs_f64(),
            Self::Distribution { sum, .. } => sum.as_secs_f64(),
        }
    }

    /// Rounded down.
    fn as_whole_number(&self) -> u64 {
        match self {
            Self::Count(count) => *count,
            Self::Amount(amount) => {
                let whole = amount.split_once('.').map_or(&**amount, |(whole, _)| whole);
                whole.parse().unwrap_or_default()
            }
            Self::Time(time) | Self::Distribution { sum: time, .. } => time.as_secs(),
        }
    }
}
