//! The programs in `examples/` do what they say. The shell script is run with limitctl's tests, the Python programs
//! with the Python package's.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use shmlimit::Segment;
use tempfile::TempDir;

use crate::example::example;

/// Longer than anything takes on the slowest machine; whatever takes longer hangs.
const DEADLINE: Duration = Duration::from_secs(300);

/// What the example prints.
fn output_of(name: &str) -> String {
    let output = example("shmlimit", name).output().expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn the_quick_start_is_admitted_refused_and_admitted_again() {
    assert_eq!(
        output_of("quick_start"),
        "admitted, and 150 tokens came back\nrefused by in_flight\nadmitted after the first had ended\n"
    );
}

#[test]
fn each_client_has_its_own_and_the_partner_more() {
    assert_eq!(
        output_of("keyed_clients"),
        "acme: 2 admitted\nglobex: 2 admitted\npartner: 4 admitted\nmost was admitted of partner\n"
    );
}

#[test]
fn the_fleet_sends_no_more_than_the_limit_and_gets_the_place_of_the_killed_worker() {
    assert_eq!(
        output_of("worker_fleet"),
        "four workers sent 100 messages\nthe place of the killed worker came back\n"
    );
}

/// The example gateway, with a port and a segment of its own.
struct Gateway {
    process: Child,
    address: String,
    directory: TempDir,
}

impl Gateway {
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut process = example("shmlimit", "axum_gateway")
            .arg("127.0.0.1:0")
            .arg(directory.path().join("gateway.limits"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        let mut output = BufReader::new(process.stdout.take().expect("piped"));
        output.read_line(&mut line).expect("a line");
        let address = line.trim_end().strip_prefix("listening on http://");
        Self {
            address: address.expect("an address").to_owned(),
            process,
            directory,
        }
    }

    /// Sends a request with this header, if any. The answer is left to be read.
    fn ask(&self, key: &str) -> TcpStream {
        let mut connection = TcpStream::connect(&self.address).expect("it listens");
        connection.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        write!(
            connection,
            "POST /chat HTTP/1.1\r\nhost: gateway\r\n{key}content-length: 9\r\nconnection: close\r\n\r\nhow many?"
        )
        .expect("it reads");
        connection
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("it ends");
    }
}

fn answer(mut connection: TcpStream) -> String {
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn the_gateway_admits_a_tenant_and_wants_one_named() {
    let gateway = Gateway::start();
    let [named, nameless] = ["x-api-key: acme\r\n", ""].map(|key| answer(gateway.ask(key)));
    assert!(
        named.starts_with("HTTP/1.1 200") && named.ends_with("2 tokens\n"),
        "{named}"
    );
    assert!(nameless.starts_with("HTTP/1.1 400"), "{nameless}");
}

#[test]
fn a_tenant_of_the_gateway_waits_until_others_leave_a_place() {
    let gateway = Gateway::start();
    let segment = Segment::open(gateway.directory.path().join("gateway.limits")).expect("the gateway's");
    let tenants = segment.set("tenants").expect("declared");
    let all = tenants.request().with("tokens", 1);
    let all = all
        .and_then(|it| it.with("in_flight", 1))
        .and_then(|it| it.with("at_the_model", 64))
        .and_then(|it| it.for_key("globex"));
    let held = all.expect("declared").try_permit().expect("nobody has any");
    let asked = gateway.ask("x-api-key: acme\r\n");
    let is_decided = || {
        let sets = segment.snapshot().expect("it is there").sets;
        sets.iter()
            .any(|set| !set.tickets.is_empty() || set.counts.refused_concurrency > 0)
    };
    let begun = Instant::now();
    while !is_decided() && begun.elapsed() < DEADLINE {
        thread::yield_now();
    }
    drop(held);
    let answer = answer(asked);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
