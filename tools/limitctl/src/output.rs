//! Printing. It is not a failure if a reader has seen enough and closes the pipe.

use std::io::{self, BufWriter, StdoutLock, Write};

use anstyle::{AnsiColor, Style};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use crate::exit::{ExitCode, Failure};
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
    let mut text = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut text, TerminalSafe::default());
    value.serialize(&mut serializer).map_err(not_written)?;
    text.push(b'\n');
    print_bytes(&text)
}

/// Streams lines to standard output: values as JSON, one per line, or text.
#[derive(Debug)]
pub struct Lines {
    stream: BufWriter<StdoutLock<'static>>,
    line: Vec<u8>,
    is_closed: bool,
}

impl Lines {
    pub fn new() -> Self {
        Self {
            stream: BufWriter::with_capacity(1 << 16, io::stdout().lock()),
            line: Vec::new(),
            is_closed: false,
        }
    }

    /// Prints a value, buffered until [`flush`](Self::flush) at the latest.
    pub fn print(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        self.line.clear();
        let mut serializer = Serializer::with_formatter(&mut self.line, TerminalSafeLine);
        value.serialize(&mut serializer).map_err(not_written)?;
        self.line.push(b'\n');
        let written = self.stream.write_all(&self.line);
        self.note(written)
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
    Failure::new(ExitCode::Problem, format!("cannot write the answer: {error}"))
}

fn not_written(error: serde_json::Error) -> Failure {
    Failure::new(ExitCode::Problem, format!("cannot write JSON: {error}"))
}

/// Compact JSON on one line, escaped like [`TerminalSafe`].
struct TerminalSafeLine;

impl Formatter for TerminalSafeLine {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        write_harmless(writer, fragment)
    }
}

fn write_harmless<W: ?Sized + Write>(writer: &mut W, fragment: &str) -> io::Result<()> {
    for character in fragment.chars() {
        let mut buffer = [0; 4];
        if sanitise::is_harmless(character) {
            writer.write_all(character.encode_utf8(&mut buffer).as_bytes())?;
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
        }
    }
    Ok(())
}

/// Indented JSON in which a character that a terminal might obey is escaped. It reads back as the same text.
#[derive(Default)]
struct TerminalSafe {
    pretty: PrettyFormatter<'static>,
}

impl Formatter for TerminalSafe {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        write_harmless(writer, fragment)
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.pretty.begin_array(writer)
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.pretty.end_array(writer)
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.pretty.begin_array_value(writer, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.pretty.end_array_value(writer)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.pretty.begin_object(writer)
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.pretty.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.pretty.begin_object_key(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.pretty.begin_object_value(writer)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.pretty.end_object_value(writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_shows_no_hostile_character_and_reads_back_the_same() {
        let hostile = "a\u{1b}[31m\u{202e}\u{9b}\u{e0041}\\\"'\u{7f}é名";
        let mut text = Vec::new();
        let mut serializer = Serializer::with_formatter(&mut text, TerminalSafe::default());
        hostile.serialize(&mut serializer).expect("serialised");
        let text = String::from_utf8(text).expect("UTF-8");
        assert!(text.chars().all(|character| !character.is_control()));
        assert!(!text.contains(['\u{202e}', '\u{e0041}']));
        assert!(text.contains("é名"));
        assert_eq!(serde_json::from_str::<String>(&text).expect("read back"), hostile);
    }
}
