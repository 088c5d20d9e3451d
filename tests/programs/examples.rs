//! The programs in `examples/` do what they say. The shell script is run with limitctl's tests, the Python programs
//! with the Python package's.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use crate::example::example;

/// Longer than anything takes on the slowest machine; whatever takes longer hangs.
const DEADLINE: Duration = Duration::from_secs(300);

/// What it prints.
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

#[test]
fn the_gateway_admits_a_tenant_and_wants_one_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut gateway = example("shmlimit", "axum_gateway")
        .arg("127.0.0.1:0")
        .arg(directory.path().join("gateway.limits"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    let mut output = BufReader::new(gateway.stdout.take().expect("piped"));
    output.read_line(&mut line).expect("a line");
    let address = line
        .trim_end()
        .strip_prefix("listening on http://")
        .expect("an address");
    let answers = ["x-api-key: acme\r\n", ""].map(|key| {
        let mut connection = TcpStream::connect(address)?;
        connection.set_read_timeout(Some(DEADLINE))?;
        write!(
            connection,
            "POST /chat HTTP/1.1\r\nhost: gateway\r\n{key}content-length: 9\r\nconnection: close\r\n\r\nhow many?"
        )?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer)?;
        Ok::<_, std::io::Error>(answer)
    });
    gateway.kill().expect("it runs");
    gateway.wait().expect("it ends");
    let [named, nameless] = answers.map(|answer| answer.expect("an answer"));
    assert!(
        named.starts_with("HTTP/1.1 200") && named.ends_with("2 tokens\n"),
        "{named}"
    );
    assert!(nameless.starts_with("HTTP/1.1 400"), "{nameless}");
}
