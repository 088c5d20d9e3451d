//! One key of a set.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use shmlimit::snapshot::{KeyLimitSnapshot, KeySnapshot};

use super::cells::{FAINT, TITLE, WARNING, pad};
use super::state::Screen;
use crate::text::human::{self, count};
use crate::text::{key, sanitise};

const BAR: usize = 20;

pub fn draw(screen: &mut Screen, frame: &mut Frame<'_>, area: Rect) {
    let lines = match screen.key() {
        Some(found) => lines(screen, found),
        None => vec![Line::from(
            "the key has no row any more, which is as if it had never been used",
        )],
    };
    frame.render_widget(Paragraph::new(lines), area);
}

fn lines(screen: &Screen, found: &KeySnapshot) -> Vec<Line<'static>> {
    let mut lines = vec![
        Line::styled(key::key(&found.key), TITLE),
        Line::from(format!(
            "admitted {}   refused {}   held {}   queued {}   used {} ago",
            count(found.admitted.into()),
            count(found.refused.into()),
            count(found.held),
            count(found.queued),
            human::duration(found.unused_for),
        )),
    ];
    let mut also = Vec::new();
    if let Some(tier) = &found.tier {
        also.push(format!("tier {}", sanitise::line(tier)));
    }
    if !found.throttled_for.is_zero() {
        also.push(format!("throttled for {}", human::duration(found.throttled_for)));
    }
    if found.of_dead > 0 {
        also.push(format!("{} held by dead processes", count(found.of_dead)));
    }
    if !also.is_empty() {
        lines.push(Line::styled(also.join("   "), WARNING));
    }
    lines.push(Line::default());
    lines.push(Line::styled(
        format!("{}{}  LEFT", pad("LIMIT", 24), pad("USED", BAR)),
        FAINT,
    ));
    lines.extend(found.limits.iter().map(|limit| limit_line(screen, limit)));
    lines
}

fn limit_line(screen: &Screen, limit: &KeyLimitSnapshot) -> Line<'static> {
    let name = Span::raw(pad(&sanitise::line(&limit.name), 24));
    let left = key::left(limit);
    let text = left.text();
    let style = if limit.remaining == 0 {
        WARNING
    } else {
        Default::default()
    };
    let bar = match limit.found_capacity.or(limit.capacity) {
        // What this host may spend of a limit that hosts share says nothing about how much is used.
        Some(capacity) if capacity > 0 && limit.lease.is_none() => {
            let used = capacity.saturating_sub(limit.remaining);
            screen.signs.bar(used as f64 / capacity as f64, BAR)
        }
        _ => " ".repeat(BAR),
    };
    Line::from(vec![
        name,
        Span::styled(bar, style),
        Span::styled(format!("  {text}"), style),
    ])
}
