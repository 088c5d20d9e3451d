//! Escapes untrusted text. Names come from files and processes that anyone may have made, and a terminal obeys what it
//! is sent.

/// Whether a terminal only shows the character: no control characters, no direction overrides, nothing invisible.
pub fn is_harmless(character: char) -> bool {
    // Rust escapes quotes and the backslash for other reasons.
    matches!(character, '"' | '\'' | '\\') || character.escape_debug().len() == 1
}

/// The text on one line, with everything that could harm a terminal shown as an escape.
pub fn line(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for part in text.split_inclusive(['"', '\'', '\\']) {
        let (body, plain) = match part.char_indices().next_back() {
            Some((index, '"' | '\'' | '\\')) => part.split_at(index),
            _ => (part, ""),
        };
        // Unlike that of `char`, the escape of `str` leaves accents on letters alone.
        shown.extend(body.escape_debug());
        shown.push_str(plain);
    }
    shown
}

/// Escapes each line of a message like [`line()`], and keeps the line breaks.
pub fn lines(text: &str) -> String {
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_names_stay_as_they_are() {
        for name in [
            "api",
            "it's \"quoted\" \\ here",
            "größe",
            "नमस्ते",
            "名前",
            "e\u{301}",
        ] {
            assert_eq!(line(name), name);
        }
    }

    #[test]
    fn what_a_terminal_would_obey_is_shown_as_an_escape() {
        assert_eq!(line("a\u{1b}[31mb"), r"a\u{1b}[31mb");
        assert_eq!(line("a\nb\tc\r"), r"a\nb\tc\r");
        assert_eq!(line("\u{9b}2J"), r"\u{9b}2J");
        assert_eq!(line("user\u{202e}txt.exe"), r"user\u{202e}txt.exe");
        assert_eq!(
            line("\u{2066}x\u{2069}\u{200b}\u{feff}"),
            r"\u{2066}x\u{2069}\u{200b}\u{feff}"
        );
        assert_eq!(line("\u{301}"), r"\u{301}");
    }

    #[test]
    fn a_message_keeps_its_lines_and_nothing_else() {
        assert_eq!(lines("one\n two\u{7}"), "one\n two\\u{7}");
    }
}
