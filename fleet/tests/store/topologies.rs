//! TLS, a cluster of three servers, and a primary that fails, with a replica and a sentinel.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::requests::{self, backlog};
use crate::scene;
use crate::scene::cluster;
use crate::scene::fake_sentinel::FakeSentinel;
use crate::scene::proxy::Proxy;
use crate::scene::{DEADLINE, PASSWORD, Server, patient, server_program, wait_for};
use shmlimit::fleet::{LeaseRequest, LeasedLimit, StoreProblem};
use shmlimit_fleet::{Credentials, StoreAnswer, StoreClient, StoreError, Terms, Timeouts};

fn limit(lease: Duration) -> LeasedLimit {
    backlog(1_000, Duration::from_secs(3_600_000), 1_000, lease)
}

fn request(key: &str, sequence: u64, wanted: u64, lease: Duration) -> (LeaseRequest, Terms) {
    let declared = limit(lease);
    let terms = Terms::new(&declared, 0).expect("countable");
    let request = LeaseRequest {
        key: key.to_owned(),
        ..requests::request(&declared, 1, sequence, wanted)
    };
    (request, terms)
}

fn granted(answer: &Result<StoreAnswer, StoreError>) -> u64 {
    match answer {
        Ok(StoreAnswer::Granted(grant)) => grant.reply.granted,
        other => panic!("{other:?}"),
    }
}

const LEASE: Duration = Duration::from_secs(60);

/// A self-signed certificate for 127.0.0.1; `None` if there is no openssl.
fn certificate(directory: &Path) -> Option<()> {
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
        ])
        .args([
            "-days",
            "36500",
            "-subj",
            "/CN=shmlimit test",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        ])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(directory.join("key.pem"))
        .arg("-out")
        .arg(directory.join("certificate.pem"))
        .output();
    let is_made = made.is_ok_and(|output| output.status.success());
    if !is_made {
        println!("skipped: no openssl");
    }
    is_made.then_some(())
}

#[test]
fn asks_over_tls_and_only_servers_that_it_trusts() {
    let Some(program) = server_program() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let Some(()) = certificate(directory.path()) else {
        return;
    };
    let path = |name: &str| directory.path().join(name).to_str().expect("text").to_owned();
    let mut arguments: Vec<String> = ["--requirepass", PASSWORD, "--tls-auth-clients", "no"]
        .map(str::to_owned)
        .into();
    for (option, value) in [
        ("--tls-cert-file", path("certificate.pem")),
        ("--tls-key-file", path("key.pem")),
        ("--tls-ca-cert-file", path("certificate.pem")),
    ] {
        arguments.extend([option.to_owned(), value]);
    }
    let Some(server) = Server::start_with_tls(&program, &arguments) else {
        println!("skipped: the server has no TLS");
        return;
    };
    let url = format!("rediss://127.0.0.1:{}", server.port);
    let certificate = fs::read(path("certificate.pem")).expect("a certificate");
    let client =
        |credentials: Credentials| StoreClient::new(url.parse().expect("valid"), credentials, patient());
    let mut trusting = client(Credentials::none().with_password(PASSWORD).with_ca(certificate));
    let answered = trusting
        .ask(&[request("org/tls", 1, 10, LEASE)])
        .expect("an answer");
    assert_eq!(granted(&answered[0]), 10);
    let mut other = client(Credentials::none().with_password(PASSWORD));
    let error = other
        .ask(&[request("org/tls", 2, 10, LEASE)])
        .expect_err("not trusted");
    assert_eq!(error.problem(), StoreProblem::TlsFailed, "{error:?}");
}

#[test]
fn asks_each_server_of_a_cluster_for_its_limits() {
    let Some(program) = server_program() else { return };
    let servers = cluster::start(&program);
    for protocol in ["resp2", "resp3"] {
        let url = format!(
            "redis+cluster://127.0.0.1:{},127.0.0.1:{}?protocol={protocol}",
            servers[0].port, servers[1].port
        );
        let mut client = scene::client(&url, PASSWORD);
        let requests: Vec<_> = (0..20)
            .map(|number| request(&format!("org/{protocol}/{number}"), 1, 10, LEASE))
            .collect();
        let answered = client.ask(&requests).expect("answers");
        assert!(answered.iter().all(|answer| granted(answer) == 10));
        // All keys of a partition are in the same place.
        let by_key: Vec<_> = (0..200)
            .map(|number| {
                let (request, terms) = request(&format!("org/{protocol}/keys"), 1, 10, LEASE);
                (requests::keyed(request, number), terms)
            })
            .collect();
        let answered = client.ask(&by_key).expect("answers");
        assert!(answered.iter().all(|answer| granted(answer) == 10));
    }
    let mut keys = 0;
    for server in &servers {
        let here: u64 = redis::cmd("DBSIZE")
            .query(&mut server.connection())
            .expect("a number");
        assert!(here > 0, "one of three servers has no limit");
        keys += here;
    }
    // For each of the two protocols, 20 limits, and 200 keys in 64 partitions with a record each.
    assert_eq!(keys, 2 * (20 + 200 + 64));
}

/// Sentinels that accept connections but say nothing block nobody: another one is asked, and if there is none, the
/// store is down.
#[test]
fn gives_a_silent_sentinel_up() {
    let Some(program) = server_program() else { return };
    let primary = Server::start(&program);
    let sentinel = Server::start_sentinel(&program, &primary, PASSWORD);
    let silent = Proxy::start(sentinel.port);
    silent.set_silent(true);
    let ask = |hosts: String, connect, answer| {
        let url = format!("redis+sentinel://{hosts}/limits");
        let credentials = Credentials::none().with_password(PASSWORD);
        let timeouts = Timeouts { connect, answer };
        let mut client = StoreClient::new(url.parse().expect("valid"), credentials, timeouts);
        thread::spawn(move || client.ask(&[request("org/silent", 1, 10, LEASE)]))
    };
    let soon = Duration::from_millis(200);
    let alone = ask(format!("127.0.0.1:{}", silent.port), soon, soon);
    wait_for("an answer or an error", || alone.is_finished());
    let error = alone.join().expect("no panic").expect_err("silent");
    assert!(error.is_outage(), "{error:?}");
    let both = format!("127.0.0.1:{},127.0.0.1:{}", silent.port, sentinel.port);
    // The second sentinel gets the remaining time, which is plenty.
    let beside = ask(both, DEADLINE, Duration::from_secs(2));
    wait_for("an answer", || beside.is_finished());
    let answered = beside.join().expect("no panic").expect("an answer");
    assert_eq!(granted(&answered[0]), 10);
}

/// The primary is killed, the sentinel promotes the replica, and the client finds it. Then nothing is granted for one
/// lease, and afterwards no more than there is.
#[test]
fn follows_a_sentinel_to_the_new_primary() {
    let Some(program) = server_program() else { return };
    let lease = Duration::from_secs(1);
    let common = ["--requirepass", PASSWORD, "--masterauth", PASSWORD];
    let mut primary = Server::start_with(&program, &common);
    let port = primary.port.to_string();
    let mut arguments = common.to_vec();
    arguments.extend(["--replicaof", "127.0.0.1", &port]);
    let replica = Server::start_with(&program, &arguments);
    let mut connection = replica.connection();
    wait_for("the replica", || {
        let state: String = redis::cmd("INFO")
            .arg("replication")
            .query(&mut connection)
            .unwrap_or_default();
        state.contains("master_link_status:up")
    });
    let sentinel = Server::start_sentinel(&program, &primary, PASSWORD);
    let url = format!("redis+sentinel://127.0.0.1:{}/limits", sentinel.port);
    let timeouts = Timeouts {
        connect: Duration::from_secs(30),
        answer: Duration::from_secs(30),
    };
    let credentials = Credentials::none().with_password(PASSWORD);
    let mut client = StoreClient::new(url.parse().expect("valid"), credentials, timeouts);
    let first = client
        .ask(&[request("org/ha", 1, 600, lease)])
        .expect("an answer");
    assert_eq!(granted(&first[0]), 600);
    let mut connection = primary.connection();
    let reached: u64 = redis::cmd("WAIT")
        .arg(1)
        .arg(60_000)
        .query(&mut connection)
        .expect("a number");
    assert_eq!(reached, 1, "the replica has it");
    wait_for("the sentinel to know the replica", || sentinel.knows_a_replica());
    primary.kill();
    let begun = Instant::now();
    let mut quarantined = 0;
    let mut outages = 0;
    let after = loop {
        assert!(begun.elapsed() < DEADLINE, "no failover:\n{}", sentinel.log());
        let mut next = request("org/ha", 2 + quarantined, 1_000, lease);
        next.0.spent = 600;
        match client.ask(&[next]) {
            Ok(answered) => match &answered[0] {
                Ok(StoreAnswer::Granted(grant)) if !grant.reply.quarantine.is_zero() => {
                    assert!(grant.reply.quarantine <= lease * 9 / 8);
                    quarantined += 1;
                }
                Ok(StoreAnswer::Granted(grant)) => break grant.reply.granted,
                Err(error) if error.is_outage() => outages += 1,
                other => panic!("{other:?}"),
            },
            Err(error) if error.is_outage() => outages += 1,
            Err(error) => panic!("{error:?}"),
        }
    };
    assert!(quarantined > 0 && outages > 0, "{quarantined} and {outages}");
    // What the first grant allowed is spent.
    assert_eq!(after, 400);
}

/// Sentinels promote the replica, but nobody has told the primary yet: it still takes writes on the connection that the
/// client has. The client leaves it, because it asks the sentinels again.
#[test]
fn leaves_a_former_primary_that_still_takes_writes() {
    let Some(program) = server_program() else { return };
    let lease = Duration::from_secs(1);
    let lax = [
        "--requirepass",
        PASSWORD,
        "--masterauth",
        PASSWORD,
        "--replica-read-only",
        "no",
    ];
    let former = Server::start_with(&program, &lax);
    let port = former.port.to_string();
    let mut arguments = lax.to_vec();
    arguments.extend(["--replicaof", "127.0.0.1", &port]);
    let next = Server::start_with(&program, &arguments);
    let sentinel = FakeSentinel::start(former.port, 1);
    let url = format!("redis+sentinel://127.0.0.1:{}/limits", sentinel.port);
    let mut client = scene::client(&url, PASSWORD);
    let answered = client
        .ask(&[request("org/ha", 1, 600, lease)])
        .expect("an answer");
    assert_eq!(granted(&answered[0]), 600);
    let wait = || {
        redis::cmd("WAIT")
            .arg(1)
            .arg(60_000)
            .query::<u64>(&mut former.connection())
    };
    wait_for("the replica to have it", || {
        wait().is_ok_and(|replicas| replicas == 1)
    });
    let become_of = |server: &Server, [host, port]: [&str; 2]| {
        let mut command = redis::cmd("REPLICAOF");
        command.arg(host).arg(port);
        command
            .query::<()>(&mut server.connection())
            .expect("another role");
    };
    become_of(&next, ["NO", "ONE"]);
    sentinel.name(next.port, 2);
    let begun = Instant::now();
    // The next primary is another process: it grants nothing new for one lease.
    loop {
        assert!(begun.elapsed() < DEADLINE, "it stays with the former primary");
        match &client
            .ask(&[request("org/ha", 2, 100, lease)])
            .expect("an answer")[0]
        {
            Ok(StoreAnswer::Granted(grant)) if !grant.reply.quarantine.is_zero() => break,
            Ok(StoreAnswer::Granted(_)) => thread::sleep(Duration::from_millis(10)),
            other => panic!("{other:?}"),
        }
    }
    // A server that is a replica is left even if it takes writes and a sentinel names it.
    become_of(&former, ["127.0.0.1", &next.port.to_string()]);
    sentinel.name(former.port, 3);
    client.disconnect();
    let error = client
        .ask(&[request("org/ha", 2, 100, lease)])
        .expect_err("a replica");
    assert_eq!(error.problem(), StoreProblem::ReadOnly, "{error:?}");
}

/// A failover that a person requests from the sentinels: nobody dies, and the former primary takes writes until it is
/// told.
#[test]
fn leaves_the_former_primary_in_a_planned_failover_and_grants_nothing_twice() {
    let Some(program) = server_program() else { return };
    let lease = Duration::from_secs(1);
    let common = ["--requirepass", PASSWORD, "--masterauth", PASSWORD];
    let former = Server::start_with(&program, &common);
    let port = former.port.to_string();
    let mut arguments = common.to_vec();
    arguments.extend(["--replicaof", "127.0.0.1", &port]);
    let next = Server::start_with(&program, &arguments);
    let replicates = |server: &Server| {
        let mut info = redis::cmd("INFO");
        let state: Result<String, _> = info.arg("replication").query(&mut server.connection());
        state.is_ok_and(|state| state.contains("master_link_status:up"))
    };
    wait_for("the replica", || replicates(&next));
    let sentinel = Server::start_sentinel(&program, &former, PASSWORD);
    let url = format!("redis+sentinel://127.0.0.1:{}/limits", sentinel.port);
    let ask_sentinel = |words: &[&str]| {
        let sentinel = redis::Client::open(sentinel.url()).expect("valid");
        let mut connection = sentinel.get_connection_with_timeout(DEADLINE)?;
        redis::cmd("SENTINEL")
            .arg(words)
            .query::<redis::Value>(&mut connection)
    };
    // Two hosts, one of which has connected before the failover. The other connects during it.
    let mut early = scene::client(&url, PASSWORD);
    let answered = early
        .ask(&[request("org/planned", 1, 600, lease)])
        .expect("an answer");
    // Each host spends what it is granted at once.
    let mut spent = [granted(&answered[0]), 0];
    assert_eq!(spent[0], 600);
    wait_for("the sentinel to know the replica", || sentinel.knows_a_replica());
    wait_for("the failover to begin", || {
        ask_sentinel(&["FAILOVER", "limits"]).is_ok()
    });
    wait_for("the sentinel to name the other", || {
        let named = ask_sentinel(&["GET-MASTER-ADDR-BY-NAME", "limits"]);
        let named = named.and_then(|named| Ok(redis::from_redis_value::<[String; 2]>(named)?));
        named.is_ok_and(|[_, port]| port == next.port.to_string())
    });
    let since = Instant::now();
    let mut late = scene::client(&url, PASSWORD);
    let (mut sequences, mut reached) = ([2, 1], [None; 2]);
    while reached.iter().any(Option::is_none) || since.elapsed() < 2 * lease {
        assert!(since.elapsed() < DEADLINE, "{reached:?}:\n{}", sentinel.log());
        for (host, client) in [&mut early, &mut late].into_iter().enumerate() {
            let (mut next, terms) = request("org/planned", sequences[host], 1_000, lease);
            next.host = host as u64 + 1;
            next.spent = spent[host];
            match client.ask(&[(next, terms)]).map(|mut answers| answers.pop()) {
                Ok(Some(Ok(StoreAnswer::Granted(grant)))) => {
                    spent[host] += grant.reply.granted;
                    sequences[host] += 1;
                    if !grant.reply.quarantine.is_zero() {
                        reached[host].get_or_insert(since.elapsed());
                    }
                }
                Ok(Some(Err(error))) | Err(error) => assert!(error.is_outage(), "{error:?}"),
                other => panic!("{other:?}"),
            }
        }
        assert!(spent.iter().sum::<u64>() <= 1_000, "{spent:?} of 1,000");
        thread::sleep(Duration::from_millis(20));
    }
    // 0.1 s and 0.0 s on an idle machine.
    println!("the other primary answered after {reached:?}");
}
