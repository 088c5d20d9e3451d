//! What a process held is given back when it executes another program, although it lives on with the same id.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::scene::expect_permit;
use shmlimit::{Declaration, Limit, Segment, SetDeclaration};

const PATH: &str = "SHMLIMIT_TEST_EXEC_PATH";
const DEADLINE: Duration = Duration::from_secs(300);

/// A process that is ended with the test, however the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn hold_everything(path: &str) {
    let segment = Segment::open(path).expect("the starter made it");
    let pool = segment.set("pool").expect("declared");
    std::mem::forget(expect_permit(pool.request().try_acquire()));
    println!("held");
    std::mem::forget(segment);
}

#[test]
fn a_hold_does_not_outlive_an_exec() {
    if let Ok(path) = std::env::var(PATH) {
        // An alarm survives an exec: if something hangs here, this process ends, and with it the reading below.
        nix::unistd::alarm::set(2 * DEADLINE.as_secs() as u32);
        hold_everything(&path);
        // Waits for the end of its input, which comes when the starter ends at the latest.
        panic!("{}", Command::new("cat").exec());
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limits");
    let declaration = Declaration::new()
        .add_set(SetDeclaration::new("pool").add_limit(Limit::concurrency("connections", 1)));
    let segment = Segment::create(&path, &declaration).expect("a segment");
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "exec::a_hold_does_not_outlive_an_exec", "--nocapture"])
        .env(PATH, &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map(Running)
        .expect("a child");
    let output = BufReader::new(child.0.stdout.take().expect("piped"));
    assert!(
        output
            .lines()
            .any(|line| line.is_ok_and(|line| line.ends_with("held")))
    );
    let pool = segment.set("pool").expect("declared");
    let deadline = Instant::now() + DEADLINE;
    while !pool.request().try_acquire().expect("works").is_admitted() {
        assert!(
            Instant::now() < deadline,
            "what was held before the exec was not given back"
        );
        std::thread::yield_now();
    }
    assert!(
        child.0.try_wait().expect("asked").is_none(),
        "the process lives on"
    );
}
