//! Time zones of calendar windows: a name, and the offsets from UTC that a database knows for it.

pub(in crate::declaration) mod database;
mod offsets;
mod posix_rule;
mod tzif;

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use serde::de::{self, Deserializer};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use crate::error::DeclarationError;
use crate::limit::{LocalTime, Transition};
use crate::shm::process::fork_identity::ProcessMutex;
use crate::shm::time::clock::utc_nanos;
use crate::units::NANOS_PER_SECOND;
use database::{UnknownZone, is_name, is_version};
use offsets::Offsets;
use posix_rule::{start_of_year, year_of};

/// The first year for which offsets are listed. Before it, the offset at its beginning holds.
const FROM_YEAR: i64 = 2000;

/// How many years ahead offsets are listed.
const YEARS_AHEAD: i64 = 20;

/// A list that ends sooner is renewed by one that reaches further.
const YEARS_AHEAD_AT_LEAST: i64 = 10;

const MAX_TRANSITIONS: usize = 400;

/// The time zone by whose clock the days of a calendar window begin, such as `"America/Los_Angeles"`.
///
/// A name is enough. The process that declares it looks up the zone in the database of its system: below the directory
/// that the environment variable `TZDIR` names, or else in `/usr/share/zoneinfo` and the other usual places. The
/// segment stores every change of its offset from the year 2000 to twenty years ahead, so all processes agree, and the
/// others need no database. After the last of these years the last offset stays in force.
///
/// ```
/// use shmlimit::declare::TimeZone;
/// use shmlimit::{Declaration, Limit, SetDeclaration, Window};
///
/// let quota = |zone: TimeZone| Limit::budget("tokens", 1_000_000, Window::Day).time_zone(zone);
/// let declaration = |limit| Declaration::new().add_set(SetDeclaration::new("api").add_limit(limit));
/// assert!(declaration(quota("No/Such".into())).validate().is_err());
/// # if std::path::Path::new("/usr/share/zoneinfo/America/Los_Angeles").exists() {
/// declaration(quota("America/Los_Angeles".into())).validate()?;
/// # }
/// # Ok::<(), shmlimit::DeclarationError>(())
/// ```
///
/// # Databases that differ
///
/// A segment keeps its list of a zone's offsets until a declaration with the same zone brings a newer list that differs
/// from now on, or, if the present list ends within ten years, one that reaches further. A list is newer if it comes
/// from a higher version of the database (`2025b`), or, if the versions are the same or unknown, if it reaches further.
/// So two processes with different databases that open the segment in turn never undo each other's changes. The list is
/// renewed whatever [`OnMismatch`](crate::declare::OnMismatch) says.
#[derive(Clone, PartialEq, Eq)]
pub struct TimeZone {
    name: String,
    known: Option<Arc<Known>>,
}

/// What a database says about a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    /// The version of the database, if it has one.
    database: Option<String>,
    /// The last year whose changes are all listed.
    until: i64,
    offsets: Offsets,
}

impl TimeZone {
    /// The zone of that name in the database of the system, where it is looked up when the declaration is used.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            known: None,
        }
    }

    /// The zone that a file of a database describes, for programs that bring their own. The format of the file is TZif
    /// (RFC 9636), and `version` that of the database, such as `2025b`, if known.
    ///
    /// # Errors
    ///
    /// [`DeclarationError::Value`] if the name or the file cannot be used.
    pub fn from_tzif(name: &str, file: &[u8], version: Option<&str>) -> Result<Self, DeclarationError> {
        let known = if is_name(name) {
            let version = version.filter(|version| is_version(version));
            Known::of_file(file, version.map(str::to_owned))
        } else {
            Err(UnknownZone::NotAName)
        };
        let known = known.map_err(|why| DeclarationError::Value {
            place: "time_zone".to_owned(),
            given: format!("{name:?}"),
            problem: why.to_string(),
        })?;
        Ok(Self {
            name: name.to_owned(),
            known: Some(Arc::new(known)),
        })
    }

    /// The name, such as `America/Los_Angeles`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The last year for which all changes of the offset are known; afterwards the last offset stays in force. `None` if
    /// the zone has not been looked up yet.
    pub fn known_until(&self) -> Option<i64> {
        self.known.as_ref().map(|known| known.until)
    }

    /// What is known about the zone. If nothing is, the zone is looked up.
    fn look_up(&self) -> Result<Arc<Known>, UnknownZone> {
        if !is_name(&self.name) {
            return Err(UnknownZone::NotAName);
        }
        match &self.known {
            Some(known) => known.check().map(|()| known.clone()),
            None => {
                let found = database::find(&self.name)?;
                Known::of_file(&found.content, found.version).map(Arc::new)
            }
        }
    }

    /// The same zone with its offsets, which are looked up if they are not known.
    pub(in crate::declaration) fn looked_up(&self) -> Result<Self, UnknownZone> {
        Ok(Self {
            name: self.name.clone(),
            known: Some(self.look_up()?),
        })
    }

    /// The local time of the zone.
    pub(in crate::declaration) fn local_time(&self) -> Result<LocalTime, UnknownZone> {
        let Offsets { first, transitions } = &self.look_up()?.offsets;
        Ok(LocalTime {
            utc_offset_seconds: *first,
            transitions: interned(transitions),
        })
    }

    /// Whether a segment should have this instead of `stored`, which it has now.
    pub(in crate::declaration) fn renews(&self, stored: &Self) -> bool {
        let (Some(known), Some(stored_known)) = (&self.known, &stored.known) else {
            return true;
        };
        if self.name != stored.name {
            return true;
        }
        let is_newer = (&known.database, known.until).cmp(&(&stored_known.database, stored_known.until));
        let ends_soon = stored_known.until < this_year() + YEARS_AHEAD_AT_LEAST;
        is_newer == Ordering::Greater
            && ((ends_soon && known.until > stored_known.until) || !known.agrees_from_now(stored_known))
    }
}

impl Known {
    fn of_file(file: &[u8], database: Option<String>) -> Result<Self, UnknownZone> {
        let until = this_year() + YEARS_AHEAD;
        let known = Self {
            database,
            until,
            offsets: Offsets::read(file, FROM_YEAR, until)?,
        };
        known.check()?;
        Ok(known)
    }

    fn check(&self) -> Result<(), UnknownZone> {
        let Offsets { first, transitions } = &self.offsets;
        if transitions.len() > MAX_TRANSITIONS {
            return Err(UnknownZone::TooMany(transitions.len()));
        }
        let is_sound = Offsets::is_possible(*first)
            && transitions.iter().all(|it| Offsets::is_possible(it.offset))
            && transitions.iter().all(|it| (0..1 << 34).contains(&it.at))
            && transitions.windows(2).all(|pair| pair[0].at < pair[1].at)
            && (0..10_000).contains(&self.until)
            && self.database.as_deref().is_none_or(is_version);
        is_sound.then_some(()).ok_or(UnknownZone::NoList)
    }

    /// Whether both have the same offset at every instant from now to the end of the shorter one.
    fn agrees_from_now(&self, other: &Self) -> bool {
        let now = now();
        let end = start_of_year(self.until.min(other.until) + 1);
        let ahead = |known: &Self| -> (i32, Vec<Transition>) {
            let ahead = known.offsets.transitions.iter().copied();
            let ahead = ahead.filter(|it| (now..end).contains(&it.at));
            (known.offsets.at(now), ahead.collect())
        };
        ahead(self) == ahead(other)
    }

    /// Which database it is from, and how far it reaches.
    fn origin(&self) -> String {
        let until = self.until;
        match &self.database {
            Some(version) => format!("known until {until} by database {version}"),
            None => format!("known until {until}"),
        }
    }
}

fn now() -> i64 {
    // Below 2^35.
    (utc_nanos() / NANOS_PER_SECOND) as i64
}

fn this_year() -> i64 {
    year_of(now())
}

/// The same list, kept once and for as long as the process lives, so that a rule that refers to it can be copied. The
/// process keeps every list that it has ever seen: a few hundred bytes for each zone, and as many again with each new
/// database.
fn interned(transitions: &[Transition]) -> &'static [Transition] {
    static LISTS: ProcessMutex<Vec<&'static [Transition]>> = ProcessMutex::new();
    if transitions.is_empty() {
        return &[];
    }
    let keep = || -> &'static [Transition] { Box::leak(transitions.into()) };
    let Ok(mut lists) = LISTS.lock() else {
        return keep();
    };
    let kept = lists.iter().copied().find(|list| *list == transitions);
    kept.unwrap_or_else(|| {
        let list = keep();
        lists.push(list);
        list
    })
}

impl From<&str> for TimeZone {
    fn from(name: &str) -> Self {
        Self::named(name)
    }
}

impl From<String> for TimeZone {
    fn from(name: String) -> Self {
        Self::named(name)
    }
}

impl fmt::Display for TimeZone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Shows the name, and how far its offsets are known.
impl fmt::Debug for TimeZone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.name)?;
        match &self.known {
            None => Ok(()),
            Some(known) => write!(f, " ({})", known.origin()),
        }
    }
}

/// A zone that was looked up, as TOML has it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenKnown {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    database: Option<String>,
    until: i64,
    offsets: String,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "write the name of a time zone, such as \"America/Los_Angeles\""
)]
enum Written {
    Name(String),
    Known(WrittenKnown),
}

impl Serialize for TimeZone {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.known {
            None => serializer.serialize_str(&self.name),
            Some(known) => WrittenKnown {
                name: self.name.clone(),
                database: known.database.clone(),
                until: known.until,
                offsets: known.offsets.to_string(),
            }
            .serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for TimeZone {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Written::deserialize(deserializer)? {
            Written::Name(name) => Ok(Self::named(name)),
            Written::Known(written) => {
                let offsets = Offsets::parse(&written.offsets).ok_or_else(|| {
                    de::Error::custom("these are not offsets: write only the name of the time zone")
                })?;
                Ok(Self {
                    name: written.name,
                    known: Some(Arc::new(Known {
                        database: written.database,
                        until: written.until,
                        offsets,
                    })),
                })
            }
        }
    }
}
