//! Short descriptions of declared limits.

use shmlimit::declare::{Amount, Bound, Scope};
use shmlimit::{Limit, Window};

use super::human::count;

/// A limit's declaration and bound, in a few words: `100 per 1s, gcra, burst 20, at most 119 in any 1s`.
pub fn limit(limit: &Limit) -> String {
    let capacity = amount(limit.capacity());
    let mut text = capacity.clone();
    if limit.options().scope() == Scope::AllKeys {
        text.push_str(" of all keys");
    }
    if let Some(window) = limit.window() {
        text.push_str(&format!(" per {window}"));
    }
    if let Some(zone) = limit.options().time_zone() {
        text.push_str(&format!(" in {zone}"));
    }
    if let (Some(rate), Some(interval)) = (limit.options().rate(), limit.options().interval()) {
        text.push_str(&format!(", rate {} per {interval}", amount(rate)));
    }
    if let Some(algorithm) = limit.options().algorithm() {
        text.push_str(&format!(", {algorithm}"));
    }
    if let Some(burst) = limit
        .options()
        .burst()
        .map(amount)
        .filter(|burst| *burst != capacity)
    {
        text.push_str(&format!(", burst {burst}"));
    }
    if let Some(ceiling) = limit.options().ceiling() {
        text.push_str(&format!(", adaptive up to {}", amount(ceiling)));
    }
    if let Some(unit) = limit.options().unit().filter(|unit| *unit != "1") {
        text.push_str(&format!(", counted in units of {unit}"));
    }
    if let Some(Bound {
        units, amount, span, ..
    }) = limit.bound()
    {
        let is_counted_in_ones = limit.options().unit().is_none_or(|unit| unit == "1");
        let max = if is_counted_in_ones { count(units) } else { amount };
        text.push_str(&format!(", at most {max} in any {}", Window::Span(span)));
    }
    text
}

fn amount(amount: &Amount) -> String {
    match amount {
        Amount::Whole(whole) => count(*whole),
        other => other.to_string(),
    }
}
