//! The styles of text. They are stripped if standard output is not a terminal.

use anstyle::{AnsiColor, Style};

pub const TITLE: Style = Style::new().bold();
pub const FAINT: Style = Style::new().dimmed();
pub const GOOD: Style = AnsiColor::Green.on_default();
pub const WARNING: Style = AnsiColor::Yellow.on_default();
pub const BAD: Style = AnsiColor::Red.on_default().bold();

/// The text as a title, which the caller has sanitised.
pub fn title(text: &str) -> String {
    paint(TITLE, text)
}

/// The text in a style.
pub fn paint(style: Style, text: impl std::fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}
