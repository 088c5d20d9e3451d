//! `limitctl edit`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::Args;
use shmlimit::declare::{Amount, ValueForm};
use shmlimit::{Declaration, Error, Limit, RequestError, Window};
use toml::{Table, Value};

use crate::arguments::SegmentPath;
use crate::change::{Change, Step};
use crate::exit::{ExitCode, Failure};
use crate::text::key;

/// Change single values of a limit of a live segment
///
/// Applies the declaration in force, with these values changed, as `limitctl apply` does:
///
///     limitctl edit /dev/shm/gateway.limits chat requests capacity=200 window=30s
///
/// A burst that equals the capacity continues to equal it, unless it is named.
///
/// If the set is declared with `overrides = true`, a single key can have a capacity of its own (`none` takes it away again):
///
///     limitctl edit /dev/shm/gateway.limits tenants requests capacity=500 --key acme
///
/// Tiers and their weights change with the declaration: print it with `limitctl inspect --toml`, change it, and put it into force with `limitctl apply`.
///
/// What the key has used migrates as with a change of the declaration, and it keeps its capacity when another declaration is applied. It keeps its row, too, unless the set is declared to evict.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub struct Edit {
    #[command(flatten)]
    change: Change,

    #[command(flatten)]
    segment: SegmentPath,

    /// The set
    ///
    /// One of the names that `limitctl inspect` shows.
    set: String,

    /// The limit
    ///
    /// One of the names that `limitctl inspect` shows for the set.
    limit: String,

    /// What to change, such as capacity=200
    ///
    /// The fields of declarations that can change in place: capacity, burst, rate, floor and ceiling (amounts), window,
    /// interval, lease and latency_limit (times), near_limit (a percentage), refund and shadow (true or false),
    /// utc_offset (such as +05:30) and time_zone (such as Europe/Berlin), of which one removes the other, and batch
    /// (the units of a batch of a limit with credit, or auto). The value none, as in lease=none, restores the default.
    #[arg(value_name = "FIELD=VALUE", required = true, value_parser = assignment)]
    values: Vec<Assignment>,

    /// Give only this key the capacity
    ///
    /// Exactly the bytes that programs use, even if the segment stores no keys. Only the capacity of a key can be changed.
    #[arg(long, value_name = "KEY", conflicts_with = "dry_run")]
    key: Option<OsString>,
}

/// `FIELD=VALUE`
#[derive(Clone, Debug)]
struct Assignment {
    field: String,
    /// `None` to remove the field.
    value: Option<Value>,
}

/// A field within `credit`. The word `auto` replaces the whole of `credit`.
const BATCH: &str = "batch";
const AUTO: &str = "auto";

impl Edit {
    pub fn run(self) -> Result<ExitCode, Failure> {
        match &self.key {
            Some(key) => self.override_capacity(key.as_bytes()),
            None => self
                .change
                .carry_out(&self.segment.path, |in_force| self.edited(in_force)),
        }
    }

    /// Gives a key its own capacity, or takes that away again.
    fn override_capacity(&self, key: &[u8]) -> Result<ExitCode, Failure> {
        let value = match &self.values[..] {
            [Assignment { field, value }] if field == "capacity" => value,
            _ => {
                return Err(Failure::usage(
                    "a key can have a capacity of its own and nothing else: write capacity=200, or capacity=none",
                ));
            }
        };
        let segment = self.change.open(&self.segment.path)?;
        let set = segment.set(&self.set)?;
        let key_of_set = set.key(key)?;
        let own = || -> Result<Option<u64>, Error> {
            let overrides = key_of_set.overrides()?;
            let own = overrides.into_iter().find(|(limit, _)| *limit == self.limit);
            Ok(own.map(|(_, capacity)| capacity))
        };
        let before = own()?;
        match value {
            Some(value) => {
                let natural = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                let units = set.units(&self.limit, &natural)?;
                key_of_set.override_capacity(&self.limit, units)?;
            }
            None => key_of_set.clear_override(&self.limit)?,
        }
        let after = own()?;
        let in_force = segment.declaration_in_force()?;
        let declared = in_force
            .sets()
            .iter()
            .find(|declared| declared.name() == self.set);
        let declared = declared.and_then(|set| set.limits().iter().find(|limit| limit.name() == self.limit));
        let natural =
            |units: u64| declared.map_or_else(|| units.to_string(), |limit| limit.format_units(units));
        let step = Step {
            place: format!(
                "set {:?} / key {} / limit {:?} / capacity",
                self.set,
                key::typed(key),
                self.limit
            ),
            before: before.map(natural),
            after: after.map(natural),
            note: None,
        };
        let changed = before != after;
        self.change
            .report(&self.segment.path, changed.then_some(step).into_iter().collect())
    }

    /// The declaration with the new values.
    fn edited(&self, in_force: &Declaration) -> Result<Declaration, Failure> {
        let sets = in_force.sets();
        let Some(set_position) = sets.iter().position(|set| set.name() == self.set) else {
            return Err(Failure::from(Error::Request(RequestError::UnknownSet {
                name: self.set.clone(),
                known: sets.iter().map(|set| set.name().to_owned()).collect(),
            })));
        };
        let limits = sets[set_position].limits();
        let Some(limit_position) = limits.iter().position(|limit| limit.name() == self.limit) else {
            return Err(Failure::from(Error::Request(RequestError::UnknownLimit {
                set: self.set.clone(),
                limit: self.limit.clone(),
                known: limits.iter().map(|limit| limit.name().to_owned()).collect(),
            })));
        };
        let text = in_force.to_toml()?;
        let mut declaration: Table = toml::from_str(&text).map_err(not_understood)?;
        let limit = declaration
            .get_mut("set")
            .and_then(|sets| {
                sets.get_mut(set_position)?
                    .get_mut("limit")?
                    .get_mut(limit_position)?
                    .as_table_mut()
            })
            .ok_or_else(|| not_understood("it has no table for the limit"))?;
        let follows_capacity = limit.get("burst") == limit.get("capacity");
        if follows_capacity && self.values.iter().all(|value| value.field != "burst") {
            limit.remove("burst");
        }
        for Assignment { field, value } in &self.values {
            let table = if field == BATCH {
                match limit.get_mut("credit").ok_or_else(|| self.without_credit())? {
                    credit if value.as_ref().and_then(Value::as_str) == Some(AUTO) => {
                        *credit = Value::from(AUTO);
                        continue;
                    }
                    Value::Table(table) => table,
                    word => {
                        *word = Value::Table(Table::new());
                        word.as_table_mut().ok_or_else(|| self.without_credit())?
                    }
                }
            } else {
                &mut *limit
            };
            match (field.as_str(), value) {
                ("utc_offset", Some(_)) => table.remove("time_zone"),
                ("time_zone", Some(_)) => table.remove("utc_offset"),
                _ => None,
            };
            match value {
                Some(value) => table.insert(field.clone(), value.clone()),
                None => table.remove(field),
            };
        }
        let text = toml::to_string(&declaration).map_err(not_understood)?;
        Ok(Declaration::from_toml(&text)?)
    }

    fn without_credit(&self) -> Failure {
        Failure::usage(format!(
            "limit `{}` has no batches: it is declared without credit, which takes a new segment to change",
            self.limit
        ))
    }
}

/// The failure if the library's own text cannot be read back.
fn not_understood(why: impl std::fmt::Display) -> Failure {
    Failure::problem(format!("the declaration in force cannot be edited: {why}"))
}

fn assignment(text: &str) -> Result<Assignment, String> {
    let (field, value) = text
        .split_once('=')
        .ok_or("the value is missing: write FIELD=VALUE, such as capacity=200")?;
    let Some((_, form)) = Limit::editable_fields().find(|(name, _)| *name == field) else {
        let names: Vec<&str> = Limit::editable_fields().map(|(name, _)| name).collect();
        return Err(format!(
            "`{field}` is not a field of a limit that can change in place; these are: {}; what belongs to a set or a tier, such \
             as a weight, changes with the declaration: `limitctl inspect --toml SEGMENT` prints it, and `limitctl apply` puts \
             the changed one into force",
            names.join(", ")
        ));
    };
    Ok(Assignment {
        field: field.to_owned(),
        value: if value == "none" {
            None
        } else {
            Some(read(form, value)?)
        },
    })
}

/// Reads a value in the form of its field.
fn read(form: ValueForm, text: &str) -> Result<Value, String> {
    match form {
        ValueForm::Amount => {
            // The declaration explains anything that is not an amount.
            let amount = text
                .replace('_', "")
                .parse()
                .unwrap_or_else(|_| Amount::from(text));
            Value::try_from(amount).map_err(|error| error.to_string())
        }
        ValueForm::Time => {
            text.parse::<Window>().map_err(|error| error.to_string())?;
            Ok(Value::from(text))
        }
        ValueForm::Percentage => match text.trim_end_matches('%').parse::<u32>() {
            Ok(percent) => Ok(Value::from(i64::from(percent))),
            Err(_) => Err("write a whole percentage, such as 80".to_owned()),
        },
        ValueForm::Truth => match text.parse::<bool>() {
            Ok(truth) => Ok(Value::from(truth)),
            Err(_) => Err("write true or false".to_owned()),
        },
        _ => Ok(Value::from(text)),
    }
}
