//! Names and texts in two columns.

use super::style;

/// What is known about something, as a list of facts.
#[derive(Clone, Debug, Default)]
pub struct Facts(Vec<(&'static str, String)>);

impl Facts {
    /// Adds a fact, unless it is `None`. The caller must have sanitised it.
    pub fn fact(mut self, name: &'static str, text: impl Into<Option<String>>) -> Self {
        self.0.extend(text.into().map(|text| (name, text)));
        self
    }

    /// The facts, each on an indented line.
    pub fn render(&self) -> String {
        let width = self.0.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let lines = self.0.iter().map(|(name, text)| {
            let name = style::paint(style::FAINT, format!("{name:width$}"));
            format!("  {name}  {text}\n")
        });
        lines.collect()
    }
}
