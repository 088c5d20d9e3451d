//! The permit of a command is held until everything that the command started has ended.

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgid};

use crate::exec::{
    Running, WAITING_TO_BE_TOLD, exec, has_ended, keeper, one_place, one_runs_and_one_waits, run_exec,
    signal, until, until_a_command_waits,
};
use crate::support::{create_declared, directory, text};

/// Jobs that leave something running in different ways. Each prints the id of the process that reads the input and runs
/// until the input ends.
const JOBS: [&str; 5] = [
    "exec sh -c 'echo $$; read told'",
    "sh -c 'echo $$; read told'; exit 0",
    "timeout 1h sh -c 'echo $$; read told'",
    "sh -c 'echo $$; read told' | cat",
    "exec setsid sh -c 'echo $$; read told'",
];

#[test]
fn the_job_keeps_its_place_when_limitctl_is_killed_until_all_of_it_has_ended() {
    let directory = directory();
    let segment = one_place(directory.path());
    for job in JOBS {
        let mut first = Running::start(&mut exec(&segment, "jobs", &[], job));
        let reads = first.number();
        first.child.kill().expect("it runs");
        assert_eq!(first.end().signal(), Some(Signal::SIGKILL as i32));
        run_exec(&segment, "jobs", &["--timeout", "0"], "echo ran").ended(75);
        assert!(!has_ended(reads), "{job}");
        let second = Running::start(&mut exec(&segment, "jobs", &[], "echo second"));
        until_a_command_waits(&segment);
        first.say("go on");
        assert_eq!(second.line(), "second", "{job}");
    }
}

#[test]
fn a_whole_group_that_is_killed_leaves_the_place_to_what_survives_in_another() {
    let directory = directory();
    let segment = one_place(directory.path());
    let mut command = exec(&segment, "jobs", &[], "timeout 1h sh -c 'echo $$; read told'");
    let mut first = Running::start(command.process_group(0));
    let reads = first.number();
    let keeper = Pid::from_raw(keeper(&segment).cast_signed());
    until("the keeper has left the group", || {
        getpgid(Some(keeper)) == Ok(keeper)
    });
    kill(Pid::from_raw(-first.pid().cast_signed()), Signal::SIGKILL).expect("it is there");
    assert_eq!(first.end().signal(), Some(Signal::SIGKILL as i32));
    run_exec(&segment, "jobs", &["--timeout", "0"], "echo ran").ended(75);
    assert!(!has_ended(reads));
    first.say("go on");
    run_exec(&segment, "jobs", &[], "echo ran").ended(0);
}

#[test]
fn what_a_command_leaves_behind_holds_its_place_and_limitctl_does_not_wait_for_it() {
    let directory = directory();
    let segment = one_place(directory.path());
    let pipe = directory.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("made");
    // A daemon: its parents have ended, it is in its own session, and it has none of the streams.
    let script = format!(
        "setsid sh -c 'sh -c \"read told < {}\" <&- >&- 2>&- &' & wait; exit 3",
        text(&pipe)
    );
    let run_ = run_exec(&segment, "jobs", &[], &script).ended(3);
    assert_eq!(run_.stdout, "");
    let refused = run_exec(&segment, "jobs", &["--timeout", "0"], "echo ran").ended(75);
    assert_eq!(refused.stdout, "");
    fs::write(&pipe, "go on\n").expect("it reads");
    run_exec(&segment, "jobs", &[], "exit 0").ended(0);
}

#[test]
fn killing_the_keeper_ends_the_command_and_frees_its_place() {
    let directory = directory();
    let segment = one_place(directory.path());
    let mut first = Running::start(&mut exec(&segment, "jobs", &[], WAITING_TO_BE_TOLD));
    let command = first.number();
    for harmless in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGTSTP] {
        signal(keeper(&segment), harmless);
    }
    run_exec(&segment, "jobs", &["--timeout", "0"], "echo ran").ended(75);
    signal(keeper(&segment), Signal::SIGKILL);
    run_exec(&segment, "jobs", &[], "exit 0").ended(0);
    until("the command has ended", || has_ended(command));
    assert_eq!(first.end().signal(), Some(Signal::SIGKILL as i32));
}

#[test]
fn killing_limitctl_while_it_waits_gives_its_place_in_the_queue_up() {
    let directory = directory();
    let segment = one_place(directory.path());
    let (mut first, _, mut second) = one_runs_and_one_waits(&segment);
    second.child.kill().expect("it runs");
    second.end();
    assert!(second.rest().is_empty());
    first.say("go on");
    assert_eq!(first.end().code(), Some(0));
    run_exec(&segment, "jobs", &[], "exit 0").ended(0);
}

#[test]
fn waits_for_a_place_among_the_participants() {
    let directory = directory();
    let segment = create_declared(
        directory.path(),
        "jobs",
        "[segment]\nparticipants = 2\n[[set]]\nname = \"jobs\"\n[[set.limit]]\nname = \"running\"\n\
         kind = \"concurrency\"\ncapacity = 1\n",
    );
    let (mut first, _, mut second) = one_runs_and_one_waits(&segment);
    for timeout in ["0", "50ms"] {
        let refused = run_exec(&segment, "jobs", &["--timeout", timeout], "echo ran").ended(75);
        assert!(
            refused.stderr.contains("no room for another process"),
            "{refused:?}"
        );
        let options = ["--timeout", timeout, "--conflict-exit-code", "9"];
        run_exec(&segment, "jobs", &options, "echo ran").ended(9);
    }
    let mut third = Running::start(&mut exec(&segment, "jobs", &[], "echo third"));
    first.say("go on");
    assert_eq!(third.line(), "third");
    for running in [&mut first, &mut second, &mut third] {
        assert_eq!(running.end().code(), Some(0));
    }
}
