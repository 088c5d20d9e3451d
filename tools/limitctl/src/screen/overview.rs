//! All sets, each with its limits.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use shmlimit::snapshot::{LimitSnapshot, SetSnapshot};

use super::cells::{BAD, FAINT, SELECTED, TITLE, WARNING, pad, visible};
use super::signs::Signs;
use super::state::Screen;
use crate::live::activity::{Rates, SetActivity};
use crate::live::usage;
use crate::text::human::{self, count};
use crate::text::sanitise;

/// The width of the columns next to the name.
const FIGURES: usize = 58;
const BAR: usize = 12;
const TREND: usize = 18;

pub fn draw(screen: &mut Screen, frame: &mut Frame<'_>, area: Rect) {
    let number = screen.sets().len();
    let selected = screen.select_among(number);
    let name = usize::from(area.width).saturating_sub(FIGURES).max(8);
    let heading = format!(
        "{}{:>10}{:>10}{:>10}{:>8}  {}",
        pad("SET", name),
        "ADMITTED/S",
        "REFUSED/S",
        "HELD",
        "QUEUED",
        "USED, LAST MINUTES"
    );
    let mut lines = Vec::new();
    let mut selected_line = None;
    for (position, (set, activity)) in screen.sets().into_iter().enumerate() {
        let is_selected = selected == Some(position);
        lines.push(set_line(screen.signs, set, activity, name, is_selected));
        for (limit, rates) in set.limits.iter().zip(&activity.limits) {
            lines.push(limit_line(screen.signs, set, limit, *rates, name));
        }
        if is_selected {
            selected_line = Some(lines.len() - 1);
        }
    }
    if lines.is_empty() {
        lines.push(Line::from("no set has this text in its name"));
    }
    let mut shown = vec![Line::styled(heading, FAINT)];
    shown.extend(visible(lines, selected_line, area.height.saturating_sub(1)));
    frame.render_widget(Paragraph::new(shown), area);
}

fn set_line(
    signs: Signs,
    set: &SetSnapshot,
    activity: &SetActivity,
    name: usize,
    is_selected: bool,
) -> Line<'static> {
    let mark = if is_selected { "> " } else { "  " };
    let shown = pad(&format!("{mark}{}", sanitise::line(&set.name)), name);
    let figures = format!(
        "{:>10}{:>10}{:>10}{:>8}  ",
        human::rate(activity.rates.map(|rates| rates.admitted)),
        human::rate(activity.rates.map(|rates| rates.refused)),
        count(set.active),
        count(set.queued()),
    );
    let mut spans = vec![
        Span::styled(shown, if is_selected { SELECTED } else { TITLE }),
        Span::raw(figures),
    ];
    match irregularity(set) {
        Some(words) => spans.push(Span::styled(words, BAD)),
        None => {
            let admitted = activity.history.iter().map(|rates| rates.admitted);
            spans.push(Span::raw(signs.sparkline(admitted, TREND)));
        }
    }
    Line::from(spans)
}

/// A limit: its rates, and how much of it is used.
pub fn limit_line(
    signs: Signs,
    set: &SetSnapshot,
    limit: &LimitSnapshot,
    rates: Option<Rates>,
    name: usize,
) -> Line<'static> {
    let figures = format!(
        "{}{:>10}{:>10}  ",
        pad(&format!("    {}", sanitise::line(&limit.name)), name),
        human::rate(rates.map(|rates| rates.admitted)),
        human::rate(rates.map(|rates| rates.refused)),
    );
    let mut spans = vec![Span::raw(figures)];
    let usage = usage::usage(set, limit);
    let words = usage::words(limit, usage);
    match usage.share() {
        Some(share) => {
            let style = if share >= 1.0 { WARNING } else { Default::default() };
            spans.push(Span::styled(signs.bar(share, BAR), style));
            spans.push(Span::styled(format!(" {words}"), style));
        }
        None => spans.push(Span::styled(words, FAINT)),
    }
    Line::from(spans)
}

/// What is wrong, in a few words.
fn irregularity(set: &SetSnapshot) -> Option<String> {
    if set.poisoned {
        Some("cannot be repaired".to_owned())
    } else if set.lock.owner_died {
        Some("lock owner died".to_owned())
    } else if !set.throttled_for.is_zero() {
        Some(format!("throttled for {}", human::duration(set.throttled_for)))
    } else {
        None
    }
}
