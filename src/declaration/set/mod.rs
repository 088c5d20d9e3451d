//! A set of limits, as it is declared.

pub(super) mod keyed;
mod keyed_checks;
pub(crate) mod tier;
mod tiers_of_set;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::limit::Limit;
use super::limit::window::Window;
use super::location::{Location, check_label, check_name, check_range};
use super::options::fleet::FleetOptions;
use crate::choices::Kind;
use crate::engine::terms::plan::{LimitPlan, SetPlan, share_refund_words};
use crate::error::DeclarationError;
use crate::table;
use keyed::Keyed;
use tier::Tier;

const MAX_LIMITS: u64 = 16;
const MAX_METADATA: u64 = 32;
const MAX_METADATA_VALUE_BYTES: u64 = 256;
const MAX_HOLDS: u64 = 65_536;
const MAX_WAITERS: u64 = 65_536;

/// Enough for 5,000 tasks of one server at once; 640 KiB of the file with one limit, at 128 bytes per waiter.
const WAITERS: u32 = 5_120;

/// Enough for 500 tasks at once on one key, whose waiters are all in one shard; 64 KiB per shard with one limit.
const WAITERS_OF_A_SHARD: u32 = 512;
const MIN_HOLDS: u64 = 64;
const MAX_HOLDS_OF_A_SHARD: u64 = 4096;
/// The holds of a limit that has no capacity to derive them from.
const HOLDS_WITHOUT_CAPACITY: u64 = 1024;

/// How long a grant is kept for its waiter by default.
const COLLECT_WITHIN: Duration = Duration::from_secs(1);
const MIN_COLLECT_WITHIN: Duration = Duration::from_millis(100);
const MAX_COLLECT_WITHIN: Duration = Duration::from_secs(3600);

/// Limits that are taken together, in one atomic step.
///
/// ```
/// use std::time::Duration;
/// use shmlimit::{Limit, SetDeclaration};
///
/// let openai = SetDeclaration::new("openai")
///     .add_metadata("region", "us-east-1")
///     .add_limit(Limit::calls("requests", 10_000, Duration::from_secs(60)))
///     .add_limit(Limit::concurrency("in_flight", 64));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[must_use]
pub struct SetDeclaration {
    pub(super) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) shadow: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) holds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) waiters: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) labels: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) collect_within: Option<Window>,
    #[serde(
        default,
        deserialize_with = "keyed::table_or_max_keys",
        skip_serializing_if = "Option::is_none"
    )]
    pub(super) keyed: Option<Keyed>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) metadata: BTreeMap<String, String>,
    #[serde(default, rename = "limit")]
    pub(super) limits: Vec<Limit>,
    #[serde(default, rename = "tier", skip_serializing_if = "Vec::is_empty")]
    pub(super) tiers: Vec<Tier>,
}

impl SetDeclaration {
    /// A set without limits. It needs 1 to 16.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            shadow: None,
            holds: None,
            waiters: None,
            labels: None,
            collect_within: None,
            keyed: None,
            metadata: BTreeMap::new(),
            limits: Vec::new(),
            tiers: Vec::new(),
        }
    }

    /// Adds a limit.
    pub fn add_limit(mut self, limit: Limit) -> Self {
        self.limits.push(limit);
        self
    }

    /// Adds a tier to a [keyed](Self::keyed) set: other quotas for the keys in it. A set has at most 255 tiers. They
    /// take no memory in the rows of keys.
    pub fn add_tier(mut self, tier: Tier) -> Self {
        self.tiers.push(tier);
        self
    }

    /// Adds an entry that every permit of the set carries: at most 32, each with a key of 1 to 64 bytes without
    /// control characters and a value of at most 256 bytes. Adding a key again replaces its value.
    pub fn add_metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }

    /// Gives every key its own state for each limit of the set, in a table of declared capacity. Requests must then
    /// name a key. By default, the set has one state for all.
    pub fn keyed(mut self, keyed: Keyed) -> Self {
        self.keyed = Some(keyed);
        self
    }

    /// Whether the limits of the set only decide and count, and never refuse, to try them out before they take
    /// effect; false by default. [`Limit::shadow`] does the same for a single limit.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// let mail = SetDeclaration::new("mail").shadow(true).add_limit(Limit::calls("sent", 1, Duration::from_secs(3600)));
    /// # let segment = Segment::create(directory.path().join("limits"), &Declaration::new().add_set(mail))?;
    /// # let mail = segment.set("mail")?;
    /// for _ in 0..3 {
    ///     assert!(mail.request().check()?.is_admitted());
    /// }
    /// assert_eq!(segment.snapshot()?.sets[0].limits[0].counts.would_refuse, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shadow(mut self, shadow: bool) -> Self {
        self.shadow = Some(shadow);
        self
    }

    /// How many permits can hold something at once, from 1 to 65536.
    ///
    /// Permits of a set with a concurrency limit hold something, and so do batches of [credit](Limit::credit). The
    /// default is 4 times the sum of the capacities of the concurrency limits (1024 for each unlimited one), at least
    /// 64 and at most 65536, so that there is room to [raise](crate::Segment::apply) them; with credit, it is 1024
    /// batches. A set in which nothing is held has no holds. An [adaptive](Limit::adaptive) capacity counts as its
    /// ceiling.
    ///
    /// In a [keyed](Self::keyed) set, the number is for each shard of its table. By default, every key can have one such
    /// permit at the same time, up to 65536 in the whole table, and the number is at least 4 times the sum of the
    /// capacities of one key, up to 4096. A set with limits of [all keys](Limit::scope) has one shard. A hold takes 64
    /// bytes, and 64 more for every 8 limits that are held.
    pub fn holds(mut self, holds: u32) -> Self {
        self.holds = Some(holds);
        self
    }

    /// How many requests can wait in the queue at once, from 0 to 65536; 5120 by default. One more is refused at
    /// once, even without a timeout: [`RefusalReason::QueueFull`](crate::RefusalReason::QueueFull). In a
    /// [keyed](Self::keyed) set, the number is for each shard of its table, and 512 by default; all waiters of one
    /// key are in one shard. A set with limits of [all keys](Limit::scope) has one shard, and 5120 by default.
    ///
    /// Each takes 88 bytes of the file and 24 for every limit of the set, rounded up to a multiple of 64: 128 with
    /// one limit, 192 with four. So the default is 640 KiB for a set of one limit, and 64 KiB for each shard of a
    /// keyed one.
    pub fn waiters(mut self, waiters: u32) -> Self {
        self.waiters = Some(waiters);
        self
    }

    /// Whether holds show the [labels](crate::Request::label) of their requests to all processes: in
    /// [snapshots](crate::snapshot::HoldSnapshot::label), and in the output of `limitctl inspect` and `show`. By default,
    /// labels appear only in [events](crate::OpenOptions::on_request_event).
    ///
    /// Each of the [holds](Self::holds) then takes 72 more bytes; otherwise it costs nothing. It requires a
    /// concurrency limit, so that something is held. Like the number of holds it is fixed in the file, and
    /// [`apply`](crate::Segment::apply) does not change it.
    pub fn labels(mut self, labels: bool) -> Self {
        self.labels = Some(labels);
        self
    }

    /// How long a grant is kept for its waiter while others wait, from 100 ms to an hour; a second by default. A
    /// process that is stopped, or whose event loop is blocked, does not collect it. The grant is then taken back,
    /// including what it took of rates, the other requests of that process are passed over until it looks again, and
    /// those behind them are served. Choose a time longer than any pause of a healthy process, such as one for garbage
    /// collection.
    ///
    /// [`apply`](crate::Segment::apply) changes it in a live segment, even for earlier grants.
    pub fn collect_within(mut self, collect_within: Duration) -> Self {
        self.collect_within = Some(Window::Span(collect_within));
        self
    }

    /// The set's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The limits, in the order of the declaration.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// The tiers, in the order of the declaration, without `default`.
    pub fn tiers(&self) -> &[Tier] {
        &self.tiers
    }

    /// The plan for the engine, in a segment of that fleet.
    pub(super) fn compile(&self, fleet: Option<&FleetOptions>) -> Result<SetPlan, DeclarationError> {
        let place = Location {
            set: &self.name,
            tier: None,
            limit: None,
        };
        check_range(|| place.field("limits"), self.limits.len() as u64, 1, MAX_LIMITS)?;
        self.check_metadata(&place)?;
        if let Some(keyed) = &self.keyed {
            keyed.check(&place)?;
        }
        let waiters = self.effective_waiters();
        check_range(|| place.field("waiters"), waiters.into(), 0, MAX_WAITERS)?;

        let mut names = HashSet::new();
        let mut limits = Vec::with_capacity(self.limits.len());
        for (index, limit) in self.limits.iter().enumerate() {
            check_name(|| format!("{} / limit {}", place.here(), index + 1), &limit.name)?;
            let place = Location {
                limit: Some(&limit.name),
                ..place
            };
            if !names.insert(&limit.name) {
                return Err(DeclarationError::Duplicate { place: place.here() });
            }
            if let (Some(true), Some(false)) = (self.shadow, limit.shadow) {
                return Err(DeclarationError::Misplaced {
                    place: place.field("shadow"),
                    given: "false".to_owned(),
                    advice: "the whole set is declared with shadow = true; remove it there, and declare it for the \
                             limits that are to be tried"
                        .to_owned(),
                });
            }
            let is_keyed = self.keyed.is_some();
            limit.check_fleet(&place, is_keyed, fleet)?;
            // Each row would need the room, so a keyed set has room only for the leases that it declares.
            let has_lease_room =
                fleet.is_some() && limit.can_be_leased() && (!is_keyed || limit.fleet.is_some());
            let plan = self
                .with_entries(limit)
                .compile(&place, is_keyed, has_lease_room)?;
            limits.push(LimitPlan {
                shadow: plan.shadow || self.shadow == Some(true),
                ..plan
            });
        }
        self.check_scopes(&place)?;
        self.check_prefixes(&place)?;
        share_refund_words(&mut limits);
        let tiers = self.compile_tiers(&place, &limits)?;
        self.check_overrides(&place, &limits)?;
        self.check_credit(&place)?;
        Ok(SetPlan {
            name: self.name.clone(),
            limits,
            tiers,
            metadata: Arc::new(self.metadata.clone()),
            keyed: self.keyed.as_ref().map(Keyed::plan),
            hold_capacity: self.hold_capacity(&place)?,
            labels: self.keeps_labels(&place)?,
            collect_within: self.checked_collect_within(&place)?,
            version: None,
            is_edited: false,
            waiters,
        })
    }

    fn check_metadata(&self, place: &Location<'_>) -> Result<(), DeclarationError> {
        check_range(
            || place.field("metadata"),
            self.metadata.len() as u64,
            0,
            MAX_METADATA,
        )?;
        for (key, value) in &self.metadata {
            check_label(|| place.field("metadata"), key)?;
            let bytes = || format!("{} / bytes", place.field(&format!("metadata / {key:?}")));
            check_range(bytes, value.len() as u64, 0, MAX_METADATA_VALUE_BYTES)?;
        }
        Ok(())
    }

    fn hold_capacity(&self, place: &Location<'_>) -> Result<u32, DeclarationError> {
        let by_default = self.default_holds();
        let Some(holds) = self.holds else {
            return Ok(by_default);
        };
        if by_default > 0 {
            check_range(|| place.field("holds"), holds.into(), 1, MAX_HOLDS)?;
        } else if holds > 0 {
            return Err(DeclarationError::Misplaced {
                place: place.field("holds"),
                given: holds.to_string(),
                advice: "no limit of the set gives anything back; remove it, or add a concurrency limit"
                    .to_owned(),
            });
        }
        Ok(holds)
    }

    /// Whether holds are labelled. Only possible if they belong to permits.
    fn keeps_labels(&self, place: &Location<'_>) -> Result<bool, DeclarationError> {
        let labels = self.labels.unwrap_or(false);
        let has_credit = self.limits.iter().any(|limit| limit.credit.is_some());
        if labels && (has_credit || self.default_holds() == 0) {
            return Err(DeclarationError::Misplaced {
                place: place.field("labels"),
                given: "true".to_owned(),
                advice: if has_credit {
                    "with credit processes hold batches, which many requests are admitted from; remove it"
                } else {
                    "no limit of the set gives anything back, so that there is nothing held to label; remove it, or add a \
                     concurrency limit"
                }
                .to_owned(),
            });
        }
        Ok(labels)
    }

    /// How long a grant is kept, in nanoseconds.
    fn checked_collect_within(&self, place: &Location<'_>) -> Result<u64, DeclarationError> {
        match self.collect_within.unwrap_or(Window::Span(COLLECT_WITHIN)) {
            // At most an hour.
            Window::Span(time) if (MIN_COLLECT_WITHIN..=MAX_COLLECT_WITHIN).contains(&time) => {
                Ok(time.as_nanos() as u64)
            }
            given => Err(place.value(
                "collect_within",
                given,
                "is not a time to keep a grant for: choose from \"100ms\" to \"1h\"",
            )),
        }
    }

    /// The default number of holds. Zero exactly if nothing is given back.
    fn default_holds(&self) -> u32 {
        let held = self
            .limits
            .iter()
            .filter(|limit| limit.kind == Kind::Concurrency)
            .map(|limit| {
                self.max_units_in_any_tier(limit)
                    .unwrap_or(HOLDS_WITHOUT_CAPACITY)
            })
            .reduce(u64::saturating_add);
        let drawn = || {
            self.limits
                .iter()
                .any(|limit| limit.credit.is_some())
                .then_some(HOLDS_WITHOUT_CAPACITY)
        };
        // More than the capacities add up to, so that they can be raised while the segment is in use.
        let with_room = |held: u64, max| held.saturating_mul(4).clamp(MIN_HOLDS, max);
        let holds = if self.has_overall() {
            // All of them are in one shard. No more permits can hold a limit of all keys than its capacity.
            let is_of_keys = |limit: &Limit| limit.kind == Kind::Concurrency && !limit.is_overall();
            let keyed = self.keyed.as_ref().filter(|_| self.limits.iter().any(is_of_keys));
            let one_each = keyed.map_or(0, |keyed| table::holds_for(keyed.max_keys, 1, MAX_HOLDS));
            held.map(|held| with_room(held, MAX_HOLDS).max(one_each))
        } else if let Some(keyed) = &self.keyed {
            // Keys are independent of one another: none should be refused because others hold something.
            let shards = table::shards_for(keyed.max_keys);
            let one_each = table::holds_for(keyed.max_keys, shards, MAX_HOLDS);
            held.map(|held| with_room(held, MAX_HOLDS_OF_A_SHARD))
                .or_else(|| drawn().map(|_| MIN_HOLDS))
                .map(|holds| holds.max(one_each))
        } else {
            held.map(|held| with_room(held, MAX_HOLDS)).or_else(drawn)
        };
        // At most 65536, because of the clamps.
        holds.map_or(0, |holds| holds as u32)
    }

    fn effective_waiters(&self) -> u32 {
        let by_default = if self.keyed.is_some() && !self.has_overall() {
            WAITERS_OF_A_SHARD
        } else {
            WAITERS
        };
        self.waiters.unwrap_or(by_default)
    }

    /// How many limits have calendar windows.
    pub(crate) fn calendar_windows(&self) -> usize {
        let is_calendar = |limit: &&Limit| limit.window.is_some_and(Window::is_calendar);
        self.limits.iter().filter(is_calendar).count()
    }

    /// The same set with every default written out: see [`Limit::canonical`]. What is declared for all limits is
    /// written into each of them.
    pub(super) fn canonical(&self) -> Self {
        let limit = |limit: &Limit| {
            let limit = self.with_entries(limit).canonical();
            let shadow = Some(limit.shadow == Some(true) || self.shadow == Some(true));
            Limit { shadow, ..limit }
        };
        Self {
            name: self.name.clone(),
            shadow: None,
            holds: Some(self.holds.unwrap_or_else(|| self.default_holds())),
            waiters: Some(self.effective_waiters()),
            labels: self.labels.filter(|labels| *labels),
            collect_within: self
                .collect_within
                .filter(|time| *time != Window::Span(COLLECT_WITHIN)),
            keyed: self.keyed.as_ref().map(Keyed::canonical),
            metadata: self.metadata.clone(),
            limits: self.limits.iter().map(limit).collect(),
            tiers: self.canonical_tiers(),
        }
    }
}
