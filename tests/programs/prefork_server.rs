//! The example server with real traffic: its limits hold, a killed worker's permits come back, nothing stays behind.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{fs, thread};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const DEADLINE: Duration = Duration::from_secs(300);

/// The running example, which is ended with the test, however the test ends.
struct Server {
    process: Child,
    segment: PathBuf,
    _directory: tempfile::TempDir,
}

impl Server {
    fn start(config: Option<&str>, arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let segment = directory.path().join("prefork.limits");
        let test = std::env::current_exe().expect("this test");
        let profile = test
            .parent()
            .and_then(Path::parent)
            .expect("the directory of the profile");
        let example = profile.join("examples/prefork_server");
        assert!(
            example.exists(),
            "`cargo test` builds the example, a single `--test` does not: cargo build --example prefork_server"
        );
        let mut command = Command::new(example);
        command
            .arg("--json")
            .arg("--segment")
            .arg(&segment)
            .args(arguments);
        if let Some(config) = config {
            let path = directory.path().join("limits.toml");
            fs::write(&path, config).expect("a file");
            command.arg("--config").arg(path);
        }
        let process = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example starts");
        Self {
            process,
            segment,
            _directory: directory,
        }
    }

    /// Starts it with `--serve` and more. Returns what it says about itself.
    fn serve(config: &str, more: &[&str]) -> (Self, Value) {
        let mut server = Self::start(Some(config), &[&["--serve"], more].concat());
        let stdout = BufReader::new(server.process.stdout.take().expect("piped"));
        let line = in_time(move || {
            let mut stdout = stdout;
            let mut line = String::new();
            stdout.read_line(&mut line).expect("a line");
            // The pipe stays open for as long as the server may write to it.
            thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
            line
        });
        let started = serde_json::from_str(&line).expect("JSON");
        (server, started)
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.process.id().try_into().expect("a pid"));
        kill(pid, signal).expect("it is running");
    }

    /// Its final report, which must be a success.
    fn report(&mut self) -> Value {
        let mut stdout = self.process.stdout.take().expect("piped");
        let output = in_time(move || {
            let mut output = String::new();
            stdout.read_to_string(&mut output).expect("text");
            output
        });
        assert!(self.wait().success(), "{output}");
        serde_json::from_str(&output).expect("JSON")
    }

    fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the example ends", || {
            status = self.process.try_wait().expect("a child");
            status.is_some()
        });
        status.expect("it ended")
    }

    /// The processes started by this one or its children, found by the name of the segment that they all share.
    fn processes(&self) -> Vec<PathBuf> {
        let name = self.segment.as_os_str().as_encoded_bytes();
        let processes = fs::read_dir("/proc")
            .expect("/proc")
            .flatten()
            .map(|entry| entry.path());
        processes
            .filter(|process| {
                // Whatever has ended meanwhile is not running; a zombie has no command line.
                let command = fs::read(process.join("cmdline")).unwrap_or_default();
                command.split(|byte| *byte == 0).any(|argument| argument == name)
            })
            .collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The result of a thread of its own, unless that takes too long.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    // The test may have given up.
    thread::spawn(move || drop(sender.send(work())));
    receiver.recv_timeout(DEADLINE).expect("an answer in time")
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_demonstration_kills_a_worker_and_every_limit_holds() {
    let mut server = Server::start(None, &["--seconds", "2"]);
    let report = server.report();

    let workers = report["workers"].as_array().expect("a list");
    assert_eq!(
        workers.len(),
        5,
        "four workers, and the one that replaces the killed one"
    );
    let admitted = |row: &Value| row["answers"]["admitted"].as_u64().expect("a number");
    let total = admitted(&report["total"]);
    assert_eq!(workers.iter().map(admitted).sum::<u64>(), total);
    assert!(total > 0);
    let seconds = report["seconds"].as_f64().expect("a number");
    assert!(total as f64 <= 20.0 + 200.0 * seconds, "{total} in {seconds} s");
    let refused = report["total"]["answers"]["refused"]
        .as_object()
        .expect("by limit");
    assert!(
        refused.values().any(|count| count.as_u64() > Some(0)),
        "the client asks for more"
    );

    let checks = report["checks"].as_array().expect("a list");
    for check in checks {
        assert_eq!(check["held"], true, "{check}");
    }
    let held = checks.iter().filter(|check| check["subject"] == "in_flight");
    for check in held {
        assert!(
            (1..=8).contains(&check["counted"].as_u64().expect("a number")),
            "{check}"
        );
    }

    let keys = report["keys"].as_array().expect("a list");
    assert_eq!(keys.len(), 6);
    for key in keys {
        assert_eq!(key["admitted"], 5, "{key}");
        assert_eq!(key["requests"], 10, "{key}");
    }
    assert!(
        keys.iter().any(|key| key["workers"].as_u64() > Some(1)),
        "the same key is limited in several processes: {keys:?}"
    );

    let killed = &report["killed"];
    assert!(killed["held"].as_u64() > Some(0), "{killed}");
    assert!(
        killed["freed_after_us"].is_u64() && killed["replacement"].is_u64(),
        "{killed}"
    );
    assert!(!server.segment.exists());
    assert_eq!(server.processes(), Vec::<PathBuf>::new());
}

const TWO_A_MINUTE: &str = r#"
    [[set]]
    name = "api"

      [[set.limit]]
      name = "requests"
      kind = "calls"
      capacity = 2
      window = "60s"

      [[set.limit]]
      name = "in_flight"
      kind = "concurrency"
      capacity = 8
"#;

#[test]
fn serves_until_sigterm_and_tells_clients_how_the_limits_stand() {
    let (mut server, started) = Server::serve(TWO_A_MINUTE, &[]);
    let address = started["listening"].as_str().expect("an address");
    let pids: Vec<String> = started["workers"]
        .as_array()
        .expect("a list")
        .iter()
        .map(Value::to_string)
        .collect();

    let mut earlier = None;
    for expected in [1, 0] {
        let answer = Answer::get(address);
        assert_eq!(answer.status, 200);
        assert!(pids.contains(&answer.fields["server-worker"]));
        assert!(!answer.fields.contains_key("retry-after"));
        assert_eq!(
            items(&answer.fields["ratelimit-policy"]),
            [
                ("requests", BTreeMap::from([("q", "2"), ("w", "60")])),
                (
                    "in_flight",
                    BTreeMap::from([("q", "8"), ("qu", "\"concurrent-requests\"")])
                ),
            ]
        );
        let limits = items(&answer.fields["ratelimit"]);
        let [("requests", requests), ("in_flight", in_flight)] = &limits[..] else {
            panic!("{limits:?}")
        };
        assert_eq!(requests["r"], expected.to_string());
        assert!((1..=60).contains(&requests["t"].parse().expect("a number")));
        assert_eq!(in_flight, &BTreeMap::from([("r", "7")]));
        let policy = answer.fields["ratelimit-policy"].clone();
        assert_eq!(*earlier.get_or_insert_with(|| policy.clone()), policy);
    }

    let answer = Answer::get(address);
    assert_eq!(answer.status, 429);
    let retry_after: u64 = answer.fields["retry-after"].parse().expect("a number");
    assert!((1..=30).contains(&retry_after));
    let limits = items(&answer.fields["ratelimit"]);
    assert_eq!(limits[0].1["r"], "0");
    assert!(limits[0].1["t"].parse::<u64>().expect("a number") <= retry_after);
    let problem: Value = serde_json::from_str(&answer.body).expect("JSON");
    assert_eq!(answer.fields["content-type"], "application/problem+json");
    assert_eq!(problem["violated-policies"], serde_json::json!(["requests"]));

    assert!(server.segment.exists());
    server.signal(Signal::SIGTERM);
    assert!(server.wait().success());
    assert!(!server.segment.exists());
    assert_eq!(server.processes(), Vec::<PathBuf>::new());
}

#[test]
fn a_killed_worker_is_replaced_and_the_count_goes_on() {
    let (_server, started) = Server::serve(TWO_A_MINUTE, &[]);
    let address = started["listening"].as_str().expect("an address");
    for _ in 0..2 {
        assert_eq!(Answer::get(address).status, 200);
    }
    let old: Vec<String> = started["workers"]
        .as_array()
        .expect("a list")
        .iter()
        .map(Value::to_string)
        .collect();
    for pid in &old {
        kill(Pid::from_raw(pid.parse().expect("a pid")), Signal::SIGKILL).expect("it is running");
    }
    // Whatever waits in the socket is answered by the replacements, which know what was admitted before them.
    let deadline = Instant::now() + DEADLINE;
    let answer = loop {
        assert!(Instant::now() < deadline, "no answer comes");
        // A connection that a dying worker took with it is cut off.
        if let Some(answer) = Answer::try_get(address, None)
            && !old.contains(&answer.fields["server-worker"])
        {
            break answer;
        }
    };
    assert_eq!(answer.status, 429);
}

const FIVE_AN_HOUR_FOR_EACH_KEY: &str = r#"
    [[set]]
    name = "everyone"

      [[set.limit]]
      name = "requests"
      kind = "calls"
      capacity = 1
      window = "1h"

    [[set]]
    name = "clients"
    keyed = { max_keys = 1000 }

      [[set.limit]]
      name = "per_key"
      kind = "calls"
      capacity = 5
      window = "1h"
"#;

#[test]
fn each_key_gets_exactly_its_own_of_four_workers_and_no_more_of_those_that_replace_them() {
    let (_server, started) = Server::serve(FIVE_AN_HOUR_FOR_EACH_KEY, &["--work-ms", "1"]);
    let address = started["listening"].as_str().expect("an address");
    let workers: Vec<String> = started["workers"]
        .as_array()
        .expect("a list")
        .iter()
        .map(Value::to_string)
        .collect();
    assert_eq!(workers.len(), 4);
    assert_eq!(Answer::get(address).status, 200);
    assert_eq!(
        Answer::get(address).status,
        429,
        "requests without a key share one"
    );

    let keys = ["ann", "bob", "eve", "dan"];
    thread::scope(|scope| {
        let clients = keys.map(|key| {
            let requests = [(); 12].map(|()| scope.spawn(move || Answer::get_as(address, key)));
            (key, requests)
        });
        for (key, requests) in clients {
            let answers = requests.map(|request| request.join().expect("an answer"));
            let admitted = answers.iter().filter(|answer| answer.status == 200).count();
            assert_eq!(admitted, 5, "{key}");
            for refused in answers.iter().filter(|answer| answer.status != 200) {
                assert_eq!(refused.status, 429);
                let retry_after: u64 = refused.fields["retry-after"].parse().expect("a number");
                assert!((1..=720).contains(&retry_after));
            }
        }
    });

    for worker in &workers {
        kill(Pid::from_raw(worker.parse().expect("a pid")), Signal::SIGKILL).expect("it is running");
    }
    wait_until("the replacements answer", || {
        // A connection that a dying worker took with it is cut off.
        Answer::try_get(address, Some("ann")).is_some_and(|answer| {
            assert_eq!(answer.status, 429);
            !workers.contains(&answer.fields["server-worker"])
        })
    });
    for expected in [200, 200, 200, 200, 200, 429] {
        assert_eq!(Answer::get_as(address, "new").status, expected);
    }
}

#[test]
fn requests_wait_their_turn_instead_of_being_refused() {
    let one_at_a_time = r#"
        [[set]]
        name = "api"

          [[set.limit]]
          name = "in_flight"
          kind = "concurrency"
          capacity = 1
    "#;
    let (_server, started) = Server::serve(one_at_a_time, &["--wait", "1m", "--work-ms", "20"]);
    let address = started["listening"].as_str().expect("an address");
    thread::scope(|scope| {
        let clients: Vec<_> = (0..16).map(|_| scope.spawn(|| Answer::get(address))).collect();
        for client in clients {
            assert_eq!(client.join().expect("an answer").status, 200);
        }
    });
}

#[test]
fn every_limit_holds_for_requests_that_waited_too() {
    let mut server = Server::start(None, &["--seconds", "2", "--wait", "200ms"]);
    let report = server.report();
    assert_eq!(report["held"], true);
}

#[test]
fn two_hosts_share_a_limit_while_their_store_is_killed() {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has_store = std::env::split_paths(&path).any(|directory| {
        ["redis-server", "valkey-server"]
            .iter()
            .any(|name| directory.join(name).is_file())
    });
    if !has_store {
        println!("skipped: no redis-server");
        return;
    }
    let mut server = Server::start(None, &["--fleet", "auto", "--seconds", "20"]);
    let report = server.report();
    assert_eq!(report["held"], true, "{report}");
    assert!(
        report["admitted"].as_u64() <= report["allowed"].as_u64(),
        "{report}"
    );
    let hosts = report["hosts"].as_array().expect("two hosts");
    for host in hosts {
        let admitted = host["admitted"].as_array().expect("phases");
        let of_phase = |phase: usize| admitted[phase].as_u64().expect("a number");
        assert!(of_phase(0) > 0 && of_phase(1) > 0 && of_phase(3) > 0, "{report}");
    }
    assert!(report["takeovers"].as_u64() >= Some(1), "{report}");
}

#[test]
fn workers_do_not_outlive_a_killed_parent() {
    let (mut server, _) = Server::serve(TWO_A_MINUTE, &[]);
    assert!(server.processes().len() > 1);
    server.signal(Signal::SIGKILL);
    assert!(!server.wait().success());
    wait_until("the workers end", || server.processes().is_empty());
}

/// A server's answer to a request on a connection of its own.
struct Answer {
    status: u16,
    fields: BTreeMap<String, String>,
    body: String,
}

impl Answer {
    fn get(address: &str) -> Self {
        Self::try_get(address, None).expect("an answer")
    }

    fn get_as(address: &str, key: &str) -> Self {
        Self::try_get(address, Some(key)).expect("an answer")
    }

    fn try_get(address: &str, key: Option<&str>) -> Option<Self> {
        let mut connection = TcpStream::connect(address).ok()?;
        connection.set_read_timeout(Some(DEADLINE)).ok()?;
        let key = key.map(|key| format!("X-Api-Key: {key}\r\n")).unwrap_or_default();
        let request = format!("GET / HTTP/1.1\r\nHost: {address}\r\n{key}Connection: close\r\n\r\n");
        connection.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let mut lines = head.lines();
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let fields = lines.filter_map(|line| line.split_once(": "));
        Some(Self {
            status,
            fields: fields
                .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
                .collect(),
            body: body.to_owned(),
        })
    }
}

/// The items of a list of structured-field strings with parameters. The names here need no full parser.
fn items(list: &str) -> Vec<(&str, BTreeMap<&str, &str>)> {
    let items = list.split(", ").map(|item| {
        let mut parts = item.split(';');
        let name = parts
            .next()
            .and_then(|name| name.strip_prefix('"')?.strip_suffix('"'));
        let parameters = parts.map(|parameter| parameter.split_once('=').expect("a value"));
        (name.expect("a quoted name"), parameters.collect())
    });
    items.collect()
}
