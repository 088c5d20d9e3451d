//! Checks of limits that hosts share.

use std::time::Duration;

use crate::choices::{Kind, Outage};
use crate::declaration::limit::amount::Amount;
use crate::declaration::limit::lease_length::LeaseLength;
use crate::declaration::limit::safe_share::SafeShare;
use crate::declaration::limit::window::Window;
use crate::declaration::limit::{Algorithm, Align, Limit};
use crate::declaration::location::{Location, check_range};
use crate::declaration::options::fleet::FleetOptions;
use crate::error::DeclarationError;
use crate::limit::{Rule, RuleOperations};

const MAX_KEY_BYTES: usize = 200;
const MIN_LEASE: Duration = Duration::from_millis(100);
const MAX_LEASE: Duration = Duration::from_secs(3600);
const MAX_COLD_WAIT: Duration = Duration::from_secs(10);

/// All of a rate, in thousandths.
const ALL_USABLE: u64 = 1000;

impl Limit {
    /// Whether hosts can share a limit of this kind and algorithm, in a set that is not keyed.
    pub(in crate::declaration) fn can_be_leased(&self) -> bool {
        self.unleasable().is_none()
    }

    /// What keeps hosts from sharing the limit, and what to do about it.
    fn unleasable(&self) -> Option<&'static str> {
        if self.capacity.is_unlimited() {
            return Some("what is unlimited needs no lease; remove it, or declare a capacity");
        }
        match (self.kind, self.effective_algorithm()) {
            (Kind::Concurrency, _) if self.adaptive.is_some() => {
                Some("an adaptive capacity is found by each host for itself; remove it, or remove `adaptive`")
            }
            (_, Some(Algorithm::FixedWindow)) if self.align == Some(Align::FirstUse) => Some(
                "windows that start with their first use differ from host to host; remove it, or declare align = \"utc\"",
            ),
            (_, Some(Algorithm::SlidingWindow | Algorithm::SlidingWindowCounter)) => Some(
                "hosts share gcra, token_bucket, leaky_bucket and fixed_window only; remove it, or declare one of them",
            ),
            _ => None,
        }
    }

    pub(in crate::declaration) fn check_fleet(
        &self,
        place: &Location<'_>,
        is_keyed: bool,
        options: Option<&FleetOptions>,
    ) -> Result<(), DeclarationError> {
        let Some(fleet) = &self.fleet else {
            return Ok(());
        };
        let misplaced = |advice: &str| DeclarationError::Misplaced {
            place: place.field("fleet"),
            given: format!("key = {:?}", fleet.key),
            advice: advice.to_owned(),
        };
        if options.is_none() {
            return Err(DeclarationError::Missing {
                place: "fleet".to_owned(),
                advice: format!(
                    "{} is shared by hosts, which needs a store: declare [fleet] url = \"redis://...\"",
                    place.here()
                ),
            });
        }
        if is_keyed && self.prefix.is_some() {
            return Err(misplaced(
                "hosts do not share limits of networks; remove it, or remove `prefix` and use the address as the key",
            ));
        }
        if let (false, Some(unleased)) = (is_keyed, &fleet.unleased) {
            return Err(DeclarationError::Misplaced {
                place: place.field("fleet / unleased"),
                given: format!("unleased = {unleased}"),
                advice: "only the first requests of a key are admitted before the store has been asked; remove it, or declare \
                         the limit in a keyed set"
                    .to_owned(),
            });
        }
        if self.credit.is_some() {
            return Err(misplaced(
                "a process would draw batches from what is leased for a moment only; remove it, or remove `credit`",
            ));
        }
        if let Some(advice) = self.unleasable() {
            return Err(misplaced(advice));
        }
        // Not `unleasable`, which means no room for a lease: a zone can become an offset in a live segment.
        if self.time_zone.is_some() {
            return Err(misplaced(
                "the store only knows windows at a fixed offset from UTC; remove it, or declare `utc_offset` in place \
                 of `time_zone`",
            ));
        }
        let is_key = (1..=MAX_KEY_BYTES).contains(&fleet.key.len())
            && !fleet
                .key
                .chars()
                .any(|char| char.is_control() || matches!(char, '{' | '}'));
        if !is_key {
            return Err(DeclarationError::Name {
                place: place.field("fleet / key"),
                given: fleet.key.clone(),
                rule: "write 1 to 200 bytes without control characters and braces",
            });
        }
        match fleet.lease {
            None | Some(LeaseLength::Auto) => {}
            Some(LeaseLength::Declared(Window::Span(length)))
                if (MIN_LEASE..=MAX_LEASE).contains(&length) => {}
            Some(length) => {
                return Err(place.value(
                    "fleet / lease",
                    length,
                    "is not a length for a lease: write \"auto\", or choose from \"100ms\" to \"1h\"",
                ));
            }
        }
        if let Some(length) = fleet.cold_wait
            && !matches!(length, Window::Span(length) if length <= MAX_COLD_WAIT)
        {
            return Err(place.value(
                "fleet / cold_wait",
                length,
                "is too long to wait for a store: choose from \"0s\" to \"10s\"",
            ));
        }
        let Some(safe) = &fleet.safe else {
            return Ok(());
        };
        if fleet.outage_policy() != Outage::Safe {
            return Err(DeclarationError::Misplaced {
                place: place.field("fleet / safe"),
                given: format!("safe = {safe}"),
                advice:
                    "only the outage policy \"safe\" goes on with it; remove it, or declare outage = \"safe\""
                        .to_owned(),
            });
        }
        if safe.is_no_fraction() {
            return Err(place.value(
                "fleet / safe",
                safe,
                "is not a part of the capacity: write a fraction above 0 and at most 1, such as 0.25, or a whole number of units",
            ));
        }
        Ok(())
    }

    /// How many units this host goes on with while the store is out, if `safe` says so. The limit must be in canonical
    /// form and per window.
    pub(in crate::declaration) fn safe_units(
        &self,
        place: &Location<'_>,
        capacity: u64,
    ) -> Result<Option<u64>, DeclarationError> {
        let Some(safe) = self.fleet.as_ref().and_then(|fleet| fleet.safe.as_ref()) else {
            return Ok(None);
        };
        let SafeShare::Amount(amount) = safe else {
            return Ok(safe.part_of(capacity));
        };
        let units = self
            .units(amount)
            .map_err(|invalid| place.value("fleet / safe", amount, invalid))?;
        let units = units.unwrap_or(u64::MAX);
        check_range(|| place.field("fleet / safe"), units, 1, capacity)?;
        Ok(Some(units))
    }

    /// How many units of a key this host admits before it has asked for any. The limit must be in canonical form and per
    /// window.
    pub(in crate::declaration) fn unleased_units(
        &self,
        place: &Location<'_>,
        capacity: u64,
    ) -> Result<u64, DeclarationError> {
        let declared = self.fleet.as_ref().and_then(|fleet| fleet.unleased.as_ref());
        let is_held = self.kind == Kind::Concurrency;
        let by_default = Amount::from(u64::from(!is_held));
        let amount = declared.unwrap_or(&by_default);
        let units = self
            .units(amount)
            .map_err(|invalid| place.value("fleet / unleased", amount, invalid))?
            .unwrap_or(u64::MAX);
        if declared.is_some() {
            check_range(|| place.field("fleet / unleased"), units, 0, capacity)?;
        }
        if is_held && units > 0 {
            return Err(DeclarationError::Misplaced {
                place: place.field("fleet / unleased"),
                given: format!("unleased = {amount}"),
                advice: "a place that is held before the store has been asked would exceed the limit for as long as it is \
                         held; remove it, and declare `cold_wait` for how long the first request of a key waits"
                    .to_owned(),
            });
        }
        Ok(units.min(capacity))
    }

    /// A warning about a shared limit whose burst is too small to use all of its rate, however fast the store answers.
    pub(in crate::declaration) fn fleet_warning(&self, place: &Location<'_>) -> Option<String> {
        self.fleet.as_ref()?;
        let Rule::Leased(leased) = self.compile(place, false, true).ok()?.rule else {
            return None;
        };
        let usable = leased.usable_part(0).filter(|part| *part < ALL_USABLE)?;
        let burst = leased.capacity();
        Some(format!(
            "{}: hosts can use about {} % of the rate: a burst of {burst} {} back before they have asked the store for \
             more, so declare one of at least {}",
            place.here(),
            usable / 10,
            if burst == 1 { "unit comes" } else { "units comes" },
            leased.sufficient_burst(0)?,
        ))
    }
}
