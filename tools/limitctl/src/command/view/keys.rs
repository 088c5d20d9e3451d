//! `limitctl keys`.

use std::cmp::Reverse;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use shmlimit::declare::Scope;
use shmlimit::snapshot::{KeyFingerprint, KeySnapshot, KeysSnapshot, SegmentReader};

use crate::arguments::{Looking, Report};
use crate::best::Best;
use crate::exit::{ExitCode, Failure};
use crate::reveal::Reveal;
use crate::text::human::{self, count};
use crate::text::table::Table;
use crate::text::{key, sanitise, style};

/// Show the keys of a keyed set
///
/// That is: who is limited, how often each key was admitted and refused, and what each has left. Keys without a row, which
/// are as good as unused, are not shown. Maps the file read-only and takes no lock, so nobody waits for it, and permission
/// to read the file is enough.
///
/// In JSON, a key is its text if that is UTF-8, or else its bytes in hexadecimal, and always has its fingerprint.
#[derive(Args, Debug)]
pub struct Keys {
    /// How many keys to show; 0 for all of them
    ///
    /// To show all of ten million keys takes some gigabytes of memory; the first few take next to none.
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    top: usize,

    /// Which keys come first
    ///
    /// Keys that are equal in this respect come in the same order every time.
    #[arg(long, value_enum, value_name = "ORDER", default_value_t = Order::Used)]
    by: Order,

    /// Show only keys that contain this text
    ///
    /// Searches what is stored of each key, which is at most its first 40 bytes, whether or not it is shown. If the set stores no
    /// keys, searches their fingerprints.
    #[arg(long = "match", value_name = "TEXT")]
    text: Option<String>,

    /// Show only keys that have nothing left of some limit
    ///
    /// A request that takes one unit of that limit is refused.
    #[arg(long)]
    limited: bool,

    #[command(flatten)]
    reveal: Reveal,

    #[command(flatten)]
    looking: Looking,

    /// The keyed set
    ///
    /// One of the names that `limitctl inspect` shows.
    set: String,
}

/// Which keys come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Order {
    /// Those that were admitted most often
    Used,
    /// Those that were refused most often
    Refused,
    /// Those that were used the longest ago
    Oldest,
    /// Those with most requests in the queue
    Queued,
}

/// The selected keys.
#[derive(Debug, Serialize)]
struct Selection {
    path: PathBuf,
    set: String,
    table: KeysSnapshot,
    /// The number of keys that have a row.
    seen: u64,
    /// How many of these are in the second of their two buckets.
    in_second_bucket: u64,
    /// The number of keys that match.
    matching: u64,
    /// The first of the keys that match.
    keys: Vec<KeySnapshot>,
    /// The limits that each key has for itself.
    #[serde(skip)]
    limits: Vec<String>,
    #[serde(skip)]
    order: Order,
    /// Whether only some of the keys were asked for.
    #[serde(skip)]
    is_filtered: bool,
    /// Whether more is stored of some key than is shown.
    #[serde(skip)]
    is_cut: bool,
}

impl Keys {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let reader = SegmentReader::open(&self.looking.segment.path)?;
        self.looking.form.print(&self.select(&reader)?)
    }

    fn select(&self, reader: &SegmentReader) -> Result<Selection, Failure> {
        let mut selection = Selection {
            path: human::as_text(&self.looking.segment.path),
            set: self.set.clone(),
            table: KeysSnapshot::default(),
            seen: 0,
            in_second_bucket: 0,
            matching: 0,
            keys: Vec::new(),
            limits: Vec::new(),
            order: self.by,
            is_filtered: self.text.is_some() || self.limited,
            is_cut: false,
        };
        let max = if self.top == 0 { usize::MAX } else { self.top };
        let mut best = Best::new(max);
        reader.key_snapshots(&self.set, |key| {
            selection.seen += 1;
            selection.in_second_bucket += u64::from(key.second_bucket);
            if self.matches(key) {
                selection.matching += 1;
                best.offer(self.by.rank(key), || key.clone());
            }
        })?;
        let keys = best.into_vec();
        let shown: Vec<KeySnapshot> = keys.iter().cloned().map(|key| self.reveal.row(key)).collect();
        selection.is_cut = keys
            .iter()
            .zip(&shown)
            .any(|(stored, shown)| stored.key.kept != shown.key.kept);
        selection.keys = shown;
        let sets = reader.snapshot()?.sets;
        if let Some(set) = sets.into_iter().find(|set| set.name == self.set) {
            selection.table = set.keys.unwrap_or_default();
            let own = set.limits.into_iter().filter(|limit| limit.scope == Scope::Key);
            selection.limits = own.map(|limit| limit.name).collect();
        }
        Ok(selection)
    }

    fn matches(&self, key: &KeySnapshot) -> bool {
        let has_text = self.text.as_ref().is_none_or(|text| match &key.key.kept {
            Some(kept) => text.is_empty() || kept.windows(text.len()).any(|part| part == text.as_bytes()),
            None => key.key.fingerprint.to_string().contains(text),
        });
        let is_limited = || {
            let mut limits = key.limits.iter();
            limits.any(|limit| limit.capacity.is_some() && limit.remaining == 0)
        };
        has_text && (!self.limited || is_limited())
    }
}

impl Report for Selection {
    fn text(&self) -> String {
        let mut text = format!(
            "{} {}\n  {}\n",
            style::title("keys of"),
            style::title(&sanitise::line(&self.set)),
            key::occupancy(&self.table)
        );
        if let Some(tenths) = (self.in_second_bucket * 1_000).checked_div(self.seen) {
            text.push_str(&format!(
                "  {}.{} % of them are in the second of their two buckets\n",
                tenths / 10,
                tenths % 10
            ));
        }
        let which = if self.is_filtered { " that match" } else { "" };
        let number = self.keys.len() as u64;
        if number == 0 {
            text.push_str(&format!("\nno keys{which}\n"));
            return text;
        }
        let some = (number < self.matching).then(|| format!("{} of ", count(number)));
        text.push_str(&format!(
            "\n{}{}{which}, {} first{}\n{}",
            some.unwrap_or_default(),
            human::quantity(self.matching, "key", "keys"),
            self.order.words(),
            if self.is_cut {
                "; --reveal shows them whole"
            } else {
                ""
            },
            self.table().render(2)
        ));
        text
    }
}

impl Selection {
    fn table(&self) -> Table<'_, KeySnapshot> {
        let mut table = Table::of(&self.keys).left("KEY", |key| key::key(&key.key));
        if self.keys.iter().any(|key| key.tier.is_some()) {
            table = table.left("TIER", |key| {
                sanitise::line(key.tier.as_deref().unwrap_or("default"))
            });
        }
        table = table
            .right("ADMITTED", |key| count(key.admitted.into()))
            .right("REFUSED", |key| count(key.refused.into()))
            .right("LAST USED", |key| {
                format!("{} ago", human::duration(key.unused_for))
            })
            .right("HELD", |key| count(key.held))
            .right("QUEUED", |key| count(key.queued))
            .left_if_any("SHARE", |key| key::share(key.in_order))
            .left_if_any("LEAD", |key| key::lead(key.in_order));
        // If limits count networks, not every key has every limit.
        for name in &self.limits {
            table = table.left(&format!("{} left", sanitise::line(name)), |key| {
                let limit = key.limits.iter().find(|limit| limit.name == *name);
                limit.map_or_else(|| "".into(), key::left)
            });
        }
        table.left("", |key| match (key.torn, key.throttled_for) {
            (true, _) => "changing".to_owned(),
            (false, Duration::ZERO) => String::new(),
            (false, wait) => format!("throttled for {}", human::duration(wait)),
        })
    }
}

impl Order {
    fn rank(self, key: &KeySnapshot) -> (u128, Reverse<KeyFingerprint>) {
        let rank = match self {
            Self::Used => key.admitted.into(),
            Self::Refused => key.refused.into(),
            Self::Oldest => key.unused_for.as_nanos(),
            Self::Queued => key.queued.into(),
        };
        (rank, Reverse(key.key.fingerprint))
    }

    fn words(self) -> &'static str {
        match self {
            Self::Used => "admitted most often",
            Self::Refused => "refused most often",
            Self::Oldest => "used the longest ago",
            Self::Queued => "most queued",
        }
    }
}
