//! A set: what happened in the last minutes, its limits, and a list of its keys, its holders or its queue.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use shmlimit::snapshot::SetSnapshot;

use super::cells::{FAINT, TITLE};
use super::state::{List, Screen};
use super::{lists, overview};
use crate::live::activity::{Rates, SetActivity};
use crate::text::human::{self, count};

/// The most lines that limits take; the rest is for the list.
const MAX_LIMITS: usize = 6;

pub fn draw(screen: &mut Screen, frame: &mut Frame<'_>, area: Rect) {
    let Some((set, activity)) = screen.set() else {
        frame.render_widget(Paragraph::new("the set no longer exists"), area);
        return;
    };
    let mut lines = figures(set, activity);
    lines.extend(trends(screen, activity, area.width));
    lines.push(Line::default());
    let name = usize::from(area.width).saturating_sub(58).max(8);
    for (limit, rates) in set.limits.iter().zip(&activity.limits).take(MAX_LIMITS) {
        lines.push(overview::limit_line(screen.signs, set, limit, *rates, name));
    }
    if set.limits.len() > MAX_LIMITS {
        let more = format!("    and {} more limits", set.limits.len() - MAX_LIMITS);
        lines.push(Line::styled(more, FAINT));
    }
    lines.push(Line::default());
    lines.push(tabs(set, screen.list()));
    let height = u16::try_from(lines.len()).unwrap_or(u16::MAX);
    let [above, below] = Layout::vertical([Constraint::Length(height), Constraint::Min(0)]).areas(area);
    frame.render_widget(Paragraph::new(lines), above);
    lists::draw(screen, frame, below);
}

fn figures(set: &SetSnapshot, activity: &SetActivity) -> Vec<Line<'static>> {
    let counts = &set.counts;
    let mut now = format!(
        "held {} of {}   queued {} of {}   timed out {}/s",
        count(set.active),
        count(set.hold_capacity),
        count(set.queued()),
        count(set.waiter_capacity),
        human::rate(activity.timed_out),
    );
    let counted = format!(
        "admitted {}   refused {}   timed out {}   reclaimed {}   recoveries {}",
        count(counts.admitted),
        count(counts.refused()),
        count(counts.timed_out),
        count(counts.reclaimed),
        count(counts.recoveries),
    );
    if let Some(keys) = &set.keys {
        now.push_str(&format!("   keys {} of {}", count(keys.in_use), count(keys.rows)));
    }
    vec![Line::from(now), Line::from(counted)]
}

/// Admitted and refused in the last minutes.
fn trends(screen: &Screen, activity: &SetActivity, width: u16) -> Vec<Line<'static>> {
    let columns = usize::from(width)
        .saturating_sub(36)
        .clamp(10, crate::live::activity::MAX_HISTORY);
    let trend = |words: &str, of: fn(&Rates) -> f64| {
        let values = activity.history.iter().map(of);
        let peak = values.clone().fold(0.0, f64::max);
        Line::from(vec![
            Span::raw(format!(
                "{words:8} {:>9}/s ",
                human::rate(activity.rates.as_ref().map(of))
            )),
            Span::raw(screen.signs.sparkline(values, columns)),
            Span::styled(format!(" peak {}/s", human::rate(Some(peak))), FAINT),
        ])
    };
    vec![
        trend("admitted", |rates| rates.admitted),
        trend("refused", |rates| rates.refused),
    ]
}

/// The names of the lists, with brackets around the current one.
fn tabs(set: &SetSnapshot, list: List) -> Line<'static> {
    let mut spans = Vec::new();
    let all = [
        (List::Keys, "hottest keys".to_owned()),
        (
            List::Holders,
            format!("holders {}", count(set.holds.len() as u64)),
        ),
        (List::Queue, format!("queue {}", count(set.tickets.len() as u64))),
    ];
    for (one, words) in all {
        if one == List::Keys && set.keys.is_none() {
            continue;
        }
        spans.push(if one == list {
            Span::styled(format!("[{words}] "), TITLE)
        } else {
            Span::styled(format!(" {words}  "), FAINT)
        });
    }
    Line::from(spans)
}
