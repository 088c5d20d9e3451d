//! What segments may hold, because they were made when it was not an error yet, and no declaration may ask for any more.

use std::time::Duration;

use super::place::{Place, check_new_name};
use super::window::Window;
use super::{Declaration, SetDeclaration};
use crate::error::DeclarationError;

/// The shortest window, chosen by the resolution at which the kernel wakes: 50 us late, which is the slack of timers unless
/// a process changes it, and later where processors are busy. Of a millisecond that is a twentieth. Below, waits are longer
/// than windows; and at a microsecond no two requests of a process fall into one, so that such a limit limits nothing.
/// Nothing is lost: the same rate over a longer window, with a `burst`, says what a shorter one would.
pub(super) const MIN_WINDOW: Duration = Duration::from_millis(1);

impl Declaration {
    /// What cannot be declared any more; the rest has been checked.
    pub(super) fn check_for_creation(&self) -> Result<(), DeclarationError> {
        (1..)
            .zip(&self.sets)
            .try_for_each(|(number, set)| set.check_for_creation(number))
    }
}

impl SetDeclaration {
    fn check_for_creation(&self, number: usize) -> Result<(), DeclarationError> {
        check_new_name(|| format!("set {number}"), &self.name)?;
        let place = Place {
            set: &self.name,
            tier: None,
            limit: None,
        };
        for (number, limit) in (1..).zip(&self.limits) {
            check_new_name(|| format!("{} / limit {number}", place.here()), &limit.name)?;
            let place = Place {
                limit: Some(&limit.name),
                ..place
            };
            check_window(&place, "window", limit.window)?;
            check_window(&place, "interval", limit.interval)?;
        }
        for (number, tier) in (1..).zip(&self.tiers) {
            check_new_name(|| place.field(&format!("tier {number}")), &tier.name)?;
            for (limit, change) in &tier.limits {
                let place = Place {
                    tier: Some(&tier.name),
                    limit: Some(limit),
                    ..place
                };
                check_window(&place, "window", change.window)?;
                check_window(&place, "interval", change.interval)?;
            }
        }
        Ok(())
    }
}

fn check_window(place: &Place<'_>, field: &str, window: Option<Window>) -> Result<(), DeclarationError> {
    match window {
        Some(Window::Span(length)) if length < MIN_WINDOW => Err(place.value(
            field,
            Window::Span(length),
            format!(
                "is too short to be kept: write at least {:?}, and a capacity in proportion; `burst` says how much of \
                 that may pass at once",
                Window::Span(MIN_WINDOW).to_string()
            ),
        )),
        _ => Ok(()),
    }
}
