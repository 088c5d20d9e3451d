//! Output to a terminal, to a closed pipe, and to a full disk.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

use crate::support;
use crate::support::{Actor, TIMEOUT, create, directory, limitctl, run, run_without_reader, text};

/// Everything that the program writes to its own terminal.
fn on_a_terminal(arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let pair = nix::pty::openpty(None, None).expect("a terminal");
    let mut child = limitctl()
        .args(arguments)
        .env("TERM", "xterm-256color")
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::from(pair.slave))
        .spawn()
        .expect("started");
    let mut terminal = File::from(pair.master);
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        // When the last process on the other side closes it, a terminal reports an error.
        let _ = terminal.read_to_end(&mut text);
        let _ = sender.send(text);
    });
    let text = receiver.recv_timeout(TIMEOUT);
    if text.is_err() {
        child.kill().expect("killed");
    }
    assert!(child.wait().expect("a child of ours").success());
    String::from_utf8(text.expect("it hung")).expect("UTF-8")
}

#[test]
fn colours_are_for_terminals_and_for_those_who_want_them() {
    let directory = directory();
    let path = create(directory.path());
    for arguments in [
        &["inspect", text(&path)][..],
        &["list", text(directory.path())],
        &["doctor", text(&path)],
        &["recover", text(&path)],
        &["--help"],
    ] {
        let coloured = on_a_terminal(arguments, &[]);
        assert!(coloured.contains("\u{1b}["), "{coloured:?}");
        let plain = on_a_terminal(arguments, &[("NO_COLOR", "1")]);
        assert!(!plain.contains('\u{1b}') && !plain.is_empty(), "{plain:?}");
        let piped = support::run_command(limitctl().args(arguments)).ended(0).stdout;
        assert!(!piped.contains('\u{1b}'), "{piped:?}");
    }
}

#[test]
fn a_reader_who_has_seen_enough_is_no_failure() {
    let directory = directory();
    let path = create(directory.path());
    let path = text(&path);
    for arguments in [
        &["inspect", path][..],
        &["inspect", "--json", path],
        &["list", text(directory.path())],
        &["doctor", path],
        &["selftest", text(directory.path())],
        &["recover", path],
        &["reset", path],
        &["--help"],
        &["man"],
        &["completions", "bash"],
    ] {
        run_without_reader(arguments);
    }
}

#[test]
fn an_answer_that_cannot_be_written_is_a_failure() {
    let full = File::options()
        .write(true)
        .open("/dev/full")
        .expect("Linux has it");
    let child = limitctl()
        .arg("--help")
        .stdin(Stdio::null())
        .stdout(full)
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let run = support::finish(child).ended(1);
    assert!(run.stderr.starts_with("limitctl: cannot write"), "{run:?}");
}

/// Asserts that neither form contains anything that a terminal would obey, and that the name is recognisable.
fn assert_shown_harmlessly(path: &Path, name: &str, as_text: &str) {
    let shown = run(["inspect", text(path)]).ended(0).stdout;
    assert!(shown.contains(as_text), "{shown:?}");
    let json = run(["inspect", "--json", text(path)]).ended(0);
    assert_eq!(json.json()["participants"][0]["name"], name);
    let doctor = run(["doctor", text(path)]).stdout;
    let doctor_json = run(["doctor", "--json", text(path)]).stdout;
    for output in [shown, json.stdout, doctor, doctor_json] {
        let harmless = |c: char| c == '\n' || !(c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c));
        assert!(output.chars().all(harmless), "{output:?}");
    }
}

#[test]
fn a_hostile_process_name_is_shown_and_not_obeyed() {
    let directory = directory();
    let path = create(directory.path());
    let name = "a\u{1b}[31m\u{202e}b\n";
    let actor = Actor::start(&format!("hold as {name}"), &path);
    // The kernel's name ends with a line feed, which the library takes for the end of the line.
    let name = name.trim_end();
    assert_shown_harmlessly(&path, name, r"a\u{1b}[31m\u{202e}b");
    actor.kill();
    assert_shown_harmlessly(&path, name, r"a\u{1b}[31m\u{202e}b");
}

#[test]
fn damaged_bytes_in_a_name_are_shown_and_not_obeyed() {
    let directory = directory();
    let path = create(directory.path());
    Actor::start("hold as benign_name", &path).kill();
    let mut bytes = fs::read(&path).expect("read");
    let benign = b"benign_name";
    let place = bytes
        .windows(benign.len())
        .position(|window| window == benign)
        .expect("the name of the process");
    let hostile = "\u{1b}]0;\u{9b}\u{7}\u{7f}\r\n";
    bytes[place..place + hostile.len()].copy_from_slice(hostile.as_bytes());
    bytes[place + hostile.len()..place + 32].fill(0);
    // Written in place: another inode would make it a copy, whose processes are not shown.
    fs::write(&path, bytes).expect("written");
    assert_shown_harmlessly(&path, hostile, r"\u{1b}]0;\u{9b}\u{7}\u{7f}\r\n");
}

#[test]
fn hostile_file_names_and_arguments_are_shown_and_not_obeyed() {
    let directory = directory();
    let path = create(directory.path());
    let hostile = directory.path().join("a\u{1b}[2J\u{202e}");
    fs::rename(path, &hostile).expect("renamed");
    let listing = run(["list", text(directory.path())]).ended(0).stdout;
    assert!(listing.contains(r"a\u{1b}[2J\u{202e}"), "{listing:?}");
    let inspection = run(["inspect", text(&hostile)]).ended(0).stdout;
    let doctor = run(["doctor", text(&hostile)]).ended(0).stdout;
    let export = run(["export", "--prometheus", text(&hostile)]).ended(0).stdout;
    let fleet = run(["fleet", text(&hostile)]).ended(64).stderr;
    let removal = run(["remove", text(&hostile)]).ended(0).stdout;
    let missing = run(["inspect", text(&hostile)]).ended(69).stderr;
    let wrong = run(["inspect", "--\u{1b}[2J"]).ended(64).stderr;
    for output in [
        listing, inspection, doctor, export, fleet, removal, missing, wrong,
    ] {
        assert!(!output.contains(['\u{1b}', '\u{202e}']), "{output:?}");
    }
}

#[test]
fn a_path_that_is_no_unicode_can_be_used() {
    use std::os::unix::ffi::OsStrExt;

    let directory = directory();
    let path = directory.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
    fs::rename(create(directory.path()), &path).expect("renamed");
    for arguments in [
        &["inspect"][..],
        &["inspect", "--json"],
        &["doctor", "--json"],
        &["recover", "--json"],
        &["remove"],
    ] {
        support::run_command(limitctl().args(arguments).arg(&path)).ended(0);
    }
}
