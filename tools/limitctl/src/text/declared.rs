//! Declared limits, in few words.

use shmlimit::{Amount, Bound, Limit, Window};

use super::human::{count, word};

/// What the limit was declared as, in few words, and what follows: `100 per 1s, gcra, burst 20, at most 119 in any 1s`.
pub fn limit(limit: &Limit) -> String {
    let capacity = amount(limit.capacity());
    let mut text = capacity.clone();
    if let Some(window) = limit.window() {
        text.push_str(&format!(" per {window}"));
    }
    if let (Some(rate), Some(interval)) = (limit.rate_amount(), limit.interval()) {
        text.push_str(&format!(", rate {} per {interval}", amount(rate)));
    }
    if let Some(algorithm) = limit.deciding_algorithm() {
        text.push_str(&format!(", {}", word(&algorithm)));
    }
    if let Some(burst) = limit
        .burst_amount()
        .map(amount)
        .filter(|burst| *burst != capacity)
    {
        text.push_str(&format!(", burst {burst}"));
    }
    if let Some(ceiling) = limit.ceiling_amount() {
        text.push_str(&format!(", adaptive up to {}", amount(ceiling)));
    }
    if let Some(unit) = limit.unit_size().filter(|unit| *unit != "1") {
        text.push_str(&format!(", counted in units of {unit}"));
    }
    if let Some(Bound {
        units, amount, span, ..
    }) = limit.bound()
    {
        let is_counted_in_ones = limit.unit_size().is_none_or(|unit| unit == "1");
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
