//! Prints results and complaints. It is no failure if a reader has seen enough and closes the pipe.

use std::io::{self, BufWriter, StdoutLock, Write};

use anstyle::{AnsiColor, Style};
use serde::Serialize;

use crate::exit::Failure;
use crate::text::sanitise;

/// Prints styled text. Strips the styles if standard output is not a terminal or `NO_COLOR` is set.
pub fn print(text: &str) -> Result<(), Failure> {
    deliver(&mut anstream::stdout().lock(), text.as_bytes())
}

/// Prints bytes as they are.
pub fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    deliver(&mut io::stdout().lock(), bytes)
}

/// Prints a value as JSON.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print_bytes(terminal_safe(serde_json::to_string_pretty(value))?.as_bytes())
}

/// Prints a declaration as TOML.
pub fn print_toml(text: &str) -> Result<(), Failure> {
    print_bytes(terminal_safe_toml(text).as_bytes())
}

/// Streams lines to standard output: values as JSON, one per line, or text.
#[derive(Debug)]
pub struct Lines {
    stream: BufWriter<StdoutLock<'static>>,
    is_closed: bool,
}

impl Lines {
    pub fn new() -> Self {
        Self {
            stream: BufWriter::with_capacity(1 << 16, io::stdout().lock()),
            is_closed: false,
        }
    }

    /// Prints a value. It may stay in the buffer until [`flush`](Self::flush).
    pub fn print(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        self.print_text(&terminal_safe(serde_json::to_string(value))?)
    }

    /// Prints lines of unstyled text.
    pub fn print_text(&mut self, text: &str) -> Result<(), Failure> {
        let written = self.stream.write_all(text.as_bytes());
        self.note(written)
    }

    pub fn flush(&mut self) -> Result<(), Failure> {
        let written = self.stream.flush();
        self.note(written)
    }

    /// Whether the reader has seen enough.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    fn note(&mut self, written: io::Result<()>) -> Result<(), Failure> {
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.is_closed = true,
            written => written.map_err(not_answered)?,
        }
        Ok(())
    }
}

/// Reports a problem on standard error.
pub fn complain(message: &str) {
    let style = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
    // If standard error is gone, there is nowhere left to report to.
    let _ = writeln!(
        anstream::stderr().lock(),
        "{style}limitctl:{style:#} {}",
        sanitise::lines(message)
    );
}

fn deliver(stream: &mut impl Write, bytes: &[u8]) -> Result<(), Failure> {
    match stream.write_all(bytes).and_then(|()| stream.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(not_answered(error)),
    }
}

fn not_answered(error: io::Error) -> Failure {
    Failure::problem(format!("cannot write the answer: {error}"))
}

/// The failure to write something as JSON.
pub fn not_json(error: serde_json::Error) -> Failure {
    Failure::problem(format!("cannot write JSON: {error}"))
}

/// Escapes the characters in JSON that a terminal might obey. The result reads back as the same values.
fn terminal_safe(json: serde_json::Result<String>) -> Result<String, Failure> {
    let json = json.map_err(not_json)?;
    let mut text = String::with_capacity(json.len() + 1);
    for character in json.chars() {
        // A line break is always between values, because within strings it is escaped.
        if character == '\n' || sanitise::is_harmless(character) {
            text.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                text.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    text.push('\n');
    Ok(text)
}

/// Escapes the characters that a terminal might obey in TOML without comments. The result reads back as the same
/// values.
fn terminal_safe_toml(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    let mut rest = text;
    // Outside of strings there are only bare names, numbers and the like.
    while let Some(start) = rest.find(['"', '\'']) {
        let quote = &rest[start..=start];
        let is_long = rest[start..].starts_with(&quote.repeat(3));
        let delimiter = quote.repeat(if is_long { 3 } else { 1 });
        let begin = start + delimiter.len();
        let end = end_of_text(&rest[begin..], &delimiter).map_or(rest.len(), |length| begin + length);
        safe.push_str(&rest[..start]);
        push_safe_text(&mut safe, &rest[begin..end], &delimiter);
        rest = rest.get(end + delimiter.len()..).unwrap_or_default();
    }
    safe.push_str(rest);
    safe
}

/// Where a string of TOML with this delimiter ends.
fn end_of_text(text: &str, delimiter: &str) -> Option<usize> {
    let mut at = 0;
    while !text[at..].starts_with(delimiter) {
        let escapes = delimiter.starts_with('"') && text[at..].starts_with('\\');
        at += usize::from(escapes);
        at += text.get(at..)?.chars().next()?.len_utf8();
    }
    // A string of several lines may itself end with quotes.
    while delimiter.len() > 1 && text[at + delimiter.len()..].starts_with(&delimiter[..1]) {
        at += 1;
    }
    Some(at)
}

fn push_safe_text(safe: &mut String, body: &str, delimiter: &str) {
    let is_dangerous = |character: char| character != '\n' && !sanitise::is_harmless(character);
    if !body.contains(is_dangerous) {
        safe.extend([delimiter, body, delimiter]);
        return;
    }
    // Nothing can be escaped between apostrophes.
    let is_literal = delimiter.starts_with('\'');
    let delimiter = delimiter.replace('\'', "\"");
    safe.push_str(&delimiter);
    for character in body.chars() {
        match character {
            '"' | '\\' if is_literal => safe.extend(['\\', character]),
            _ if is_dangerous(character) => safe.push_str(&format!("\\U{:08x}", u32::from(character))),
            _ => safe.push(character),
        }
    }
    safe.push_str(&delimiter);
}

#[cfg(test)]
mod tests {
    use shmlimit::declare::Checkpoint;
    use shmlimit::{Declaration, Limit, SetDeclaration};

    use super::*;

    #[test]
    fn toml_shows_no_hostile_character_and_reads_back_the_same() {
        for name in [
            "a\u{202e}\u{9b}é名",
            "\u{202e}\"\\b\"",
            "\u{202e}it's \"\\",
            "\u{9b}\n'",
            "\u{9b}\n\"\"\"'''\"",
            "\u{9b}\n\\x''",
            "\u{1b}[31m\t",
            "plain \"quoted\" it's \\",
        ] {
            let set = SetDeclaration::new("s").add_limit(Limit::concurrency("l", 1));
            let checkpoint = Checkpoint::new(format!("/tmp/{name}"));
            let declaration = Declaration::new().checkpoint(checkpoint).add_set(set);
            let written = declaration.to_toml().expect("valid");
            let safe = terminal_safe_toml(&written);
            let is_safe = |character: char| character == '\n' || sanitise::is_harmless(character);
            assert!(safe.chars().all(is_safe), "{safe:?}");
            let read = Declaration::from_toml(&safe).unwrap_or_else(|error| panic!("{safe}: {error}"));
            assert_eq!(read.to_toml().expect("valid"), written);
        }
    }

    #[test]
    fn json_shows_no_hostile_character_and_reads_back_the_same() {
        let hostile = "a\u{1b}[31m\u{202e}\u{9b}\u{e0041}\\\"'\u{7f}é名";
        let text = terminal_safe(serde_json::to_string_pretty(&[hostile])).expect("serialised");
        assert!(
            text.chars()
                .all(|character| character == '\n' || !character.is_control())
        );
        assert!(!text.contains(['\u{202e}', '\u{e0041}']));
        assert!(text.contains("é名"));
        assert_eq!(
            serde_json::from_str::<Vec<String>>(&text).expect("read back"),
            [hostile]
        );
    }
}
