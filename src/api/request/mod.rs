//! What to take from a set, and the verbs that take it.

mod acquire_error;
mod acquiring;
mod by_credit;
mod checking;
mod client;
mod keyed_request;
mod reserving;

use std::num::NonZeroU64;
use std::sync::Arc;

use super::set::limit_set::{LimitIndex, LimitName, LimitSet};
use crate::choices::Kind;
use crate::engine::{Costs, TierIndex};
use crate::error::Error;
use crate::shm::layout::label::MAX_LABEL_BYTES;
use client::Client;

pub use acquire_error::AcquireError;
pub use reserving::{Reservation, ReserveOutcome};

/// What to take from a set, and from which of its [keys](Self::for_key). Build it once and use it any number of times:
/// changing its costs or its key is cheap.
///
/// It takes everything or nothing: at once by [`try_acquire`](Self::try_acquire), in the queue by
/// [`acquire`](Self::acquire) and [`acquire_async`](Self::acquire_async), for good by [`check`](Self::check), now for
/// later use by [`reserve`](Self::reserve). A request borrows the set's handle. What it takes borrows that handle too,
/// and not the request, which may be a temporary.
///
/// A request that names nothing takes the default of every limit. One that names something takes what it names, plus
/// one of every calls and concurrency limit that it does not name; rate limits that it does not name are not taken.
/// Budgets are always consulted; a cost named for a budget is debited at once.
///
/// ```
/// # use std::time::Duration;
/// # use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
/// # let directory = tempfile::tempdir()?;
/// # let declaration = Declaration::new().add_set(SetDeclaration::new("openai")
/// #     .add_limit(Limit::calls("requests", 10, Duration::from_secs(60)))
/// #     .add_limit(Limit::rate("tokens", 10_000, Duration::from_secs(60))));
/// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
/// let openai = segment.set("openai")?;
/// let tokens = openai.limit_index("tokens").expect("declared");
/// let mut request = openai.request().with("tokens", 0)?;
/// for estimate in [800, 1_500] {
///     request.set_cost(tokens, estimate)?; // compares no strings
///     let permit = request.try_permit()?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Request<'a> {
    set: &'a LimitSet,
    wanted: Wanted,
}

/// What a request wants, apart from its set.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    client: Client,
    costs: Costs,
    names_something: bool,
    /// Whether some limit needs a cost and none is named.
    lacks_costs: bool,
}

impl LimitSet {
    /// A request that takes the default of every limit: one of each calls and concurrency limit, and nothing of a
    /// budget. A rate limit has no default and must be named: see [`Request::with`].
    pub fn request(&self) -> Request<'_> {
        Request::new(self)
    }
}

impl<'a> Request<'a> {
    fn new(set: &'a LimitSet) -> Self {
        let mut costs = Costs::default();
        for (index, limit) in set.engine_set().limits.iter().enumerate() {
            let default = match limit.kind {
                Kind::Calls | Kind::Concurrency => 1,
                Kind::Budget => 0,
                Kind::Rate => continue,
            };
            costs.limits.insert(index);
            costs.amounts[index] = default;
        }
        let wanted = Wanted {
            client: Client::Everyone,
            costs,
            names_something: false,
            lacks_costs: set.engine_set().first_rate.is_some(),
        };
        Self { set, wanted }
    }

    /// A request to this set for what was wanted.
    #[cfg(feature = "tower")]
    pub(crate) fn of(set: &'a LimitSet, wanted: Wanted) -> Self {
        Self { set, wanted }
    }

    #[cfg(feature = "tower")]
    pub(crate) fn into_wanted(self) -> Wanted {
        self.wanted
    }

    /// Names a limit and how many units of it to take. Zero consults the limit without taking anything.
    ///
    /// # Errors
    ///
    /// See [`set_cost`](Self::set_cost).
    pub fn with(mut self, limit: impl LimitName, cost: u64) -> Result<Self, Error> {
        self.set_cost(limit, cost)?;
        Ok(self)
    }

    /// Names a limit and how much of it to take, as a decimal in natural units. The conversion is exact: `"1.5"` of a
    /// limit whose unit is `"0.001"` is 1500 units.
    ///
    /// # Errors
    ///
    /// [`RequestError::InvalidAmount`](crate::RequestError::InvalidAmount) if it is not a whole number of units, and
    /// the errors of [`set_cost`](Self::set_cost).
    pub fn with_decimal(mut self, limit: impl LimitName, cost: &str) -> Result<Self, Error> {
        let Some(index) = self.set.resolve(&limit)? else {
            self.set_named(true);
            return Ok(self);
        };
        let units = self.set.units(LimitIndex(index), cost)?;
        self.put(index, units);
        Ok(self)
    }

    /// Names a limit, or changes how many units of it to take.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownLimit`](crate::RequestError::UnknownLimit), unless the set's handle
    /// [skips](LimitSet::strict) unknown names.
    #[inline]
    pub fn set_cost(&mut self, limit: impl LimitName, cost: u64) -> Result<(), Error> {
        match limit.find(self.set) {
            Some(index) => self.put(index.0, cost),
            None => {
                self.set.resolve(&limit)?;
                self.set_named(true);
            }
        }
        Ok(())
    }

    #[inline]
    fn put(&mut self, index: usize, cost: u64) {
        self.set_named(true);
        if let Some(amount) = self.wanted.costs.amounts.get_mut(index) {
            *amount = cost;
            self.wanted.costs.limits.insert(index);
        }
    }

    #[inline]
    fn set_named(&mut self, names_something: bool) {
        self.wanted.names_something = names_something;
        self.wanted.lacks_costs = !names_something && self.set.engine_set().first_rate.is_some();
    }

    pub(crate) fn put_tier(&mut self, tier: TierIndex) {
        self.wanted.costs.tier = self.set.engine_set().has_tiers().then_some(tier);
    }

    pub(crate) fn put_override(&mut self, index: usize, capacity: Option<NonZeroU64>) {
        // A set without overrides has none to clear.
        if self.set.engine_set().has_overrides() {
            let own = self.wanted.costs.own_capacities.get_or_insert_default();
            Arc::make_mut(own).set(index, capacity);
        }
    }

    /// The same request for another set, without the key: it takes from the limits of the same names. A limit that it
    /// takes from only by default may be missing there.
    #[cfg(feature = "tower")]
    pub(crate) fn on<'b>(&self, set: &'b LimitSet) -> Result<Request<'b>, Error> {
        let by_default = self.set.request();
        let mut request = set.request();
        for (index, name) in self.set.limits().enumerate() {
            let cost = |of: &Request<'_>| {
                let costs = &of.wanted.costs;
                costs.limits.contains(index).then_some(costs.amounts[index])
            };
            let (wanted, default) = (cost(self), cost(&by_default));
            if let Some(cost) = wanted.filter(|_| wanted != default) {
                request.set_cost(name, cost)?;
            }
        }
        request.set_named(self.wanted.names_something);
        request.require_costs()?;
        let costs = &self.wanted.costs;
        if let Some(tier) = costs.tier {
            request.set_tier(self.set.tier_name(tier))?;
        }
        request.wanted.costs.label.clone_from(&costs.label);
        for (index, capacity) in costs.own_capacities.iter().flat_map(|own| own.iter()) {
            request.set_override(
                &*self.set.engine_set().limit_name(index),
                capacity.map(NonZeroU64::get),
            )?;
        }
        Ok(request)
    }

    /// Says what the request is for. Labels are cut off after 64 bytes, at a character boundary. The label appears in
    /// [events](crate::OpenOptions::on_request_event). If the set [keeps labels](crate::SetDeclaration::labels), it
    /// also appears in [snapshots](crate::snapshot::HoldSnapshot::label) and in the output of `limitctl inspect` and
    /// `show`, visible to all processes, for as long as the permit holds something.
    ///
    /// The label stays with the permit when the permit moves to another thread or becomes
    /// [`into_owned`](crate::Permit::into_owned). A [reservation](Self::reserve) is labelled if it holds
    /// something, and a waiter is labelled once it collects its grant. Only holds have labels: what is
    /// [checked](Self::check) or drawn in [batches](crate::Limit::credit) has none.
    ///
    /// ```
    /// # use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// let set = SetDeclaration::new("pool").labels(true).add_limit(Limit::concurrency("connections", 2));
    /// # let segment = Segment::create(directory.path().join("limits"), &Declaration::new().add_set(set))?;
    /// let pool = segment.set("pool")?;
    /// let permit = pool.request().label("nightly import").try_acquire()?;
    /// let holds = &segment.snapshot()?.sets[0].holds;
    /// assert_eq!(holds[0].label.as_deref(), Some("nightly import"));
    /// # drop(permit);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn label(mut self, label: impl AsRef<str>) -> Self {
        let mut bytes = 0;
        let fits = |letter: &char| {
            bytes += letter.len_utf8();
            bytes <= MAX_LABEL_BYTES
        };
        let label: String = label.as_ref().chars().take_while(fits).collect();
        self.wanted.costs.label = Some(label.into());
        self
    }

    /// The request's label.
    #[inline]
    pub(crate) fn label_text(&self) -> Option<&str> {
        self.wanted.costs.label.as_deref()
    }

    /// The set that the request takes from.
    pub fn set(&self) -> &'a LimitSet {
        self.set
    }

    /// The costs, if none is missing.
    #[inline(always)]
    pub(crate) fn costs(&self) -> Result<&Costs, Box<Error>> {
        self.require_costs()?;
        Ok(&self.wanted.costs)
    }

    /// Requires a cost for every limit that needs one.
    #[inline(always)]
    pub(crate) fn require_costs(&self) -> Result<(), Box<Error>> {
        if self.wanted.lacks_costs {
            return Err(self.set.cost_required());
        }
        Ok(())
    }
}
