//! Passes the numbers of a snapshot to the recorder of the crate `metrics`.

use metrics::{Label, counter, gauge};

use super::snapshot::{SegmentSnapshot, SetSnapshot};

impl SegmentSnapshot {
    /// Passes counters and gauges to the recorder that the program has installed for the crate `metrics`. Does
    /// nothing if there is none.
    ///
    /// The numbers cover all processes together, so it is enough if one process of the host calls this with each
    /// scrape or every few seconds. It does not slow down requests. Names and labels are those of
    /// `limitctl export --prometheus`, without the histogram of waits: a recorder takes single values only.
    ///
    /// ```
    /// # use shmlimit::{Declaration, Limit, Segment, SegmentReader, SetDeclaration};
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
        for set in &self.sets {
            set.record(&segment);
        }
    }
}

impl SetSnapshot {
    fn record(&self, segment: &str) {
        let labels = |more: &[(&'static str, &str)]| {
            let mut labels = vec![
                Label::new("segment", segment.to_owned()),
                Label::new("set", self.name.clone()),
            ];
            labels.extend(
                more.iter()
                    .map(|(name, value)| Label::new(*name, (*value).to_owned())),
            );
            labels
        };
        let requests = |limit: &str, result: &str, number: u64| {
            let labels = labels(&[("limit", limit), ("result", result)]);
            counter!("shmlimit_requests_total", labels).absolute(number);
        };
        let active_permits = |limit: &str, number: u64| {
            gauge!("shmlimit_active_permits", labels(&[("limit", limit)])).set(number as f64);
        };
        let holds_anything = self.hold_capacity > 0;

        requests("", "admitted", self.counts.admitted);
        requests("", "refused", self.counts.refused());
        requests("", "timed_out", self.counts.timed_out);
        if holds_anything {
            active_permits("", self.active);
        }
        for limit in &self.limits {
            requests(&limit.name, "admitted", limit.counts.admitted);
            requests(&limit.name, "refused", limit.counts.refused);
            if holds_anything {
                active_permits(&limit.name, self.active_permits(&limit.name));
            }
            counter!("shmlimit_near_limit_total", labels(&[("limit", &limit.name)]))
                .absolute(limit.counts.near);
        }
        gauge!("shmlimit_queued", labels(&[])).set(self.queued() as f64);
        counter!("shmlimit_lapsed_total", labels(&[])).absolute(self.counts.lapsed);
        counter!("shmlimit_reclaimed_total", labels(&[])).absolute(self.counts.reclaimed);
        counter!("shmlimit_recoveries_total", labels(&[])).absolute(self.counts.recoveries);
        if let Some(keys) = &self.keys {
            for (kind, number) in [("in_use", keys.evicted_in_use), ("unused", keys.evicted_unused)] {
                counter!("shmlimit_evicted_total", labels(&[("kind", kind)])).absolute(number);
            }
        }
    }
}
