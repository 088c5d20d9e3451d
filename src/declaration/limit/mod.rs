//! A limit, as it is declared.

pub(super) mod adaptive;
pub(super) mod algorithm;
pub(super) mod amount;
pub(super) mod bound;
pub(super) mod by_rate;
pub(super) mod checks;
pub(super) mod credit;
pub(super) mod fields;
pub(super) mod fleet_lease;
pub(super) mod lease_length;
pub(super) mod limit_options;
pub(super) mod prefix;
pub(super) mod safe_share;
mod scope;
pub(super) mod time_zone;
pub(super) mod window;

use crate::choices::Kind;
use adaptive::Adaptive;
pub use algorithm::{Algorithm, Align};
use amount::{Amount, InvalidAmount, Scale};
pub use fields::Limit;
use prefix::Prefix;
use time_zone::TimeZone;
use window::{UtcOffset, Weekday, Window};

impl Limit {
    /// A limit of `capacity` calls per window. A request takes one unless it names more.
    ///
    /// By default it is [`Algorithm::Gcra`] with a burst as large as the capacity, and admits up to 2 x capacity - 1
    /// in a stretch as long as the window: 19 for 10 in 2 s. See [`bound`](Self::bound) for how much any limit
    /// admits, and [`Algorithm`] for which one to choose.
    pub fn calls(name: impl Into<String>, capacity: impl Into<Amount>, window: impl Into<Window>) -> Self {
        Self::new(name.into(), Kind::Calls, capacity.into(), Some(window.into()))
    }

    /// A limit of calls that go into a bucket of `capacity`, which drains by `rate` per `interval`: the terms in which
    /// leaky buckets are declared elsewhere, such as for actors on Ray.
    ///
    /// The rate may be a decimal fraction: `"0.5"` per second is one call in two seconds, exactly. In TOML, with
    /// `algorithm = "leaky_bucket"` and either `rate` or `interval`, the defaults of `capacity`, `rate` and `interval`
    /// are 60, 1 and `"1s"`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use shmlimit::Limit;
    ///
    /// let calls = Limit::leaky_bucket("calls", 60, "0.5", Duration::from_secs(1));
    /// assert_eq!(calls.bound().unwrap().to_string(), "at most 60 in any 2s");
    /// ```
    pub fn leaky_bucket(
        name: impl Into<String>,
        capacity: impl Into<Amount>,
        rate: impl Into<Amount>,
        interval: impl Into<Window>,
    ) -> Self {
        Self {
            rate: Some(rate.into()),
            interval: Some(interval.into()),
            algorithm: Some(Algorithm::LeakyBucket),
            ..Self::new(name.into(), Kind::Calls, capacity.into(), None)
        }
    }

    /// A limit of `capacity` cost per window. A request names its cost, and settles what it actually used.
    ///
    /// See [`bound`](Self::bound) for the most that it admits in a stretch as long as the window, as for
    /// [`calls`](Self::calls).
    pub fn rate(name: impl Into<String>, capacity: impl Into<Amount>, window: impl Into<Window>) -> Self {
        Self::new(name.into(), Kind::Rate, capacity.into(), Some(window.into()))
    }

    /// A limit of `capacity` spent per window, for costs that are known only afterwards. A request takes nothing and
    /// is admitted while anything remains. It counts in a fixed window.
    ///
    /// What was admitted before its cost was known counts in full, however much it is, so no number bounds what is
    /// spent.
    pub fn budget(name: impl Into<String>, capacity: impl Into<Amount>, window: impl Into<Window>) -> Self {
        Self::new(name.into(), Kind::Budget, capacity.into(), Some(window.into()))
    }

    /// A limit of `capacity` held at the same time. A request takes one unless it names more, and gives it back.
    pub fn concurrency(name: impl Into<String>, capacity: impl Into<Amount>) -> Self {
        Self::new(name.into(), Kind::Concurrency, capacity.into(), None)
    }

    fn new(name: String, kind: Kind, capacity: Amount, window: Option<Window>) -> Self {
        Self {
            window,
            ..Self::without_options(name, kind, capacity)
        }
    }

    /// How a calls or rate limit decides; [`Algorithm::Gcra`] by default.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = Some(algorithm);
        self
    }

    /// How much of a [`Gcra`](Algorithm::Gcra) or [`TokenBucket`](Algorithm::TokenBucket) can be taken at once, or
    /// how much a [`LeakyBucket`](Algorithm::LeakyBucket) holds; the capacity by default.
    pub fn burst(mut self, burst: impl Into<Amount>) -> Self {
        self.burst = Some(burst.into());
        self
    }

    /// The size of one unit of a rate or a budget, a positive decimal such as `"0.001"`; `"1"` by default.
    ///
    /// Capacity, burst and costs may then be decimals, as long as each is a whole number of units. Nothing is rounded
    /// and no float is involved.
    pub fn unit(mut self, unit: impl Into<String>) -> Self {
        self.unit = Some(unit.into());
        self
    }

    /// Where the windows of a [`FixedWindow`](Algorithm::FixedWindow) or a budget start; [`Align::Utc`] by default.
    /// Calendar windows start where the calendar says.
    pub fn align(mut self, align: Align) -> Self {
        self.align = Some(align);
        self
    }

    /// The offset in minutes east of UTC at which a calendar window's days begin, from -1080 to 1080; 0 by default. It
    /// can change in a live segment. If days are to follow summer time, declare a [`time_zone`](Self::time_zone).
    pub fn utc_offset_minutes(mut self, minutes: i16) -> Self {
        self.utc_offset = Some(UtcOffset { minutes });
        self
    }

    /// The time zone by whose clock the days of a calendar window begin, such as `"America/Los_Angeles"`, in place of
    /// an offset. Days, weeks and months then begin at local midnight, or, if clocks skip it, when they are set
    /// forward. So the day on which summer time begins has 23 hours, and the one on which it ends 25. See [`TimeZone`]
    /// for where the zone is looked up, and what happens when its rules change.
    ///
    /// It can change in a live segment: what the open window counted stays counted until that window would have ended
    /// and until the new one ends, whichever is later. Not for limits that [hosts share](Self::fleet).
    pub fn time_zone(mut self, time_zone: impl Into<TimeZone>) -> Self {
        self.time_zone = Some(time_zone.into());
        self
    }

    /// The day on which the weeks of [`Window::Week`] begin; Monday by default.
    pub fn week_start(mut self, day: Weekday) -> Self {
        self.week_start = Some(day);
        self
    }

    /// How many parts a [`SlidingWindowCounter`](Algorithm::SlidingWindowCounter) divides its window into, from 1 to 60;
    /// 10 by default.
    pub fn buckets(mut self, buckets: u32) -> Self {
        self.buckets = Some(buckets);
        self
    }

    /// How many charges a [`SlidingWindow`](Algorithm::SlidingWindow) remembers exactly, from 1 to 65536. With more
    /// charges in a window than that, units come back late, by up to 1/entries of the window, and never early. Each
    /// takes 32 bytes; in a keyed set, for each key.
    ///
    /// What a request did not use [comes back](Algorithm#what-comes-back) if at most 126 charges before it are remembered,
    /// or at most 126 from it on. This is for a set with one limit: an operation changes a bounded number of words, so if
    /// all 16 limits of a set are sliding windows, the number is 6.
    ///
    /// The default is 1024, which serves any capacity: at most a 1024th of the window is lost. In a keyed set it is
    /// the largest capacity of any tier in units, at most 64: a key then takes at most 2 KiB for each sliding window,
    /// and may be refused early by a 64th of the window. The number cannot change in a live segment: if you may
    /// [raise](crate::Segment::apply) the capacity, declare as many entries as it may ever have units.
    /// [`Declaration::memory`](crate::Declaration::memory) says what that takes.
    pub fn entries(mut self, entries: u32) -> Self {
        self.entries = Some(entries);
        self
    }

    /// Whether unused reservations come back to a calls or rate limit: by [`settle`](crate::Permit::settle), by
    /// [cancelling](crate::Reservation::cancel), or because a grant was not collected. They do by default; the [table
    /// of algorithms](Algorithm#what-comes-back) says for how long.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Algorithm, Declaration, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// let day = || Limit::rate("tokens", 1_000, Duration::from_secs(86_400)).algorithm(Algorithm::FixedWindow);
    /// for (limit, comes_back) in [(day(), 400), (day().refund(false), 0)] {
    ///     let declaration = Declaration::new().add_set(SetDeclaration::new("api").add_limit(limit));
    ///     let segment = Segment::create(directory.path().join(comes_back.to_string()), &declaration)?;
    ///     let api = segment.set("api")?;
    ///     let mut permit = api.request().with("tokens", 1_000)?.try_permit()?;
    ///     assert_eq!(permit.settle([("tokens", 600)])?.refunded("tokens"), comes_back);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// With [credit](Self::credit), or if [hosts share](Self::fleet) the limit, nothing comes back to windows, and
    /// `refund(true)` is a [`DeclarationError`](crate::DeclarationError).
    pub fn refund(mut self, refund: bool) -> Self {
        self.refund = Some(refund);
        self
    }

    /// How long concurrency can be held without a [heartbeat](crate::Permit::heartbeat); forever by default. What is
    /// held for longer is given back when a request needs it, even if its holder is alive: this is for holders that
    /// hang.
    pub fn lease(mut self, lease: std::time::Duration) -> Self {
        self.lease = Some(Window::Span(lease));
        self
    }

    /// Lets the capacity of a concurrency limit adapt to the work under it, for all processes together: to how long
    /// permits are held, and how many count as dropped. The estimate starts at the declared capacity and moves
    /// between [`floor`](Self::floor) and [`ceiling`](Self::ceiling); the ceiling must be declared. Not for an
    /// unlimited capacity.
    ///
    /// ```
    /// use shmlimit::declare::Adaptive;
    /// use shmlimit::{Declaration, Limit, SetDeclaration};
    ///
    /// // Starts with 20 at once, admits more while no work queues behind them, and fewer when it does.
    /// let in_flight = Limit::concurrency("in_flight", 20).adaptive(Adaptive::Vegas).floor(4).ceiling(200);
    /// Declaration::new().add_set(SetDeclaration::new("backend").add_limit(in_flight)).validate()?;
    /// # Ok::<(), shmlimit::DeclarationError>(())
    /// ```
    pub fn adaptive(mut self, algorithm: Adaptive) -> Self {
        self.adaptive = Some(algorithm);
        self
    }

    /// The minimum of an [adaptive](Self::adaptive) capacity: at least 1 and at most the capacity; 1 by default.
    pub fn floor(mut self, floor: impl Into<Amount>) -> Self {
        self.floor = Some(floor.into());
        self
    }

    /// The maximum of an [adaptive](Self::adaptive) capacity: at least the capacity.
    pub fn ceiling(mut self, ceiling: impl Into<Amount>) -> Self {
        self.ceiling = Some(ceiling.into());
        self
    }

    /// How long a permit of an [`Adaptive::Aimd`] limit may be held before it counts as dropped, however it is
    /// released; forever by default.
    pub fn latency_limit(mut self, latency_limit: std::time::Duration) -> Self {
        self.latency_limit = Some(Window::Span(latency_limit));
        self
    }

    /// The percentage of the capacity from which an admission counts as near the limit, from 1 to 100; 80 by default.
    /// An unlimited capacity is never near.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::{Algorithm, Declaration, Limit, Segment, SetDeclaration};
    /// # let directory = tempfile::tempdir()?;
    /// let sent = Limit::calls("sent", 4, Duration::from_secs(3600)).near_limit(75);
    /// # let sent = sent.algorithm(Algorithm::SlidingWindow);
    /// # let declaration = Declaration::new().add_set(SetDeclaration::new("mail").add_limit(sent));
    /// # let segment = Segment::create(directory.path().join("limits"), &declaration)?;
    /// # let mail = segment.set("mail")?;
    /// for _ in 0..4 {
    ///     assert!(mail.request().check()?.is_admitted());
    /// }
    /// assert_eq!(segment.snapshot()?.sets[0].limits[0].counts.near, 2); // the third and the fourth
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn near_limit(mut self, percent: u8) -> Self {
        self.near_limit = Some(percent.into());
        self
    }

    /// Whether the limit only decides and counts, and never refuses, to try it out before it takes effect; false by
    /// default. [`SetDeclaration::shadow`](crate::SetDeclaration::shadow) does the same for all limits of a set.
    pub fn shadow(mut self, shadow: bool) -> Self {
        self.shadow = Some(shadow);
        self
    }

    /// Counts whole networks, for [keyed](crate::SetDeclaration::keyed) sets whose keys are addresses: all addresses
    /// that share their first `ipv4` bits (0 to 32) or `ipv6` bits (0 to 128) share one state. By default, each key
    /// has its own.
    ///
    /// In a set, either all limits have prefixes or none. They must nest: a limit with a longer prefix than another
    /// for IPv4 cannot have a shorter one for IPv6. A set has at most 4 different pairs. Concurrency limits cannot
    /// have prefixes.
    ///
    /// ```
    /// use std::time::Duration;
    /// use shmlimit::{Declaration, Keyed, Limit, SetDeclaration};
    ///
    /// let minute = Duration::from_secs(60);
    /// let by_address = SetDeclaration::new("by_address")
    ///     .keyed(Keyed::new(100_000))
    ///     .add_limit(Limit::calls("address", 60, minute).prefix(32, 64))
    ///     .add_limit(Limit::calls("network", 600, minute).prefix(24, 48));
    /// Declaration::new().add_set(by_address).validate()?;
    /// # Ok::<(), shmlimit::DeclarationError>(())
    /// ```
    pub fn prefix(mut self, ipv4: u8, ipv6: u8) -> Self {
        self.prefix = Some(Prefix::new(ipv4, ipv6));
        self
    }

    /// The limit's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How the limit is taken and given back.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The capacity of the limit: per [`window`](Self::window), or at the same time.
    ///
    /// For a leaky bucket declared by [`rate`](crate::declare::LimitOptions::rate) and
    /// [`interval`](crate::declare::LimitOptions::interval), the size of the bucket.
    pub fn capacity(&self) -> &Amount {
        &self.capacity
    }

    /// The window, if declared.
    pub fn window(&self) -> Option<Window> {
        self.window
    }

    /// A number of units in natural units, exactly, as a decimal number: digits with at most one point.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::Limit;
    /// let dollars = Limit::budget("dollars", "99.95", Duration::from_secs(3600)).unit("0.01");
    /// assert_eq!(dollars.format_units(1_250), "12.5");
    /// assert_eq!(Limit::concurrency("in_flight", 64).format_units(3), "3");
    /// ```
    pub fn format_units(&self, units: u64) -> String {
        self.scale().unwrap_or(Scale::ONE).format_units(units)
    }

    /// The limit as it applies to a key whose [own capacity](crate::Key::override_capacity) is `capacity` units.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use shmlimit::Limit;
    /// let requests = Limit::calls("requests", 10, Duration::from_secs(60));
    /// assert_eq!(requests.with_override(500).bound().unwrap().units, 999);
    /// ```
    pub fn with_override(&self, capacity: u64) -> Self {
        let units = |amount: &Amount| self.units(amount).ok();
        let follows = |burst: &Amount| !self.is_by_rate() && units(burst) == units(&self.capacity);
        Self {
            burst: self.burst.clone().filter(|burst| !follows(burst)),
            capacity: Amount::from(self.format_units(capacity).as_str()).canonical(),
            ..self.clone()
        }
    }

    /// The limit's unit, by which decimal costs become the whole units that the engine counts.
    ///
    /// Cannot fail once the declaration has been validated.
    pub(crate) fn scale(&self) -> Result<Scale, InvalidAmount> {
        self.unit.as_deref().map_or(Ok(Scale::ONE), Scale::parse)
    }

    /// The algorithm that decides, if the limit has one.
    pub(super) fn effective_algorithm(&self) -> Option<Algorithm> {
        match self.kind {
            Kind::Calls | Kind::Rate => Some(self.algorithm.unwrap_or_default()),
            Kind::Budget => Some(Algorithm::FixedWindow),
            Kind::Concurrency => None,
        }
    }

    /// Whether what was charged and not used is given back.
    pub(super) fn refunds(&self) -> bool {
        self.refund.unwrap_or(!self.keeps_windows_charged())
    }

    /// Whether it counts in windows what processes draw in advance, or hosts share: such units stay charged.
    pub(super) fn keeps_windows_charged(&self) -> bool {
        let in_windows = self
            .effective_algorithm()
            .is_some_and(|algorithm| !algorithm.keeps_backlog());
        in_windows && (self.credit.is_some() || self.fleet.is_some())
    }

    /// The capacity in whole units, if it is valid and not unlimited.
    pub(super) fn capacity_units(&self) -> Option<u64> {
        self.units(&self.capacity).ok()?
    }

    /// The most that the capacity can be, in whole units, if it is valid and not unlimited.
    pub(super) fn max_units(&self) -> Option<u64> {
        match &self.ceiling {
            Some(ceiling) => self.units(ceiling).ok()?,
            None => self.capacity_units(),
        }
    }

    /// The amount in whole units; `None` if unlimited.
    pub(crate) fn units(&self, amount: &Amount) -> Result<Option<u64>, InvalidAmount> {
        match amount {
            Amount::Whole(whole) => self.scale()?.units_of_whole(*whole).map(Some),
            Amount::Decimal(text) => self.scale()?.units(text).map(Some),
            Amount::Unlimited => Ok(None),
        }
    }
}
