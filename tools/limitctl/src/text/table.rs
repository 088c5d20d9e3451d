//! Aligned columns.

use anstyle::Style;
use unicode_width::UnicodeWidthStr;

use super::style;

/// The alignment of a cell in its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Left,
    /// For numbers.
    Right,
}

/// A cell: its text, which the caller has sanitised, and its style.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    pub fn styled(text: impl ToString, style: Style) -> Self {
        Self {
            text: text.to_string(),
            style,
        }
    }

    pub fn text(&self) -> &str {
        &self.text
    }
}

impl<T: ToString> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::styled(text, Style::new())
    }
}

/// Rows under a heading, in columns as wide as their widest cell.
#[derive(Debug)]
pub struct Table {
    columns: Vec<Side>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub fn new(columns: &[(&str, Side)]) -> Self {
        Self {
            columns: columns.iter().map(|(_, side)| *side).collect(),
            rows: vec![
                columns
                    .iter()
                    .map(|(heading, _)| Cell::styled(heading, style::FAINT))
                    .collect(),
            ],
        }
    }

    pub fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// The table, each line indented.
    pub fn render(&self, indent: usize) -> String {
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.text.width())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = " ".repeat(indent);
            // Spaces to write before the next text, so that no line ends in spaces.
            let mut owed = 0;
            for ((cell, side), width) in row.iter().zip(&self.columns).zip(&widths) {
                let padding = width.saturating_sub(cell.text.width());
                let (before, after) = match side {
                    Side::Left => (0, padding),
                    Side::Right => (padding, 0),
                };
                owed += before;
                if !cell.text.is_empty() {
                    line.push_str(&" ".repeat(owed));
                    line.push_str(&style::paint(cell.style, &cell.text));
                    owed = 0;
                }
                owed += after + 2;
            }
            text.push_str(&line);
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_no_line_ends_in_spaces() {
        let mut table = Table::new(&[("NAME", Side::Left), ("HELD", Side::Right), ("NOTE", Side::Left)]);
        table.row(vec!["名前 x".into(), 1_000.into(), "".into()]);
        table.row(vec!["a".into(), 1.into(), "long".into()]);
        let plain = anstream::adapter::strip_str(&table.render(2)).to_string();
        assert_eq!(
            plain,
            "  NAME    HELD  NOTE\n  名前 x  1000\n  a          1  long\n"
        );
    }
}
