//! Lists: a set's keys, holders and queue; processes.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use shmlimit::snapshot::{HoldSnapshot, KeyLabel, SetSnapshot, TicketSnapshot};

use super::cells::{BAD, FAINT, SELECTED, pad, visible};
use super::state::{List, Screen};
use crate::text::amounts::amounts;
use crate::text::human::{self, count};
use crate::text::{key, process, sanitise};

/// Draws the chosen list of a set.
pub fn draw(screen: &mut Screen, frame: &mut Frame<'_>, area: Rect) {
    let list = screen.list();
    let Some((set, _)) = screen.set() else {
        return;
    };
    let (heading, lines) = match list {
        List::Keys => keys(screen, area.width),
        List::Holders => holders(screen, set),
        List::Queue => queue(screen, set),
    };
    let is_list_of_keys = set.keys.is_some();
    draw_lines(screen, frame, area, heading, lines, is_list_of_keys);
}

/// Draws the processes of the segment.
pub fn draw_processes(screen: &mut Screen, frame: &mut Frame<'_>, area: Rect) {
    let heading = format!(
        "{:>10}  {}  {:5}  {}",
        "PID",
        pad("NAME", 24),
        "STATE",
        "ATTACHED"
    );
    let participants = screen.look().snapshot.participants.iter();
    let lines = participants
        .filter(|it| screen.has(&it.name) || it.pid.to_string().contains(screen.filter()))
        .map(|it| {
            let (state, style) = if it.alive {
                ("alive", Style::new())
            } else {
                ("dead", BAD)
            };
            let text = format!(
                "{:>10}  {}  {state:5}  {}",
                process::attached(it).to_string(),
                pad(&sanitise::line(&it.name), 24),
                human::instant(it.joined_utc)
            );
            Line::styled(text, style)
        })
        .collect();
    draw_lines(screen, frame, area, heading, lines, false);
}

fn draw_lines(
    screen: &mut Screen,
    frame: &mut Frame<'_>,
    area: Rect,
    heading: String,
    mut lines: Vec<Line<'static>>,
    can_be_opened: bool,
) {
    let selected = screen.select_among(lines.len());
    if let Some(line) = selected.and_then(|selected| lines.get_mut(selected)) {
        if can_be_opened {
            *line = line.clone().style(SELECTED);
        }
    } else {
        lines.push(Line::styled("none", FAINT));
    }
    let mut shown = vec![Line::styled(heading, FAINT)];
    shown.extend(visible(lines, selected, area.height.saturating_sub(1)));
    frame.render_widget(Paragraph::new(shown), area);
}

fn keys(screen: &Screen, width: u16) -> (String, Vec<Line<'static>>) {
    let name = usize::from(width).saturating_sub(32).max(8);
    let heading = format!(
        "{}{:>12}{:>12}{:>8}",
        pad("KEY", name),
        "ADMITTED/S",
        "REFUSED/S",
        "QUEUED"
    );
    let line = |hot: &crate::live::activity::KeyActivity| {
        Line::from(format!(
            "{}{:>12}{:>12}{:>8}",
            pad(&key::key(&hot.key), name),
            human::rate(hot.rates.map(|rates| rates.admitted)),
            human::rate(hot.rates.map(|rates| rates.refused)),
            count(hot.waiting)
        ))
    };
    (heading, screen.keys().into_iter().map(line).collect())
}

fn holders(screen: &Screen, set: &SetSnapshot) -> (String, Vec<Line<'static>>) {
    let heading = format!("{:>10}  {:8}  {:>9}  {}", "PID", "STATE", "HELD FOR", "HOLDS");
    let line = |hold: &HoldSnapshot| {
        let (state, style) = match (hold.owner_alive, hold.returned) {
            (false, _) => ("dead", BAD),
            (true, true) => ("returned", FAINT),
            (true, false) => ("alive", Style::new()),
        };
        let text = format!(
            "{:>10}  {state:8}  {:>9}  {}",
            process(hold.owner_pid),
            human::duration(hold.held_for),
            described(
                &amounts(set, &hold.amounts),
                hold.key.as_ref(),
                hold.label.as_deref()
            ),
        );
        Line::styled(text, style)
    };
    (heading, screen.holds(set).into_iter().map(line).collect())
}

fn queue(screen: &Screen, set: &SetSnapshot) -> (String, Vec<Line<'static>>) {
    let heading = format!("{:>10}  {:8}  {:>9}  {}", "PID", "STATE", "WAITING", "FOR");
    let line = |ticket: &TicketSnapshot| {
        let (state, style) = match (ticket.owner_alive, ticket.granted) {
            (false, _) => ("dead", BAD),
            (true, true) => ("granted", FAINT),
            (true, false) => ("waits", Style::new()),
        };
        let text = format!(
            "{:>10}  {state:8}  {:>9}  {}",
            process(ticket.owner_pid),
            human::duration(ticket.waiting_for),
            described(&amounts(set, &ticket.costs), ticket.key.as_ref(), None),
        );
        Line::styled(text, style)
    };
    (heading, screen.tickets(set).into_iter().map(line).collect())
}

fn process(pid: Option<u64>) -> String {
    pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string())
}

fn described(amounts: &str, of: Option<&KeyLabel>, label: Option<&str>) -> String {
    let mut text = amounts.to_owned();
    if let Some(of) = of {
        text.push_str(&format!(" of {}", key::key(of)));
    }
    if let Some(label) = label {
        text.push_str(&format!("  {}", sanitise::line(label)));
    }
    text
}

impl Screen {
    /// The holds of a set that pass the filter, the oldest first.
    pub fn holds<'a>(&self, set: &'a SetSnapshot) -> Vec<&'a HoldSnapshot> {
        let is_shown = |hold: &&HoldSnapshot| {
            let label = hold.label.as_deref();
            self.has(&format!(
                "{} {}",
                process(hold.owner_pid),
                described(&amounts(set, &hold.amounts), hold.key.as_ref(), label)
            ))
        };
        let mut holds: Vec<_> = set.holds.iter().filter(is_shown).collect();
        holds.sort_by_key(|hold| std::cmp::Reverse(hold.held_for));
        holds
    }

    /// The queue of a set, in order of arrival, without tickets that the filter leaves out.
    pub fn tickets<'a>(&self, set: &'a SetSnapshot) -> Vec<&'a TicketSnapshot> {
        let is_shown = |ticket: &&TicketSnapshot| {
            self.has(&format!(
                "{} {}",
                process(ticket.owner_pid),
                described(&amounts(set, &ticket.costs), ticket.key.as_ref(), None)
            ))
        };
        set.tickets.iter().filter(is_shown).collect()
    }
}
