//! Declarations of what a segment holds, from TOML or from code: checked and compiled to plans.

mod canonical;
mod changes;
mod comparison;
mod compile;
mod file_of_set;
mod known_fields;
mod limit;
mod location;
mod options;
pub(crate) mod set;
mod shared_limits;
pub(crate) mod stored;
mod toml_text;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use limit::adaptive::Adaptive;
pub use limit::amount::Amount;
pub(crate) use limit::amount::{InvalidAmount, Scale};
pub use limit::bound::Bound;
pub use limit::credit::Credit;
pub use limit::fields::ValueForm;
pub use limit::fleet_lease::FleetLease;
pub use limit::limit_options::LimitOptions;
pub use limit::time_zone::TimeZone;
pub use limit::window::{Weekday, Window};
pub use limit::{Algorithm, Align, Limit};
use location::{check_name, check_range};
pub use options::checkpoint::Checkpoint;
pub use options::clock_source::ClockSource;
use options::file_mode::FileMode;
pub use options::fleet::FleetOptions;
pub use options::segment_options::SegmentOptions;
pub use set::SetDeclaration;
pub use set::keyed::Keyed;
pub use set::tier::Tier;

use crate::choices::LockKind;
use crate::engine::terms::plan::SetPlan;
use crate::error::DeclarationError;
use crate::shm::file::verified::CreationOptions;

const MAX_SETS: u64 = 1024;

/// What a segment holds: its sets, and how its file is created.
///
/// # In code
///
/// ```
/// use std::time::Duration;
/// use shmlimit::{Algorithm, Declaration, Limit, SetDeclaration};
///
/// let minute = Duration::from_secs(60);
/// let declaration = Declaration::new().participants(64).add_set(
///     SetDeclaration::new("openai")
///         .add_metadata("region", "us-east-1")
///         .add_limit(Limit::calls("requests", 10_000, minute).algorithm(Algorithm::SlidingWindow))
///         .add_limit(Limit::rate("tokens", 2_000_000, minute).algorithm(Algorithm::TokenBucket))
///         .add_limit(Limit::concurrency("in_flight", 64)),
/// );
/// declaration.validate()?;
/// # Ok::<(), shmlimit::DeclarationError>(())
/// ```
///
/// # In TOML
///
/// ```
/// let declaration = shmlimit::Declaration::from_toml(r#"
///     [segment]                       # all optional
///     path = "/dev/shm/gateway.limits"
///     mode = "0660"
///     participants = 256
///     clock = "counter"               # or "system": see `ClockSource`
///     lock = "slot"                   # or "robust": see `LockKind`
///
///     [[set]]
///     name = "openai"
///     metadata = { region = "us-east-1" }
///
///       [[set.limit]]
///       name = "requests"
///       kind = "calls"
///       capacity = 10_000
///       window = "60s"
///       algorithm = "sliding_window"
///
///       [[set.limit]]
///       name = "dollars"
///       kind = "budget"
///       unit = "0.01"
///       capacity = "99.95"
///       window = "calendar:month"
///       utc_offset = "+05:30"
///
///       [[set.limit]]
///       name = "in_flight"
///       kind = "concurrency"
///       capacity = 64
///
///     [[set]]
///     name = "tenants"                # each tenant has these limits for itself
///     keyed = { max_keys = 100_000, when_full = "refuse" }
///
///       [[set.limit]]
///       name = "requests"
///       kind = "calls"
///       capacity = 100
///       window = "60s"
///       shadow = true                 # counts what it would refuse
/// "#)?;
/// assert_eq!(declaration.sets()[0].limits().len(), 3);
/// # Ok::<(), shmlimit::DeclarationError>(())
/// ```
///
/// | `[segment]` | value | default |
/// |---|---|---|
/// | `path` | where the file is | given by the process that opens it |
/// | `mode` | permissions in octal, `"0600"` to `"0777"`; the owner must be able to read and write | `"0600"` |
/// | `participants` | how many processes can be attached at once: 1 to 4096 | 256 |
/// | `checkpoint` | where its state is saved to survive a reboot: `{ path = "/var/lib/shmlimit/api.checkpoint", every = "30s" }`, see [`Checkpoint`] | none |
/// | `clock` | `"counter"`, or `"system"`: see [`ClockSource`] | `"counter"` |
/// | `lock` | `"slot"`, or `"robust"` for the C library's robust mutex: see [`LockKind`] | `"slot"` |
/// | `version` | the declaration's version, 1 to 2^63 - 1: see [`Declaration::version`](Self::version) | none, which is below 1 |
///
/// | `[[set]]` (1 to 1024) | value | default |
/// |---|---|---|
/// | `name` | 1 to 64 bytes without control characters; no part between `/` may be empty or begin with `.`; unique | required |
/// | `metadata` | up to 32 strings of up to 256 bytes, with keys of 1 to 64 bytes without control characters | none |
/// | `keyed` | every key has a state of its own, in a table: `{ max_keys = 100_000, when_full = "refuse", store_keys = true, overrides = false }`; `when_full` may be `"evict_least_used"` or `"evict_oldest"`, see [`Keyed`]; `keyed = 100_000` is a table with this `max_keys` | one state for all |
/// | `holds` | how many permits can hold something at once; in a keyed set, in each shard of its table: see [`SetDeclaration::holds`] | depends on capacities and `max_keys` |
/// | `waiters` | how many requests can wait in the queue; in a keyed set, in each shard of its table: 0 to 65536 | 5120; 512 in a keyed set without limits of all keys |
/// | `labels` | whether holds show the labels of their requests: see [`SetDeclaration::labels`] | `false` |
/// | `collect_within` | how long a grant that is not collected is kept while others wait: `"100ms"` to `"1h"`, see [`SetDeclaration::collect_within`] | `"1s"` |
/// | `shadow` | whether its limits decide and count but never refuse: see [`SetDeclaration::shadow`] | `false` |
///
/// | `[[set.limit]]` (1 to 16 per set) | value | default |
/// |---|---|---|
/// | `name` | as for sets | required |
/// | `kind` | `"calls"`, `"rate"`, `"concurrency"`, `"budget"`: see [`Kind`](crate::declare::Kind) | required |
/// | `capacity` | at least 1, or `"unlimited"`: see [`Amount`] | required |
/// | `window` | `"60s"`, `"1m30s"`, `"calendar:day"`..., at least `"1ms"`: see [`Window`] | required, except for concurrency and `"unlimited"` |
/// | `algorithm` | `"gcra"`, `"token_bucket"`, `"leaky_bucket"`, `"fixed_window"`, `"sliding_window"`, `"sliding_window_counter"`: see [`Algorithm`] for which one to choose, and [`Limit::bound`] for what each admits at most | `"gcra"` |
/// | `burst` | gcra, token_bucket, leaky_bucket: at least 1 | the capacity |
/// | `rate`, `interval` | leaky_bucket: another way to write `capacity` per `window`; `capacity` is then the size of the bucket and replaces `burst` | |
/// | `align` | fixed_window, budget: `"utc"`, `"first_use"`: see [`Align`] | `"utc"` |
/// | `utc_offset` | calendar windows: `"-18:00"` to `"+18:00"` | `"+00:00"` |
/// | `time_zone` | calendar windows, in place of `utc_offset`: a name such as `"America/Los_Angeles"`, see [`TimeZone`] | none |
/// | `week_start` | `"calendar:week"`: a day such as `"sunday"` | `"monday"` |
/// | `buckets` | sliding_window_counter: 1 to 60, see [`Limit::buckets`] | 10 |
/// | `entries` | sliding_window: 1 to 65536, see [`Limit::entries`] | 1024; for a single key, the capacity, up to 64 |
/// | `unit` | rate, budget: the size of one unit, so that amounts may be decimals in quotes: see [`Limit::unit`] | `"1"` |
/// | `refund` | calls, rate: whether unused reservations come back, see [`Limit::refund`] | `true`; `false` for windows with `credit` or `fleet` |
/// | `credit` | calls, rate: processes draw batches and admit from them without the lock, `"auto"` or `{ batch = 10, window_coupled = false }`: see [`Limit::credit`] | none |
/// | `lease` | concurrency: how long it can be held without a heartbeat, such as `"30s"`: see [`Limit::lease`] | forever |
/// | `adaptive` | concurrency: the capacity adapts, by `"aimd"`, `"gradient"` or `"vegas"`: see [`Limit::adaptive`] | fixed |
/// | `floor`, `ceiling` | adaptive: the bounds of the capacity, which starts at `capacity` | floor 1; ceiling required |
/// | `latency_limit` | aimd: what is held for longer counts as dropped, such as `"2s"` | none |
/// | `near_limit` | the percentage of the capacity from which an admission counts as near the limit: 1 to 100 | 80 |
/// | `shadow` | whether it decides and counts but never refuses: see [`Limit::shadow`] | that of the set |
/// | `fleet` | hosts share the limit: `{ key = "org/openai/tokens", lease = "auto", outage = "spend_out", cold_wait = "50ms" }`; `lease` may be a length such as `"2s"`, `outage` may be `"deny"`, `"safe"` or `"open"`; in a keyed set also `unleased = 1`, except for concurrency; see [`Limit::fleet`] | each host by itself |
/// | `scope` | in keyed sets: `"key"`, or `"all_keys"` for one limit of all keys together: see [`Limit::scope`] | `"key"` |
/// | `prefix` | in keyed sets: the limit counts networks, `{ ipv4 = 24, ipv6 = 48 }`: see [`Limit::prefix`] | single keys |
///
/// | `[[set.tier]]` (0 to 255 per keyed set) | value | default |
/// |---|---|---|
/// | `name` | as for sets, but not `default` | required |
/// | `weight` | the share of each of its keys while several wait for limits of all keys: 1 to 1000, see [`Tier::weight`] | 1 |
/// | `limits` | what the tier changes in the limits: `{ requests = { capacity = 1000, burst = 200 } }`, with `capacity`, `window`, `burst`, `rate` and `interval`; see [`Tier`] | as the limits |
///
/// | `[fleet]` | value | default |
/// |---|---|---|
/// | `url` | the store that the hosts share, without a user or password: `"redis://10.0.0.5:6379/0"`, see [`Declaration::fleet_url`](Self::fleet_url) | required |
/// | `host` | the name of this host there, for people to read | its own name |
///
/// A field that is not in these tables is an error, and so is one that has no effect together with the others.
///
/// With serde, a declaration can also be part of a program's own configuration. What serde reads is not yet
/// validated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[must_use]
pub struct Declaration {
    #[serde(default)]
    segment: SegmentOptions,
    #[serde(skip_serializing_if = "Option::is_none")]
    fleet: Option<FleetOptions>,
    #[serde(default, rename = "set")]
    sets: Vec<SetDeclaration>,
}

impl Declaration {
    /// A declaration without sets. It needs 1 to 1024.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a set.
    pub fn add_set(mut self, set: SetDeclaration) -> Self {
        self.sets.push(set);
        self
    }

    /// Where the segment's file is, for programs that are given only the declaration.
    pub fn path(mut self, path: impl Into<PathBuf>) -> Self {
        self.segment.path = Some(path.into());
        self
    }

    /// The permissions of the segment's file, at most 0777 and including 0600; 0600 by default.
    ///
    /// An existing file keeps its own; a difference is one of the [mismatches](crate::Segment::mismatches).
    pub fn mode(mut self, mode: u32) -> Self {
        self.segment.mode = Some(FileMode(mode));
        self
    }

    /// How many processes can be attached at once, from 1 to 4096; 256 by default.
    pub fn participants(mut self, participants: u32) -> Self {
        self.segment.participants = Some(participants);
        self
    }

    /// The clock that processes read; [`ClockSource::Counter`] by default. Cannot be changed in an existing segment.
    pub fn clock(mut self, clock: ClockSource) -> Self {
        self.segment.clock = Some(clock);
        self
    }

    /// Where the state is saved to survive a reboot; nowhere by default. It applies to this process: others that open
    /// the segment may declare another file or none.
    pub fn checkpoint(mut self, checkpoint: Checkpoint) -> Self {
        self.segment.checkpoint = Some(checkpoint);
        self
    }

    /// The kind of its locks; [`LockKind::Slot`] by default. Cannot be changed in an existing segment.
    pub fn lock(mut self, lock: LockKind) -> Self {
        self.segment.lock = Some(lock);
        self
    }

    /// Sets the options that are fixed when a segment is created.
    pub(crate) fn created_with(self, options: CreationOptions) -> Self {
        self.participants(options.participants)
            .lock(options.lock_kind)
            .clock(if options.uses_system_clock {
                ClockSource::System
            } else {
                ClockSource::Counter
            })
    }

    /// The version of this declaration, from 1 to 2^63 - 1. A declaration without one is older than any version.
    ///
    /// Raise it with each change of the declaration. If a segment is opened with
    /// [`OnMismatch::Apply`](crate::declare::OnMismatch::Apply), a version higher than the one in force is applied and a lower
    /// one changes nothing, so old and new processes can be started in any order while a service is deployed.
    pub fn version(mut self, version: u64) -> Self {
        self.segment.version = Some(version);
        self
    }

    /// Checks everything that can be wrong with a declaration by itself.
    ///
    /// # Errors
    ///
    /// The first problem found, with its place and what to do about it.
    pub fn validate(&self) -> Result<(), DeclarationError> {
        self.compile().map(drop)
    }

    /// How the segment's file is created.
    pub fn segment(&self) -> &SegmentOptions {
        &self.segment
    }

    /// The sets, in the order of the declaration.
    pub fn sets(&self) -> &[SetDeclaration] {
        &self.sets
    }

    /// The same declaration with that set alone.
    pub(crate) fn only(&self, set: &str) -> Self {
        Self {
            segment: self.segment.clone(),
            fleet: self.fleet.clone(),
            sets: self.sets.iter().filter(|it| it.name == set).cloned().collect(),
        }
    }

    /// The plans for the engine, in the order of the sets and their limits.
    pub(crate) fn compile(&self) -> Result<Vec<SetPlan>, DeclarationError> {
        self.segment.check()?;
        check_range(|| "sets".to_owned(), self.sets.len() as u64, 1, MAX_SETS)?;
        let mut names = HashSet::new();
        let mut plans = Vec::with_capacity(self.sets.len());
        for (index, set) in self.sets.iter().enumerate() {
            check_name(|| format!("set {}", index + 1), &set.name)?;
            if !names.insert(&set.name) {
                return Err(DeclarationError::Duplicate {
                    place: format!("set {:?}", set.name),
                });
            }
            plans.push(set.compile(self.fleet.as_ref())?);
        }
        self.check_fleet()?;
        Ok(plans)
    }

    /// The same declaration with every default written out: see [`Limit::canonical`].
    fn canonical(&self) -> Self {
        Self {
            segment: self.segment.canonical(),
            fleet: self.fleet.clone(),
            sets: self.sets.iter().map(SetDeclaration::canonical).collect(),
        }
    }
}
