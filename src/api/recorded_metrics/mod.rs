//! Passes the numbers of a snapshot to the recorder of the crate `metrics`.

mod totals;

use metrics::{Key, Label, counter, gauge};

use super::snapshot::{SegmentSnapshot, SetSnapshot};
use totals::Count;

impl SegmentSnapshot {
    /// Passes counters and gauges to the recorder that the program has installed for the crate `metrics`. Does
    /// nothing if there is none.
    ///
    /// The numbers cover all processes together, so it is enough if one process of the host calls this with each
    /// scrape or every few seconds. It does not slow down requests. Names and labels are those of
    /// `limitctl export --prometheus`, without the histogram of waits: a recorder takes single values only.
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
            let labels = Labels {
                segment: &segment,
                set: &set.name,
            };
            set.record_gauges(labels);
            set.count(labels, &mut counts);
        }
        totals::accumulate(self, &mut counts);
        for total in counts {
            let (name, labels) = total.key.into_parts();
            counter!(name, labels).absolute(total.number);
        }
    }
}

/// The labels that all metrics of a set have.
#[derive(Clone, Copy)]
struct Labels<'a> {
    segment: &'a str,
    set: &'a str,
}

impl Labels<'_> {
    fn and(self, more: &[(&'static str, &str)]) -> Vec<Label> {
        let of_all = [("segment", self.segment), ("set", self.set)];
        let labels = of_all.iter().chain(more);
        labels
            .map(|(name, value)| Label::new(*name, (*value).to_owned()))
            .collect()
    }
}

impl SetSnapshot {
    fn record_gauges(&self, labels: Labels<'_>) {
        let active_permits = |limit: &str, number: u64| {
            gauge!("shmlimit_active_permits", labels.and(&[("limit", limit)])).set(number as f64);
        };
        if self.hold_capacity > 0 {
            active_permits("", self.active);
            for limit in &self.limits {
                active_permits(&limit.name, self.active_permits(&limit.name));
            }
        }
        gauge!("shmlimit_queued", labels.and(&[])).set(self.queued() as f64);
    }

    fn count(&self, labels: Labels<'_>, counts: &mut Vec<Count>) {
        let mut add = |name: &'static str, more: &[(&'static str, &str)], number: u64| {
            counts.push(Count {
                key: Key::from_parts(name, labels.and(more)),
                created: self.created,
                number,
            });
        };
        for (result, number) in [
            ("admitted", self.counts.admitted),
            ("refused", self.counts.refused()),
            ("timed_out", self.counts.timed_out),
        ] {
            add(
                "shmlimit_requests_total",
                &[("limit", ""), ("result", result)],
                number,
            );
        }
        for limit in &self.limits {
            let of_limit = ("limit", limit.name.as_str());
            for (result, number) in [
                ("admitted", limit.counts.admitted),
                ("refused", limit.counts.refused),
            ] {
                add("shmlimit_requests_total", &[of_limit, ("result", result)], number);
            }
            add("shmlimit_near_limit_total", &[of_limit], limit.counts.near);
            add(
                "shmlimit_would_refuse_total",
                &[of_limit],
                limit.counts.would_refuse,
            );
        }
        add("shmlimit_lapsed_total", &[], self.counts.lapsed);
        add("shmlimit_reclaimed_total", &[], self.counts.reclaimed);
        add("shmlimit_recoveries_total", &[], self.counts.recoveries);
        if let Some(keys) = &self.keys {
            for (kind, number) in [("in_use", keys.evicted_in_use), ("unused", keys.evicted_unused)] {
                add("shmlimit_evicted_total", &[("kind", kind)], number);
            }
        }
    }
}
