//! Lists: a set's keys, holders and queue; processes.

use std::cmp::Reverse;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use shmlimit::snapshot::SetSnapshot;

use super::cells::{BAD, FAINT, SELECTED, pad, visible};
use super::state::{List, Screen};
use crate::text::amounts::amounts;
use crate::text::human::{self, count};
use crate::text::users::{User, UserState};
use crate::text::{key, process, sanitise};

/// Draws the chosen list of a set.
pub fn draw(screen: &mut Screen, frame: &mut Frame<'_>, area: Rect) {
    let list = screen.list();
    let Some((set, _)) = screen.set() else {
        return;
    };
    let (heading, lines) = match list {
        List::Keys => keys(screen, area.width),
        List::Holders => users(screen, set, ["HELD FOR", "HOLDS"]),
        List::Queue => users(screen, set, ["WAITING", "FOR"]),
    };
    let is_list_of_keys = set.keys.is_some();
    draw_lines(screen, frame, area, heading, lines, is_list_of_keys);
}

/// Draws the processes of the segment.
pub fn draw_processes(screen: &mut Screen, frame: &mut Frame<'_>, area: Rect) {
    let heading = format!(
        "{:>10}  {}  {:7}  {}",
        "PID",
        pad("NAME", 24),
        "STATE",
        "ATTACHED"
    );
    let participants = screen.look().snapshot.participants.iter();
    let lines = participants
        .filter(|it| screen.has(&it.name) || it.pid.to_string().contains(screen.filter()))
        .map(|it| {
            let (state, style) = match (it.alive, screen.look().stopped.has(process::attached(it))) {
                (false, _) => ("dead", BAD),
                (true, true) => ("stopped", BAD),
                (true, false) => ("alive", Style::new()),
            };
            let text = format!(
                "{:>10}  {}  {state:7}  {}",
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
            count(hot.queued)
        ))
    };
    (heading, screen.keys().into_iter().map(line).collect())
}

fn users(screen: &Screen, set: &SetSnapshot, [age, what]: [&str; 2]) -> (String, Vec<Line<'static>>) {
    let heading = format!("{:>10}  {:10}  {age:>9}  {what}", "PID", "STATE");
    let line = |user: &User<'_>| {
        let style = match user.state {
            UserState::Dead | UserState::Stopped => BAD,
            UserState::Returned | UserState::Served => FAINT,
            UserState::Holds | UserState::Waits => Style::new(),
        };
        let text = format!(
            "{:>10}  {:10}  {:>9}  {}",
            process::cell(user.process),
            user.state.words(),
            human::duration(user.age),
            described(set, user),
        );
        Line::styled(text, style)
    };
    (heading, screen.users(set).iter().map(line).collect())
}

/// What a user holds or asks for, of which key, and what for.
fn described(set: &SetSnapshot, user: &User<'_>) -> String {
    let mut text = amounts(set, user.amounts);
    if let Some(of) = user.key {
        text.push_str(&format!(" of {}", key::key(of)));
    }
    let share = key::share(user.in_order);
    if !share.is_empty() {
        text.push_str(&format!("  share {share}"));
    }
    let lead = key::lead(user.in_order);
    if !lead.is_empty() {
        text.push_str(&format!("  lead {lead}"));
    }
    let label = user.label_text();
    if !label.is_empty() {
        text.push_str(&format!("  {label}"));
    }
    text
}

impl Screen {
    /// The holders of a set, longest-held first, or its queue in order of arrival, without those that the filter leaves
    /// out.
    pub fn users<'a>(&self, set: &'a SetSnapshot) -> Vec<User<'a>> {
        let mut users: Vec<User<'a>> = match self.list() {
            List::Queue => set.tickets.iter().map(User::from).collect(),
            List::Keys | List::Holders => set.holds.iter().map(User::from).collect(),
        };
        for user in &mut users {
            *user = self.look().stopped.mark(*user);
        }
        users.retain(|user| {
            self.has(&format!(
                "{} {}",
                process::cell(user.process),
                described(set, user)
            ))
        });
        if self.list() != List::Queue {
            users.sort_by_key(|user| Reverse(user.age));
        }
        users
    }
}
