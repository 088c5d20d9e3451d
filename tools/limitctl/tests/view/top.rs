//! The full-screen view in a real terminal, compared with the counters.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use crate::support;
use crate::support::{Actor, TIMEOUT, create, directory, limitctl, run, text};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{Termios, tcgetattr};
use nix::unistd::Pid;

/// A tmux terminal of 80 by 24 in which a command runs. Its tmux server is its own, and ends with it.
struct Tmux {
    socket: std::path::PathBuf,
}

impl Tmux {
    /// `None` if the machine has no tmux.
    fn start(directory: &Path, command: &str) -> Option<Self> {
        let socket = directory.join("tmux");
        let started = support::command("tmux")
            .arg("-S")
            .arg(&socket)
            .args([
                "-f",
                "/dev/null",
                "-u",
                "new-session",
                "-d",
                "-x",
                "80",
                "-y",
                "24",
                command,
            ])
            .env("LC_ALL", "C.UTF-8")
            .env_remove("NO_COLOR")
            .stdin(Stdio::null())
            .status();
        match started {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                println!("skipped: no tmux");
                None
            }
            started => {
                assert!(started.expect("started").success());
                Some(Self { socket })
            }
        }
    }

    fn ask(&self, arguments: &[&str]) -> String {
        let answer = Command::new("tmux")
            .arg("-S")
            .arg(&self.socket)
            .args(arguments)
            .output()
            .expect("started");
        assert!(answer.status.success(), "{arguments:?} {answer:?}");
        String::from_utf8(answer.stdout).expect("UTF-8")
    }

    fn press(&self, keys: &str) {
        self.ask(&["send-keys", keys]);
    }

    /// The screen, once it is as wanted.
    fn wait_for(&self, what: &str, is_wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let screen = self.ask(&["capture-pane", "-p"]);
            if is_wanted(&screen) {
                return screen;
            }
            assert!(
                Instant::now() < deadline,
                "{what} is not on the screen:\n{screen}"
            );
        }
    }

    fn wait_for_text(&self, text: &str) -> String {
        self.wait_for(text, |screen| screen.contains(text))
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        // Found by its socket, so that no other server is affected.
        let _ = Command::new("tmux")
            .arg("-S")
            .arg(&self.socket)
            .arg("kill-server")
            .output();
    }
}

/// The number after these words on a screen.
fn number_after(screen: &str, words: &str) -> Option<u64> {
    let (_, rest) = screen.split_once(words)?;
    let digits: String = rest
        .chars()
        .take_while(|character| character.is_ascii_digit() || *character == ',')
        .filter(|character| *character != ',')
        .collect();
    digits.parse().ok()
}

#[test]
fn a_user_finds_the_counters_on_the_screen_and_the_terminal_as_it_was_after_it() {
    let directory = directory();
    let path = create(directory.path());
    let command = format!(
        "'{}' top --every 50ms '{}'; echo ended with $?; exec cat",
        env!("CARGO_BIN_EXE_limitctl"),
        text(&path)
    );
    let spinning = Actor::start("spin", &path);
    let Some(terminal) = Tmux::start(directory.path(), &command) else {
        return;
    };
    let reader = shmlimit::snapshot::SegmentReader::open(&path).expect("a segment");
    let refused = || reader.snapshot().expect("copied").sets[0].counts.refused_rate;

    let overview = terminal.wait_for_text("10 of 10");
    assert!(
        overview.contains("> api") && overview.contains("in_flight"),
        "{overview}"
    );
    assert!(overview.contains("1 process of 256"), "{overview}");
    assert!(
        overview.contains('█'),
        "the locale has block graphics: {overview}"
    );
    terminal.press("Enter");
    let page = terminal.wait_for_text("[holders");
    assert!(page.contains("› set api"), "{page}");
    // A number on a screen that was drawn between two counts is between them.
    let before = refused();
    let shown = |screen: &str| number_after(screen, "refused ").filter(|shown| *shown >= before);
    let screen = terminal.wait_for("a count of now", |screen| shown(screen).is_some());
    let after = refused();
    assert!(
        shown(&screen).is_some_and(|shown| shown <= after),
        "{screen}\n{before} {after}"
    );
    drop(spinning);

    // The contents stay the same while the view is paused.
    terminal.press("p");
    let paused = terminal.wait_for_text("PAUSED");
    run(["reset", text(&path)]).ended(0);
    terminal.press("s");
    let still = terminal.wait_for_text("by admitted");
    assert!(
        paused.contains("10 of 10") && still.contains("10 of 10"),
        "{still}"
    );
    terminal.press("p");
    terminal.wait_for_text(" 0 of 10");
    terminal.press("Escape");
    terminal.wait_for_text("> api");
    terminal.press("q");
    let end = terminal.wait_for_text("ended with 0");
    assert!(!end.contains("ADMITTED/S"), "{end}");
    assert_eq!(
        terminal.ask(&["display-message", "-p", "#{alternate_on}"]).trim(),
        "0"
    );
}

#[test]
fn a_terminal_that_changes_its_size_is_drawn_anew() {
    let directory = directory();
    let path = create(directory.path());
    let command = format!(
        "'{}' top --every 1h '{}'",
        env!("CARGO_BIN_EXE_limitctl"),
        text(&path)
    );
    let Some(terminal) = Tmux::start(directory.path(), &command) else {
        return;
    };
    terminal.wait_for_text("tab processes");
    terminal.ask(&["resize-window", "-x", "30", "-y", "10"]);
    terminal.wait_for_text("needs 40x10");
    terminal.ask(&["resize-window", "-x", "100", "-y", "30"]);
    terminal.wait_for_text("tab processes");
}

/// The view on a terminal of which the test reads every byte.
pub struct OnPty {
    child: Child,
    output: Receiver<Vec<u8>>,
    keyboard: File,
    seen: String,
    before: Termios,
    slave: std::os::fd::OwnedFd,
}

impl OnPty {
    fn start(path: &Path, environment: &[(&str, &str)]) -> Self {
        Self::start_with(&[], path, environment)
    }

    pub fn start_with(options: &[&str], path: &Path, environment: &[(&str, &str)]) -> Self {
        let size = nix::pty::Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pair = nix::pty::openpty(&size, None).expect("a terminal");
        let before = tcgetattr(&pair.slave).expect("a terminal");
        let own = || Stdio::from(pair.slave.try_clone().expect("cloned"));
        let child = limitctl()
            .args(["top", "--every", "20ms"])
            .args(options)
            .arg(path)
            .env("TERM", "xterm-256color")
            .envs(environment.iter().copied())
            .stdin(own())
            .stdout(own())
            .stderr(own())
            .spawn()
            .expect("started");
        let mut terminal = File::from(pair.master);
        let keyboard = terminal.try_clone().expect("cloned");
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = terminal.read(&mut bytes) {
                if sender.send(bytes[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            output,
            keyboard,
            seen: String::new(),
            before,
            slave: pair.slave,
        }
    }

    pub fn press(&mut self, keys: &[u8]) {
        self.keyboard.write_all(keys).expect("it reads");
    }

    /// Waits for the end of the view, which was asked for, and returns all that the terminal was sent.
    pub fn end(mut self) -> String {
        assert!(self.child.wait().expect("a child of ours").success());
        self.assert_given_back();
        self.seen
    }

    pub fn wait_for(&mut self, text: &str) {
        while !self.seen.contains(text) {
            let bytes = self.output.recv_timeout(TIMEOUT);
            let bytes = bytes.unwrap_or_else(|_| panic!("no {text:?} in {:?}", self.seen));
            self.seen.push_str(&String::from_utf8_lossy(&bytes));
        }
    }

    /// Asserts that the terminal shows its former contents and its cursor again, echoes, and reads lines.
    fn assert_given_back(&mut self) {
        self.wait_for("\u{1b}[?1049l");
        self.wait_for("\u{1b}[?25h");
        let after = tcgetattr(&self.slave).expect("a terminal");
        assert_eq!(after.local_flags, self.before.local_flags);
        assert_eq!(after.input_flags, self.before.input_flags);
    }
}

#[test]
fn a_signal_ends_it_and_the_terminal_is_given_back() {
    let directory = directory();
    let path = create(directory.path());
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        let mut view = OnPty::start(&path, &[]);
        view.wait_for("\u{1b}[?1049h");
        view.wait_for("api");
        kill(Pid::from_raw(view.child.id().cast_signed()), signal).expect("it lives");
        let status = view.child.wait().expect("a child of ours");
        assert_eq!(status.signal(), Some(signal as i32), "{status:?}");
        view.assert_given_back();
    }
}

#[test]
fn control_c_ends_it_like_q() {
    let directory = directory();
    let path = create(directory.path());
    for key in [b"\x03", b"q"] {
        let mut view = OnPty::start(&path, &[]);
        view.wait_for("api");
        view.press(key);
        view.end();
    }
}

#[test]
fn a_segment_that_is_damaged_while_it_is_shown_ends_it_with_the_terminal_as_it_was() {
    let directory = directory();
    let path = create(directory.path());
    let mut view = OnPty::start(&path, &[]);
    view.wait_for("api");
    let other = directory.path().join("other");
    std::fs::write(&other, "no segment").expect("written");
    std::fs::rename(&other, &path).expect("renamed");
    let status = view.child.wait().expect("a child of ours");
    assert_eq!(status.code(), Some(65));
    view.assert_given_back();
    view.wait_for("limitctl:");
}

#[test]
fn no_colours_are_written_where_no_one_wants_them() {
    let directory = directory();
    let path = create(directory.path());
    let is_colour = |view: &OnPty| {
        let codes = view.seen.split("\u{1b}[").filter_map(|rest| rest.split_once('m'));
        codes
            .flat_map(|(codes, _)| codes.split(';').map(str::to_owned).collect::<Vec<_>>())
            .any(|code| matches!(code.parse::<u8>(), Ok(30..=38 | 40..=48 | 90..=107)))
    };
    for (environment, expected) in [(&[][..], true), (&[("NO_COLOR", "1")], false)] {
        let mut view = OnPty::start(&path, environment);
        view.wait_for("api");
        view.keyboard.write_all(b"q").expect("it reads");
        assert!(view.child.wait().expect("a child of ours").success());
        view.assert_given_back();
        assert_eq!(is_colour(&view), expected, "{:?}", view.seen);
    }
}

#[test]
fn says_what_to_do_where_there_is_no_terminal() {
    let directory = directory();
    let path = create(directory.path());
    let refused = run(["top", text(&path)]).ended(64);
    assert!(refused.stderr.contains("limitctl watch"), "{refused:?}");
}
