//! The examples: a declaration, and a job that does not overlap itself.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::host::with_limitctl_on_path;
use crate::support::{command, directory, run_command};
use shmlimit::{Declaration, Segment};

#[test]
fn the_gateway_declaration_makes_a_segment_that_admits() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/gateway.toml");
    let declaration = Declaration::from_toml_file(&path).expect("a declaration");
    let directory = directory();
    let segment = Segment::create(directory.path().join("gateway.limits"), &declaration).expect("a segment");
    let chat = segment.set("chat").expect("declared");
    let request = chat.request().with("tokens", 1_500).expect("declared");
    assert!(request.try_acquire().expect("works").is_admitted());
    let batch = segment.set("batch").expect("declared");
    let mut permit = batch
        .request()
        .try_acquire()
        .expect("works")
        .into_result()
        .expect("a full budget");
    permit.settle([("dollars", 12)]).expect("twelve cents");

    let tenants = segment.set("tenants").expect("declared");
    let request = tenants.request().with("requests", 60).expect("declared");
    for (tenant, expected) in [("acme", true), ("acme", false), ("globex", true)] {
        assert_eq!(
            request
                .for_key(tenant)
                .expect("keyed")
                .check()
                .expect("works")
                .is_admitted(),
            expected
        );
    }
}

/// The job, with the limitctl under test first on the path.
fn job(segment: &Path, arguments: &[&str]) -> Command {
    let mut job = command(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/cron_no_overlap.sh"));
    with_limitctl_on_path(&mut job);
    job.arg(segment).args(arguments);
    job
}

#[test]
fn the_job_of_cron_does_not_overlap_itself() {
    let directory = directory();
    let segment = directory.path().join("job.limits");
    let mut first = job(&segment, &["sh", "-c", "echo started; read line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut started = String::new();
    let mut output = BufReader::new(first.stdout.take().expect("piped"));
    output.read_line(&mut started).expect("a line");
    assert_eq!(started, "started\n");
    let second = run_command(&mut job(&segment, &["echo", "overlaps"])).ended(75);
    assert_eq!(second.stdout, "");
    assert!(second.stderr.contains("running"), "{second:?}");
    drop(first.stdin.take());
    first.wait().expect("it ends");
    let third = run_command(&mut job(&segment, &["echo", "its turn"])).ended(0);
    assert_eq!(third.stdout, "its turn\n");
}
