//! The full-screen view of a segment: its pages, and how it reacts to keys. It only knows the frame that it draws into;
//! `terminal.rs` handles the terminal.

mod cells;
mod key_page;
mod lists;
mod overview;
#[cfg(test)]
mod screen_tests;
mod set_page;
mod signs;
pub mod state;
pub mod terminal;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use unicode_width::UnicodeWidthChar;

use crate::state::State;
use crate::text::human::{self, count};
use crate::text::sanitise;
use cells::{FAINT, GOOD, TITLE, WARNING, fit};
pub use signs::Signs;
use state::{Page, Screen};

/// The smallest terminal in which the view makes sense.
const MIN_WIDTH: u16 = 40;
const MIN_HEIGHT: u16 = 10;

/// Draws what the screen shows now.
pub fn draw(screen: &mut Screen, frame: &mut Frame<'_>) {
    let area = frame.area();
    if area.width < MIN_WIDTH || area.height < MIN_HEIGHT {
        frame.render_widget(
            Paragraph::new(format!("needs {MIN_WIDTH}x{MIN_HEIGHT}; q quits")),
            area,
        );
        return;
    }
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(2), Constraint::Min(0), Constraint::Length(1)]).areas(area);
    frame.render_widget(Paragraph::new(heading(screen, head)), head);
    match screen.page() {
        Page::Overview => overview::draw(screen, frame, body),
        Page::Set(_) => set_page::draw(screen, frame, body),
        Page::Key(..) => key_page::draw(screen, frame, body),
        Page::Processes => lists::draw_processes(screen, frame, body),
    }
    frame.render_widget(Paragraph::new(footer(screen)), foot);
}

fn heading(screen: &Screen, area: Rect) -> Vec<Line<'static>> {
    let look = screen.look();
    let mut place = vec![Span::styled(
        sanitise::line(&look.snapshot.path.to_string_lossy()),
        TITLE,
    )];
    let of_page = match screen.page() {
        Page::Overview => None,
        Page::Set(set) => Some(format!("set {}", sanitise::line(set))),
        Page::Key(set, key) => Some(format!("set {}, key {key}", sanitise::line(set))),
        Page::Processes => Some("processes".to_owned()),
    };
    if let Some(of_page) = of_page {
        place.push(Span::raw(format!(" {} {of_page}", screen.signs.inside)));
    }
    let time = human::time_of_day(look.utc);
    let mut right = time;
    if screen.is_paused() {
        right = format!("PAUSED at {right}");
    }
    let (state, style) = match look.state {
        State::Ok => ("ok", GOOD),
        other => (other.words(), WARNING),
    };
    let participants = &look.snapshot.participants;
    let alive = participants.iter().filter(|it| it.alive).count();
    let mut processes = format!(
        "  {} of {}",
        human::quantity(alive as u64, "process", "processes"),
        count(look.snapshot.participant_capacity)
    );
    if alive < participants.len() {
        processes.push_str(&format!(", {} dead", participants.len() - alive));
    }
    let second = vec![
        Span::styled(state.to_owned(), style),
        Span::raw(processes),
        Span::styled(screen.arrangement(), FAINT),
    ];
    vec![with_right(place, right, area.width), Line::from(second)]
}

/// A line with a text at its right end, which takes precedence over whatever does not fit beside it.
fn with_right(left: Vec<Span<'static>>, right: String, width: u16) -> Line<'static> {
    let room = usize::from(width).saturating_sub(right.chars().count() + 1);
    let mut spans = Vec::new();
    let mut used = 0;
    for span in left {
        let text = fit(&span.content, room - used);
        used += text.chars().filter_map(UnicodeWidthChar::width).sum::<usize>();
        spans.push(Span::styled(text, span.style));
    }
    spans.push(Span::raw(" ".repeat(room - used + 1)));
    spans.push(Span::raw(right));
    Line::from(spans)
}

fn footer(screen: &Screen) -> Line<'static> {
    if let Some(typed) = screen.typed_filter() {
        return Line::from(format!(
            "filter: {}_   enter keeps it, esc clears it",
            sanitise::line(typed)
        ));
    }
    let text = match screen.page() {
        Page::Overview => "q quit  enter open  s sort  / filter  p pause  tab processes",
        Page::Set(_) => "q quit  esc back  enter open key  tab next list  s sort  / filter  p pause",
        Page::Key(..) => "q quit  esc back  p pause",
        Page::Processes => "q quit  esc back  / filter  p pause",
    };
    Line::styled(text, FAINT)
}
