//! Aligned columns.

use anstyle::Style;
use unicode_width::UnicodeWidthStr;

use super::style;

/// The alignment of the cells of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Left,
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

/// Items as rows under a heading, in columns as wide as their widest cell.
#[derive(Debug)]
pub struct Table<'a, T> {
    items: Vec<&'a T>,
    columns: Vec<Column>,
}

/// The cells of a column, the heading first.
#[derive(Debug)]
struct Column {
    side: Side,
    cells: Vec<Cell>,
}

impl<'a, T> Table<'a, T> {
    /// A table with a row for each item, and no columns yet.
    pub fn of(items: impl IntoIterator<Item = &'a T>) -> Self {
        Self {
            items: items.into_iter().collect(),
            columns: Vec::new(),
        }
    }

    /// Adds a column of texts.
    pub fn left<C: Into<Cell>>(self, heading: &str, cell: impl FnMut(&'a T) -> C) -> Self {
        self.column(heading, Side::Left, cell)
    }

    /// Adds a column of numbers.
    pub fn right<C: Into<Cell>>(self, heading: &str, cell: impl FnMut(&'a T) -> C) -> Self {
        self.column(heading, Side::Right, cell)
    }

    /// Adds a column of texts, unless all of them are empty.
    pub fn left_if_any(self, heading: &str, cell: impl Fn(&'a T) -> String) -> Self {
        if self.items.iter().all(|item| cell(item).is_empty()) {
            return self;
        }
        self.left(heading, cell)
    }

    fn column<C: Into<Cell>>(mut self, heading: &str, side: Side, mut cell: impl FnMut(&'a T) -> C) -> Self {
        let heading = Cell::styled(heading, style::FAINT);
        let cells = self.items.iter().map(|item| cell(item).into());
        let cells = std::iter::once(heading).chain(cells).collect();
        self.columns.push(Column { side, cells });
        self
    }

    /// The table, each line indented.
    pub fn render(&self, indent: usize) -> String {
        let widths = self.columns.iter().map(|column| {
            let widths = column.cells.iter().map(|cell| cell.text.width());
            widths.max().unwrap_or(0)
        });
        let widths: Vec<usize> = widths.collect();
        let mut text = String::new();
        for row in 0..=self.items.len() {
            text.push_str(&" ".repeat(indent));
            // How many spaces to write before the next text. They are put off so that no line ends in spaces.
            let mut owed = 0;
            for (column, width) in self.columns.iter().zip(&widths) {
                let cell = &column.cells[row];
                let padding = width.saturating_sub(cell.text.width());
                let (before, after) = match column.side {
                    Side::Left => (0, padding),
                    Side::Right => (padding, 0),
                };
                owed += before;
                if !cell.text.is_empty() {
                    text.push_str(&" ".repeat(owed));
                    text.push_str(&style::paint(cell.style, &cell.text));
                    owed = 0;
                }
                owed += after + 2;
            }
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
        let table = Table::of(&[("名前 x", 1_000, ""), ("a", 1, "long")])
            .left("NAME", |item| item.0)
            .right("HELD", |item| item.1)
            .left("NOTE", |item| item.2);
        let plain = anstream::adapter::strip_str(&table.render(2)).to_string();
        assert_eq!(
            plain,
            "  NAME    HELD  NOTE\n  名前 x  1000\n  a          1  long\n"
        );
    }
}
