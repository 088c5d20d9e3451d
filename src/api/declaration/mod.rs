//! Declarations of what a segment holds, from TOML or from code: checked and compiled to plans.

mod canonical;
mod changes;
mod comparison;
mod compile;
mod file_of_set;
mod known_fields;
mod limit;
mod options;
mod place;
pub(crate) mod set;
mod shared_limits;
pub(crate) mod stored;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fmt, fs};

use serde::de::{self, Deserializer};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

pub use limit::adaptive::Adaptive;
pub use limit::amount::Amount;
pub(crate) use limit::amount::{InvalidAmount, Scale};
pub use limit::bound::Bound;
pub use limit::credit::Credit;
pub use limit::fleet_lease::FleetLease;
pub use limit::limit_options::LimitOptions;
pub use limit::time_zone::TimeZone;
pub use limit::window::{Weekday, Window};
pub use limit::{Algorithm, Align, Limit};
pub use options::checkpoint::Checkpoint;
pub use options::clock_source::ClockSource;
pub use options::fleet::FleetOptions;
use place::{check_name, check_range};
pub use set::SetDeclaration;
pub use set::keyed::Keyed;
pub use set::tier::Tier;

use crate::choices::LockKind;
use crate::engine::terms::plan::SetPlan;
use crate::error::DeclarationError;
use crate::shm::file::verified::CreationOptions;

const MAX_SETS: u64 = 1024;
const MAX_PARTICIPANTS: u64 = 4096;
/// The largest integer of TOML.
const MAX_VERSION: u64 = i64::MAX as u64;

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
/// | `version` | of the declaration: 1 to 2^63 - 1, see [`version`](Self::version) | none, which is below 1 |
///
/// | `[[set]]` (1 to 1024) | value | default |
/// |---|---|---|
/// | `name` | 1 to 64 bytes without control characters; no part between `/` may be empty or begin with `.`; unique | required |
/// | `metadata` | up to 32 strings of up to 256 bytes, with keys of 1 to 64 bytes without control characters | none |
/// | `keyed` | every key has a state of its own, in a table: `{ max_keys = 100_000, when_full = "refuse", store_keys = true, overrides = false }`; `when_full` may be `"evict_least_used"` or `"evict_oldest"`, see [`Keyed`]; `keyed = 100_000` is a table with this `max_keys` | one state for all |
/// | `holds` | how many permits can hold something at once; in a keyed set, in each shard of its table: see [`SetDeclaration::holds`] | depends on capacities and `max_keys` |
/// | `waiters` | how many requests can wait in the queue; in a keyed set, in each shard of its table: 0 to 65536 | 5120; 512 in a keyed set |
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
/// | `algorithm` | `"gcra"`, `"token_bucket"`, `"leaky_bucket"`, `"fixed_window"`, `"sliding_window"`, `"sliding_window_counter"`: see [`Algorithm`] for which to take, and [`Limit::bound`] for what each admits at most | `"gcra"` |
/// | `burst` | gcra, token_bucket, leaky_bucket: at least 1 | the capacity |
/// | `rate`, `interval` | leaky_bucket: another way to write `capacity` per `window`; `capacity` is then the size of the bucket and replaces `burst` | |
/// | `align` | fixed_window, budget: `"utc"`, `"first_use"`: see [`Align`] | `"utc"` |
/// | `utc_offset` | calendar windows: `"-18:00"` to `"+18:00"` | `"+00:00"` |
/// | `time_zone` | calendar windows, in place of `utc_offset`: a name such as `"America/Los_Angeles"`, see [`TimeZone`] | none |
/// | `week_start` | `"calendar:week"`: a day such as `"sunday"` | `"monday"` |
/// | `buckets` | sliding_window_counter: 1 to 60, see [`Limit::buckets`] | 10 |
/// | `entries` | sliding_window: 1 to 65536, see [`Limit::entries`] | 1024; in a keyed set the capacity, at most 64 |
/// | `unit` | rate, budget: the size of one unit, so that amounts may be decimals in quotes: see [`Limit::unit`] | `"1"` |
/// | `refund` | calls, rate: whether unused reservations come back, see [`Limit::refund`] | `true`; `false` for windows with `credit` or `fleet` |
/// | `credit` | calls, rate: processes draw batches and admit from them without the lock, `"auto"` or `{ batch = 10, window_coupled = false }`: see [`Limit::credit`] | none |
/// | `lease` | concurrency: how long it can be held without a heartbeat, such as `"30s"`: see [`Limit::lease`] | forever |
/// | `adaptive` | concurrency: the capacity adapts, by `"aimd"`, `"gradient"` or `"vegas"`: see [`Limit::adaptive`] | fixed |
/// | `floor`, `ceiling` | adaptive: the bounds of the capacity, which starts at `capacity` | floor 1; ceiling required |
/// | `latency_limit` | aimd: what is held for longer counts as dropped, such as `"2s"` | none |
/// | `near_limit` | the percentage of the capacity from which an admission counts as near the limit: 1 to 100 | 80 |
/// | `shadow` | whether it decides and counts but never refuses: see [`Limit::shadow`] | that of the set |
/// | `fleet` | hosts share the limit: `{ key = "org/openai/tokens", lease = "2s", outage = "spend_out" }`; `outage` may be `"deny"`, `"safe"` or `"open"`, see [`Limit::fleet`] | each host by itself |
/// | `prefix` | in keyed sets: the limit counts networks, `{ ipv4 = 24, ipv6 = 48 }`: see [`Limit::prefix`] | single keys |
///
/// | `[[set.tier]]` (0 to 255 per keyed set) | value | default |
/// |---|---|---|
/// | `name` | as for sets, but not `default` | required |
/// | `limits` | what the tier changes in the limits: `{ requests = { capacity = 1000, burst = 200 } }`, with `capacity`, `window`, `burst`, `rate` and `interval`; see [`Tier`] | as the limits |
///
/// | `[fleet]` | value | default |
/// |---|---|---|
/// | `url` | the store that hosts share, without user and password: `"redis://10.0.0.5:6379/0"`, see [`fleet_url`](Self::fleet_url) | required |
/// | `host` | the name of this host there, for people to read | its own name |
///
/// A field that is not in these tables is an error, and so is one that has no effect beside the others.
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

/// Like [`from_toml`](Declaration::from_toml).
impl FromStr for Declaration {
    type Err = DeclarationError;

    fn from_str(text: &str) -> Result<Self, DeclarationError> {
        Self::from_toml(text)
    }
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
        self.segment.mode = Some(Octal(mode));
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

    /// Reads a declaration and validates it.
    ///
    /// # Errors
    ///
    /// [`DeclarationError::Syntax`] if the text is not TOML or does not have the documented fields and types, and the
    /// errors of [`validate`](Self::validate).
    pub fn from_toml(text: &str) -> Result<Self, DeclarationError> {
        Self::parse(text, "the text")
    }

    /// Reads a declaration from a file and validates it.
    ///
    /// # Errors
    ///
    /// The errors of [`from_toml`](Self::from_toml), and [`DeclarationError::Unreadable`] if the file cannot be read
    /// or is not UTF-8.
    pub fn from_toml_file(path: impl AsRef<Path>) -> Result<Self, DeclarationError> {
        let path = path.as_ref();
        let text = fs::read_to_string(path).map_err(|source| DeclarationError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text, &path.display().to_string())
    }

    fn parse(text: &str, origin: &str) -> Result<Self, DeclarationError> {
        let declaration: Self = toml::from_str(text).map_err(|error| {
            let mut reason = error.to_string().trim_end().to_owned();
            if let Some(advice) = known_fields::advice(error.message()) {
                reason.push_str(": ");
                reason.push_str(&advice);
            }
            DeclarationError::Syntax {
                origin: origin.to_owned(),
                reason,
            }
        })?;
        declaration.validate()?;
        Ok(declaration)
    }

    /// The declaration as TOML in canonical form: the same text for all declarations that mean the same, with every
    /// default written out, so that it keeps its meaning if defaults change. A leaky bucket declared by `rate` and
    /// `interval` stays so.
    ///
    /// # Errors
    ///
    /// The errors of [`validate`](Self::validate), and [`DeclarationError::NotUnicode`] for a path that TOML cannot
    /// express.
    pub fn to_toml(&self) -> Result<String, DeclarationError> {
        self.validate()?;
        self.canonical_toml()
    }

    /// The canonical form of a declaration that has been validated.
    fn canonical_toml(&self) -> Result<String, DeclarationError> {
        // Only the path can have values that TOML lacks.
        toml::to_string(&self.canonical()).map_err(|_| DeclarationError::NotUnicode {
            place: "segment / path".to_owned(),
            given: format!("{:?}", self.segment.path),
        })
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

    /// The same of that set alone.
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
        let segment = SegmentOptions {
            path: self.segment.path.clone(),
            mode: Some(Octal(self.segment.mode())),
            participants: Some(self.segment.participants()),
            clock: Some(self.segment.clock()),
            lock: Some(self.segment.lock()),
            checkpoint: self.segment.checkpoint.clone(),
            version: self.segment.version,
            edited: self.segment.edited,
        };
        Self {
            segment,
            fleet: self.fleet.clone(),
            sets: self.sets.iter().map(SetDeclaration::canonical).collect(),
        }
    }
}

/// How a segment's file is created: the `[segment]` of a [`Declaration`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SegmentOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<Octal>,
    #[serde(skip_serializing_if = "Option::is_none")]
    participants: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    clock: Option<ClockSource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lock: Option<LockKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoint: Option<Checkpoint>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
    /// Appears only in the definitions of a segment: see [`stored`].
    #[serde(skip_serializing_if = "Option::is_none")]
    edited: Option<bool>,
}

impl SegmentOptions {
    /// Where the file is, if declared.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The permissions of the file.
    pub fn mode(&self) -> u32 {
        self.mode.map_or(0o600, |Octal(mode)| mode)
    }

    /// The permissions of the file, if declared.
    pub(crate) fn declared_mode(&self) -> Option<u32> {
        self.mode.map(|Octal(mode)| mode)
    }

    /// How many processes can be attached at once.
    pub fn participants(&self) -> u32 {
        self.participants.unwrap_or(256)
    }

    /// The clock that processes read.
    pub fn clock(&self) -> ClockSource {
        self.clock.unwrap_or_default()
    }

    /// The kind of its locks.
    pub fn lock(&self) -> LockKind {
        self.lock.unwrap_or_default()
    }

    /// Where its state is saved to survive a reboot, if declared.
    pub fn checkpoint(&self) -> Option<&Checkpoint> {
        self.checkpoint.as_ref()
    }

    pub(crate) fn creation_options(&self) -> CreationOptions {
        CreationOptions {
            participants: self.participants(),
            uses_system_clock: self.clock() == ClockSource::System,
            lock_kind: self.lock(),
        }
    }

    /// The version of the declaration, if it has one.
    pub fn version(&self) -> Option<u64> {
        self.version
    }

    fn check(&self) -> Result<(), DeclarationError> {
        check_range(
            || "segment / participants".to_owned(),
            self.participants().into(),
            1,
            MAX_PARTICIPANTS,
        )?;
        if let Some(checkpoint) = &self.checkpoint {
            checkpoint.check()?;
        }
        if let Some(version) = self.version {
            check_range(|| "segment / version".to_owned(), version, 1, MAX_VERSION)?;
        }
        if let Some(edited) = self.edited {
            return Err(DeclarationError::Value {
                place: "segment / edited".to_owned(),
                given: edited.to_string(),
                problem: "is a mark that only a segment makes: leave it out".to_owned(),
            });
        }
        let mode = self.mode();
        if mode > 0o777 || mode & 0o600 != 0o600 {
            return Err(DeclarationError::Value {
                place: "segment / mode".to_owned(),
                given: Octal(mode).to_string(),
                problem: "is not a mode for a segment: choose at most 0777, of which the owner has 0600"
                    .to_owned(),
            });
        }
        Ok(())
    }
}

/// A file mode, written as in `"0660"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Octal(u32);

impl fmt::Display for Octal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl Serialize for Octal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Octal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InQuotes;

        impl de::Visitor<'_> for InQuotes {
            type Value = Octal;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mode of octal digits in quotes, such as \"0660\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Octal, E> {
                let digits = !text.is_empty() && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
                let mode = digits.then(|| u32::from_str_radix(text, 8).ok()).flatten();
                mode.map(Octal)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }

        deserializer.deserialize_str(InQuotes)
    }
}
