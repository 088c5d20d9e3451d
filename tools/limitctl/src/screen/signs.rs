//! The characters that bars and sparklines are made of.

/// Block graphics, or ASCII if the locale's encoding is not UTF-8.
#[derive(Clone, Copy, Debug)]
pub struct Signs {
    used: char,
    free: char,
    /// The levels of a sparkline, the lowest first.
    levels: &'static [char],
    /// The sign between a place and what is inside it.
    pub inside: &'static str,
}

const BLOCKS: Signs = Signs {
    used: '█',
    free: '░',
    levels: &[' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'],
    inside: "›",
};

const PLAIN: Signs = Signs {
    used: '#',
    free: '.',
    levels: &[' ', '.', ':', '-', '=', '+', '*', '#'],
    inside: ">",
};

impl Signs {
    /// The characters for the locale, from the first of its variables that is set.
    pub fn of_locale() -> Self {
        let set = ["LC_ALL", "LC_CTYPE", "LANG"]
            .iter()
            .filter_map(std::env::var_os)
            .find(|value| !value.is_empty());
        Self::of(&set.unwrap_or_default().to_string_lossy())
    }

    /// The characters for a locale, by its name.
    pub fn of(locale: &str) -> Self {
        let locale = locale.to_ascii_lowercase();
        if locale.contains("utf-8") || locale.contains("utf8") {
            BLOCKS
        } else {
            PLAIN
        }
    }

    /// A bar with a used share from 0 to 1. It is only full if nothing is left, and only empty if nothing is used.
    pub fn bar(&self, share: f64, columns: usize) -> String {
        let rounded = (share.clamp(0.0, 1.0) * columns as f64).round() as usize;
        let used = if share >= 1.0 {
            columns
        } else if share <= 0.0 {
            0
        } else {
            rounded.clamp(1, columns.saturating_sub(1).max(1))
        };
        let used_signs = std::iter::repeat_n(self.used, used);
        used_signs
            .chain(std::iter::repeat_n(self.free, columns - used.min(columns)))
            .collect()
    }

    /// A sparkline of the newest values, scaled to their maximum, with the last value at the right.
    pub fn sparkline(&self, values: impl DoubleEndedIterator<Item = f64>, columns: usize) -> String {
        let mut newest: Vec<f64> = values.rev().take(columns).collect();
        newest.reverse();
        let max = newest.iter().copied().fold(0.0, f64::max);
        let top = self.levels.len() - 1;
        let level = |value: &f64| {
            if max <= 0.0 || *value <= 0.0 {
                return self.levels[0];
            }
            let level = (value / max * top as f64).round() as usize;
            self.levels[level.clamp(1, top)]
        };
        let signs: String = newest.iter().map(level).collect();
        format!("{}{signs}", " ".repeat(columns - newest.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_full_only_when_nothing_is_left() {
        let plain = Signs::of("C");
        for (share, bar) in [
            (0.0, "...."),
            (0.01, "#..."),
            (0.5, "##.."),
            (0.99, "###."),
            (1.0, "####"),
            (7.5, "####"),
        ] {
            assert_eq!(plain.bar(share, 4), bar, "{share}");
        }
    }

    #[test]
    fn a_sparkline_shows_the_newest_values_by_the_most_of_them() {
        let signs = Signs::of("de_DE.UTF-8");
        let values = [100.0, 0.0, 1.0, 4.0, 8.0];
        assert_eq!(signs.sparkline(values.into_iter(), 4), " ▁▄█");
        assert_eq!(signs.sparkline([3.0].into_iter(), 3), "  █");
        assert_eq!(signs.sparkline([0.0, 0.0].into_iter(), 2), "  ");
    }
}
