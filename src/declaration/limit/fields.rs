//! The fields of a limit, each described once: this table determines how they are read, written and shown, and whether
//! they can change in a live segment.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::adaptive::Adaptive;
use super::algorithm::{Algorithm, Align};
use super::amount::Amount;
use super::credit::{self, Credit};
use super::fleet_lease::FleetLease;
use super::prefix::Prefix;
use super::time_zone::TimeZone;
use super::window::{UtcOffset, Weekday, Window};
use crate::choices::{Kind, Scope};

/// What a live segment does with another value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::declaration) enum Change {
    /// Takes it over.
    Live,
    /// Takes it over if the state of the limit can represent it: `Limit::changed_to` says when.
    ByState,
    /// Refuses it.
    Fixed,
}

/// The form in which `limitctl edit` takes the value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ValueForm {
    /// An [`Amount`].
    Amount,
    /// A length of time, or a calendar period.
    Time,
    /// A whole percentage.
    Percentage,
    /// `true` or `false`.
    Truth,
    /// Anything else that TOML writes as a string.
    Word,
}

/// A field of a limit other than its name and kind.
#[derive(Debug)]
pub(in crate::declaration) struct Field {
    pub(in crate::declaration) name: &'static str,
    /// Only the tests of the table read it; the library uses `Limit::with_live_fields_of`.
    #[cfg(test)]
    pub(in crate::declaration) change: Change,
    /// `None` if no edit of a single value can change it.
    edited_as: Option<ValueForm>,
}

/// Defines `Limit`, with a name, a kind and a capacity, and these optional fields.
macro_rules! limit {
    (
        $(#[$about:meta])*
        $($field:ident: $type:ty => $change:ident $(, edited as $form:ident)?;)+
    ) => {
        $(#[$about])*
        #[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
        // Read and written through `by_rate`.
        #[serde(deny_unknown_fields, remote = "Self")]
        #[must_use]
        pub struct Limit {
            pub(in crate::declaration) name: String,
            pub(in crate::declaration) kind: Kind,
            #[serde(default = "Amount::absent")]
            pub(in crate::declaration) capacity: Amount,
            $(
                #[serde(skip_serializing_if = "Option::is_none")]
                pub(in crate::declaration) $field: Option<$type>,
            )+
        }

        /// Each field that can differ between two limits of one kind.
        pub(in crate::declaration) const FIELDS: &[Field] = &[
            limit!(@row capacity, ByState, Amount),
            $(limit!(@row $field, $change $(, $form)?)),+
        ];

        impl Limit {
            pub(super) fn without_options(name: String, kind: Kind, capacity: Amount) -> Self {
                Self {
                    name,
                    kind,
                    capacity,
                    $($field: None,)+
                }
            }

            /// This limit with the live fields of `change`.
            pub(in crate::declaration) fn with_live_fields_of(&self, change: &Self) -> Self {
                let mut changed = self.clone();
                $(
                    if Change::$change == Change::Live {
                        changed.$field.clone_from(&change.$field);
                    }
                )+
                changed
            }

            /// The optional fields that are declared, with their values.
            pub(super) fn declared_options(&self) -> impl Iterator<Item = (&'static str, &dyn fmt::Debug)> {
                let options = [$((stringify!($field), shown(&self.$field))),+];
                options.into_iter().filter_map(|(name, value)| Some((name, value?)))
            }
        }
    };
    (@row $field:ident, $change:ident $(, $form:ident)?) => {
        Field {
            name: stringify!($field),
            #[cfg(test)]
            change: Change::$change,
            edited_as: limit!(@form $($form)?),
        }
    };
    (@form) => { None };
    (@form $form:ident) => { Some(ValueForm::$form) };
}

limit! {
    /// A limit of a [`SetDeclaration`](crate::SetDeclaration).
    ///
    /// Construct a limit by its kind, then change what has a default. Nothing is checked until the declaration is used or
    /// [validated](crate::Declaration::validate); every error then names the limit, the field and what to do.
    ///
    /// ```
    /// use std::time::Duration;
    /// use shmlimit::declare::Amount;
    /// use shmlimit::{Algorithm, Limit, Window};
    ///
    /// let minute = Duration::from_secs(60);
    /// let requests = Limit::calls("requests", 10_000, minute).algorithm(Algorithm::SlidingWindow);
    /// let tokens = Limit::rate("tokens", 2_000_000, minute).algorithm(Algorithm::TokenBucket).burst(500_000);
    /// let in_flight = Limit::concurrency("in_flight", 64);
    /// let dollars = Limit::budget("dollars", "99.95", Window::Month).unit("0.01").utc_offset_minutes(330);
    /// let anything = Limit::calls("anything", Amount::Unlimited, minute);
    /// ```
    // Ray's terms for a leaky bucket: `rate` per `interval`, with the bucket as the capacity.
    rate: Amount => Live, edited as Amount;
    interval: Window => Live, edited as Time;
    unit: String => Fixed;
    window: Window => ByState, edited as Time;
    algorithm: Algorithm => ByState;
    burst: Amount => Live, edited as Amount;
    align: Align => Fixed;
    utc_offset: UtcOffset => ByState, edited as Word;
    week_start: Weekday => Fixed;
    buckets: u32 => Fixed;
    entries: u32 => Fixed;
    refund: bool => Live, edited as Truth;
    lease: Window => Live, edited as Time;
    adaptive: Adaptive => Fixed;
    floor: Amount => Live, edited as Amount;
    ceiling: Amount => Live, edited as Amount;
    latency_limit: Window => Live, edited as Time;
    near_limit: u32 => Live, edited as Percentage;
    shadow: bool => Live, edited as Truth;
    prefix: Prefix => Fixed;
    credit: Credit => ByState;
    fleet: FleetLease => Live;
    time_zone: TimeZone => ByState, edited as Word;
    scope: Scope => Fixed;
}

impl Limit {
    /// The fields that `limitctl edit` changes one by one in a live segment.
    pub fn editable_fields() -> impl Iterator<Item = (&'static str, ValueForm)> {
        let fields = FIELDS.iter();
        let fields = fields.filter_map(|field| Some((field.name, field.edited_as?)));
        fields.chain([(credit::BATCH, ValueForm::Amount)])
    }
}

/// Shows what is declared, and the [bound](Limit::bound) that follows from it.
impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut written = f.debug_struct("Limit");
        written.field("name", &self.name).field("kind", &self.kind);
        written.field("capacity", &self.capacity);
        for (name, value) in self.declared_options() {
            written.field(name, value);
        }
        if let Some(at_most) = self.bound() {
            written.field("bound", &at_most.to_string());
        }
        written.finish()
    }
}

fn shown(field: &Option<impl fmt::Debug>) -> Option<&dyn fmt::Debug> {
    field.as_ref().map(|value| value as &dyn fmt::Debug)
}
