//! A process that is stopped while it waits for the store, and goes on.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::{env, fs};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::client::{grant, thousand};
use crate::requests::request;
use crate::scene::{PASSWORD, Server, client, server_program, wait_for};

/// The variable that gives a test's child the URL of its store.
const STORE: &str = "SHMLIMIT_FLEET_TEST_STORE";
const CHILD: &str = "stopped::asks_when_it_is_told_to";

/// In a test's child: makes one request to get connected, and another for each byte of its input.
#[test]
fn asks_when_it_is_told_to() {
    let Some(url) = env::var_os(STORE) else { return };
    let mut client = client(url.to_str().expect("text"), PASSWORD);
    let limit = thousand();
    let mut sequence = 0;
    let mut ask = || {
        sequence += 1;
        grant(&mut client, &request(&limit, 1, sequence, 1));
    };
    ask();
    say("connected");
    while std::io::stdin().read(&mut [0]).expect("read") == 1 {
        say(&format!("asks as {}", nix::unistd::gettid()));
        ask();
        say("answered");
    }
}

/// Prints a line, but not with `println!`, which waits for the end of the test.
fn say(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("a parent that reads");
}

/// Whether a thread is asleep.
fn sleeps(process: i32, thread: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/task/{thread}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| rest.starts_with('S'))
}

#[test]
fn an_exchange_of_a_process_that_was_stopped_is_no_outage() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let mut child = Command::new(env::current_exe().expect("this program"))
        .args(["--exact", CHILD, "--test-threads", "1", "--nocapture"])
        .env(STORE, server.url())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a process");
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process id"));
    let of_server = Pid::from_raw(server.pid());
    let mut input = child.stdin.take().expect("a pipe");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let mut hear = |word: &str| loop {
        let line = lines.next().expect("a line").expect("text");
        assert!(!line.contains("panicked"), "{line}");
        if let Some((_, rest)) = line.split_once(word) {
            return rest.trim().to_owned();
        }
    };
    hear("connected");
    for _ in 0..5 {
        kill(of_server, Signal::SIGSTOP).expect("stopped");
        input.write_all(b".").expect("a child that reads");
        let thread = hear("asks as ");
        wait_for("the exchange", || sleeps(pid.as_raw(), &thread));
        kill(pid, Signal::SIGSTOP).expect("stopped");
        wait_for("it to be stopped", || {
            let stat = fs::read_to_string(format!("/proc/{pid}/task/{thread}/stat")).unwrap_or_default();
            stat.contains(") T ")
        });
        kill(pid, Signal::SIGCONT).expect("continued");
        kill(of_server, Signal::SIGCONT).expect("continued");
        hear("answered");
    }
    drop(input);
    assert!(child.wait().expect("its own child").success());
}
