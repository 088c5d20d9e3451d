//! Printing. It is not a failure if a reader has seen enough and closes the pipe.

use std::io::{self, BufWriter, StdoutLock, Write};

use anstyle::{AnsiColor, Style};
use serde::Serialize;

use crate::exit::Failure;
use crate::text::sanitise;

/// Prints styled text; the styles are stripped if standard output is not a terminal or `NO_COLOR` is set.
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

    /// Prints a value, buffered until [`flush`](Self::flush) at the latest.
    pub fn print(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        self.print_text(&terminal_safe(serde_json::to_string(value))?)
    }

    /// Prints lines of unstyled text instead.
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

/// Reports on standard error what went wrong.
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

/// The failure where something cannot be written as JSON.
pub fn not_json(error: serde_json::Error) -> Failure {
    Failure::problem(format!("cannot write JSON: {error}"))
}

/// JSON in which characters that a terminal might obey are escaped. It reads back as the same text.
fn terminal_safe(json: serde_json::Result<String>) -> Result<String, Failure> {
    let json = json.map_err(not_json)?;
    let mut text = String::with_capacity(json.len() + 1);
    for character in json.chars() {
        // Line breaks are between values: within texts they are escaped.
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

#[cfg(test)]
mod tests {
    use super::*;

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
