//! Styles of text on the screen, and text cut to the cells available.

use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use unicode_width::UnicodeWidthChar;

pub const FAINT: Style = Style::new().add_modifier(Modifier::DIM);
pub const TITLE: Style = Style::new().add_modifier(Modifier::BOLD);
pub const SELECTED: Style = Style::new().add_modifier(Modifier::REVERSED);
pub const GOOD: Style = Style::new().fg(ratatui::style::Color::Green);
pub const WARNING: Style = Style::new().fg(ratatui::style::Color::Yellow);
pub const BAD: Style = Style::new()
    .fg(ratatui::style::Color::Red)
    .add_modifier(Modifier::BOLD);

/// The text in at most this many columns.
pub fn fit(text: &str, columns: usize) -> String {
    let mut used = 0;
    let is_inside = |character: &char| {
        used += character.width().unwrap_or(0);
        used <= columns
    };
    text.chars().take_while(is_inside).collect()
}

/// The text in exactly this many columns.
pub fn pad(text: &str, columns: usize) -> String {
    let fitting = fit(text, columns);
    let width: usize = fitting.chars().filter_map(UnicodeWidthChar::width).sum();
    format!("{fitting}{}", " ".repeat(columns - width))
}

/// The lines of a list that fit, including the selected one.
pub fn visible(lines: Vec<Line<'static>>, selected: Option<usize>, height: u16) -> Vec<Line<'static>> {
    let height = usize::from(height);
    let first = selected.map_or(0, |selected| (selected + 1).saturating_sub(height));
    lines.into_iter().skip(first).take(height).collect()
}
