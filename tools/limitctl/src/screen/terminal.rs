//! The terminal, which is taken over for the view, and restored however the program ends.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal, raise};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEvent};

/// An event at the terminal.
#[derive(Clone, Copy, Debug)]
pub enum Input {
    Key(KeyEvent),
    /// The terminal's size has changed.
    Resized,
    /// The program is asked to end.
    Signal(Signal),
    /// No more keys will come.
    Closed,
    /// Nothing happened in time.
    Nothing,
}

/// A terminal that shows only the view. Dropping this restores it.
#[derive(Debug)]
pub struct Session {
    pub terminal: DefaultTerminal,
    inputs: Receiver<Input>,
    signals: SigSet,
}

/// The signals that ask a program to end.
const SIGNALS: [Signal; 4] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];

impl Session {
    /// Whether there is a terminal to draw on and to read keys from.
    pub fn is_possible() -> bool {
        io::stdout().is_terminal() && io::stdin().is_terminal()
    }

    /// Takes over the terminal. A panic restores it before it prints its message.
    pub fn start() -> io::Result<Self> {
        let signals: SigSet = SIGNALS.into_iter().collect();
        // The threads started below inherit this mask, and one of them waits for the signals.
        signals.thread_block()?;
        let terminal = ratatui::try_init().inspect_err(|_| ratatui::restore())?;
        let (sender, inputs) = channel();
        let of_signals = sender.clone();
        thread::spawn(move || forward_signals(signals, &of_signals));
        thread::spawn(move || forward_events(&sender));
        Ok(Self {
            terminal,
            inputs,
            signals,
        })
    }

    /// Waits up to `at_most` for the next event.
    pub fn wait(&self, at_most: Duration) -> Input {
        match self.inputs.recv_timeout(at_most) {
            Ok(input) => input,
            Err(RecvTimeoutError::Timeout) => Input::Nothing,
            Err(RecvTimeoutError::Disconnected) => Input::Closed,
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        ratatui::restore();
        // A signal that has arrived meanwhile ends the program now, as it would have without the view.
        let _ = self.signals.thread_unblock();
    }
}

/// Ends the program with the signal that ended the view, after the terminal was restored. Only returns if the program
/// was started with the signal ignored.
pub fn end_by(signal: Signal) {
    let _ = raise(signal);
}

fn forward_signals(signals: SigSet, inputs: &Sender<Input>) {
    while let Ok(signal) = signals.wait() {
        if inputs.send(Input::Signal(signal)).is_err() {
            return;
        }
    }
}

fn forward_events(inputs: &Sender<Input>) {
    loop {
        let input = match event::read() {
            Ok(Event::Key(key)) => Input::Key(key),
            Ok(Event::Resize(..)) => Input::Resized,
            Ok(_) => continue,
            Err(_) => Input::Closed,
        };
        if inputs.send(input).is_err() || matches!(input, Input::Closed) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::process::{Command, Stdio};

    use super::*;

    /// The test sets this in the copy of itself that it starts.
    const ROLE: &str = "LIMITCTL_TEST_PANICS";

    #[test]
    fn a_panic_gives_the_terminal_back_before_its_message() {
        if std::env::var_os(ROLE).is_some() {
            let _session = Session::start().expect("a terminal");
            panic!("on purpose");
        }
        let pair = nix::pty::openpty(None, None).expect("a terminal");
        let before = nix::sys::termios::tcgetattr(&pair.slave).expect("a terminal");
        let own = || Stdio::from(pair.slave.try_clone().expect("cloned"));
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args([
                "--exact",
                "screen::terminal::tests::a_panic_gives_the_terminal_back_before_its_message",
            ])
            .args(["--nocapture", "--test-threads=1"])
            .env(ROLE, "1")
            .stdin(own())
            .stdout(own())
            .stderr(own())
            .spawn()
            .expect("started");
        let mut terminal = File::from(pair.master);
        let reading = thread::spawn(move || {
            let mut text = Vec::new();
            // When the last process on the other side closes it, a terminal reports an error.
            let _ = terminal.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        assert!(!child.wait().expect("a child of ours").success());
        let after = nix::sys::termios::tcgetattr(&pair.slave).expect("a terminal");
        assert_eq!(after.local_flags, before.local_flags);
        drop(pair.slave);
        let text = reading.join().expect("read");
        let taken = text.find("\u{1b}[?1049h").expect("taken over");
        let given = text.find("\u{1b}[?1049l").expect("given back");
        let said = text.find("on purpose").expect("its message");
        assert!(taken < given && given < said, "{text:?}");
    }
}
