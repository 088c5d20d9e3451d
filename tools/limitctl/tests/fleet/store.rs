//! Verbs that ask the store of a fleet if no other process of the host does.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::scene::{PASSWORD, Server, server_program, wait_for};
use crate::support::{Run, create_declared, directory, limitctl, run, run_command, text};

/// A "host": its own segment, whose set `jobs` has one place and a window of three calls that hosts share.
fn host(directory: &Path, name: &str, server: &Server) -> PathBuf {
    let url = server.url();
    let declaration = format!(
        r#"
[fleet]
url = "{url}"

[[set]]
name = "jobs"

  [[set.limit]]
  name = "running"
  kind = "concurrency"
  capacity = 1
  fleet = {{ key = "org/running" }}

  [[set.limit]]
  name = "runs"
  kind = "calls"
  capacity = 3
  window = "30d"
  algorithm = "fixed_window"
  fleet = {{ key = "org/runs" }}
"#
    );
    create_declared(directory, name, &declaration)
}

fn with_password(mut command: Command) -> Run {
    run_command(command.env("SHMLIMIT_FLEET_PASSWORD", PASSWORD))
}

fn exec(segment: &Path, timeout: &str, command: &[&str]) -> Command {
    let mut exec = limitctl();
    exec.args(["exec", "--timeout", timeout, text(segment), "jobs", "--"])
        .args(command);
    exec
}

#[test]
fn jobs_of_two_hosts_exclude_each_other() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let directory = directory();
    let [first, second] = ["first", "second"].map(|name| host(directory.path(), name, &server));

    // The second host's job is refused while the first host's job runs.
    let mut inner = vec![env!("CARGO_BIN_EXE_limitctl"), "exec", "--timeout", "300ms"];
    inner.extend([text(&second), "jobs", "--", "true"]);
    let refused = with_password(exec(&first, "120s", &inner)).ended(75);
    assert!(refused.stderr.contains("running"), "{refused:?}");

    // The store has the place back at the latest one lease after that job.
    with_password(exec(&second, "120s", &["true"])).ended(0);
}

#[test]
fn what_a_job_leaves_is_given_back_by_drain() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let directory = directory();
    let path = host(directory.path(), "limits", &server);
    with_password(exec(&path, "120s", &["true"])).ended(0);

    let mut drain = limitctl();
    drain.args(["fleet", "drain", "--timeout", "120s", text(&path)]);
    let drained = with_password(drain).ended(0);
    assert!(drained.stdout.contains("everything is given back"), "{drained:?}");
}

#[test]
fn a_job_without_the_password_says_that_access_is_denied() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let directory = directory();
    let path = host(directory.path(), "limits", &server);
    let mut waiting = exec(&path, "1h", &["true"]).spawn().expect("started");
    wait_for("the denial", || {
        let shown = run(["fleet", "--json", text(&path)]).ended(0).json();
        shown["limits"][0]["problem"] == "denied"
    });
    waiting.kill().expect("its own child");
    waiting.wait().expect("its own child");
    // The message names the variable, so that the user can see what to set.
    let mut exec = exec(&path, "0", &["true"]);
    let wrong = run_command(exec.env("SHMLIMIT_FLEET_PASSWORD_FILE", "/nonexistent/password"));
    assert!(wrong.stderr.contains("/nonexistent/password"), "{wrong:?}");
}
