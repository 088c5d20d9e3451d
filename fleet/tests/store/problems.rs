//! What real servers say when they cannot or may not answer: each problem is told apart from the others.

use std::io::Write;
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use crate::client::{ask, grant, thousand};
use crate::requests::{keyed, request};
use crate::scene::{self, PASSWORD, Server, client, cluster, patient, server_program, wait_for};
use shmlimit::fleet::StoreProblem;
use shmlimit_fleet::protocol::store_key;
use shmlimit_fleet::{Credentials, StoreAnswer, StoreClient, StoreError, Terms, Timeouts};

/// What is wrong with the store, and what the store named. The error contains the store's words and no secret.
fn problem(client: &mut StoreClient) -> (StoreProblem, String) {
    let error = ask(client, &request(&thousand(), 1, 1, 1)).expect_err("no answer");
    let said = format!("{error} {error:?} {client:?}");
    assert!(!said.contains(PASSWORD) && !said.contains("s3cret"), "{said}");
    assert!(said.contains(error.problem().description()), "{said}");
    match error {
        StoreError::Unavailable { problem, name, .. } => (problem, name),
        other => panic!("{other:?}"),
    }
}

fn unnamed(problem: StoreProblem) -> (StoreProblem, String) {
    (problem, String::new())
}

fn configure(server: &Server, name: &str, value: &str) {
    let mut command = redis::cmd("CONFIG");
    command.arg("SET").arg(name).arg(value);
    command.query::<()>(&mut server.connection()).expect("set");
}

#[test]
fn a_server_that_takes_no_writes_says_why() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let mut client = server.client();
    for (name, value, normal, expected) in [
        ("maxmemory", "1", "0", StoreProblem::OutOfMemory),
        ("min-replicas-to-write", "1", "0", StoreProblem::TooFewReplicas),
    ] {
        configure(&server, name, value);
        assert_eq!(problem(&mut client), unnamed(expected));
        configure(&server, name, normal);
        grant(&mut client, &request(&thousand(), 1, 1, 1));
    }
}

#[test]
fn a_replica_says_that_it_is_one_and_whether_it_lost_its_primary() {
    let Some(program) = server_program() else { return };
    let mut primary = Server::start(&program);
    let port = primary.port.to_string();
    let arguments = [
        "--requirepass",
        PASSWORD,
        "--masterauth",
        PASSWORD,
        "--replicaof",
        "127.0.0.1",
        &port,
    ];
    let replica = Server::start_with(&program, &arguments);
    assert_eq!(problem(&mut replica.client()), unnamed(StoreProblem::ReadOnly));
    configure(&replica, "replica-serve-stale-data", "no");
    primary.kill();
    wait_for("the replica to notice", || {
        problem(&mut replica.client()) == unnamed(StoreProblem::PrimaryDown)
    });
}

#[test]
fn a_server_with_a_script_that_does_not_end_says_that_it_is_busy() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    configure(&server, "lua-time-limit", "10");
    let mut client = server.client();
    grant(&mut client, &request(&thousand(), 1, 1, 1));
    let (mut endless, mut other) = (server.connection(), server.connection());
    let script = thread::spawn(move || {
        let mut command = redis::cmd("EVAL");
        command.arg("while true do end").arg(0);
        command.query::<()>(&mut endless).expect_err("killed");
    });
    wait_for("the script", || {
        let answer = ask(&mut client, &request(&thousand(), 1, 1, 1));
        answer.is_err_and(|error| error.problem() == StoreProblem::Busy)
    });
    let mut kill = redis::cmd("SCRIPT");
    kill.arg("KILL").query::<()>(&mut other).expect("killed");
    script.join().expect("no panic");
    grant(&mut client, &request(&thousand(), 1, 1, 1));
}

#[test]
fn a_server_that_loads_its_data_says_so() {
    let Some(program) = server_program() else { return };
    let slow = [
        "--requirepass",
        PASSWORD,
        "--key-load-delay",
        "100000",
        "--loading-process-events-interval-bytes",
        "1024",
    ];
    let mut server = Server::start_with(&program, &slow);
    let mut connection = server.connection();
    let mut fill = redis::cmd("EVAL");
    fill.arg("for i = 1, 2000 do redis.call('SET', i, string.rep('x', 1000)) end")
        .arg(0);
    fill.query::<()>(&mut connection).expect("filled");
    redis::cmd("SAVE").query::<()>(&mut connection).expect("saved");
    server.restart();
    let mut client = server.client();
    wait_for("the server to load", || {
        let answer = ask(&mut client, &request(&thousand(), 1, 1, 1));
        answer.is_err_and(|error| error.problem() == StoreProblem::Loading)
    });
}

#[test]
fn a_wrong_database_and_a_part_of_a_cluster_are_told_apart() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let mut beyond = client(&format!("{}/99", server.url()), PASSWORD);
    assert_eq!(problem(&mut beyond), unnamed(StoreProblem::WrongDatabase));
    let node = Server::start_cluster_node(&program, &["--requirepass", PASSWORD, "--cluster-enabled", "yes"]);
    assert_eq!(problem(&mut node.client()), unnamed(StoreProblem::ClusterDown));
    let cluster = format!("redis+cluster://127.0.0.1:{}", node.port);
    assert_eq!(
        problem(&mut client(&cluster, PASSWORD)),
        unnamed(StoreProblem::ClusterDown)
    );
    assert_eq!(
        problem(&mut client(&cluster, "wr0ng-s3cret")),
        unnamed(StoreProblem::Denied)
    );
}

#[test]
fn the_permissions_of_the_guide_are_enough_in_a_cluster() {
    let Some(program) = server_program() else { return };
    let servers = cluster::start(&program);
    let asked = request(&thousand(), 1, 1, 5);
    let documented = documented_rules();
    let with = |more: &[&str]| {
        let guide = include_str!("../../../docs/fleet.md");
        assert!(more.iter().all(|rule| guide.contains(&format!("`{rule}`"))));
        let rules: Vec<&str> = documented
            .iter()
            .map(String::as_str)
            .chain(more.iter().copied())
            .collect();
        for server in &servers {
            set_user(server, &rules);
        }
    };
    let outcome = || {
        let answer = ask(&mut as_user(&cluster::url(&servers)), &asked);
        match answer {
            Ok(StoreAnswer::Granted(grant)) => Ok(grant.reply.granted),
            Err(StoreError::Unavailable { problem, name, .. }) => Err((problem, name)),
            other => panic!("{other:?}"),
        }
    };
    let denied = |name: &str| Err((StoreProblem::NotPermitted, name.to_owned()));
    with(&[]);
    assert_eq!(outcome(), denied("cluster|slots"));
    with(&["+cluster|slots"]);
    assert_eq!(outcome(), Ok(5));
    let moving = cluster::Move::begin(&servers, &store_key(&asked.key));
    assert_eq!(outcome(), denied("asking"));
    with(&["+cluster|slots", "+asking"]);
    assert_eq!(outcome(), Ok(5));
    moving.end();
    assert_eq!(outcome(), Ok(5));
}

#[test]
fn a_server_without_scripts_is_not_supported() {
    let Some(program) = server_program() else { return };
    let server = Server::start_with(
        &program,
        &["--requirepass", PASSWORD, "--rename-command", "EVALSHA", ""],
    );
    assert_eq!(problem(&mut server.client()), unnamed(StoreProblem::Unsupported));
}

#[test]
fn a_wrong_password_and_none_are_denied() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    for protocol in ["resp2", "resp3"] {
        let url = format!("{}?protocol={protocol}", server.url());
        assert_eq!(
            problem(&mut client(&url, "wr0ng-s3cret")),
            unnamed(StoreProblem::Denied)
        );
        let mut without = StoreClient::new(url.parse().expect("valid"), Credentials::none(), patient());
        assert_eq!(problem(&mut without), unnamed(StoreProblem::Denied));
        assert_eq!(
            grant(&mut client(&url, PASSWORD), &request(&thousand(), 1, 1, 0)).kept,
            0
        );
    }
}

/// The access rules of the user that the guide creates.
fn documented_rules() -> Vec<String> {
    let guide = include_str!("../../../docs/fleet.md");
    let (_, rest) = guide
        .split_once("ACL SETUSER limits on '>secret' ")
        .expect("the command");
    let (rules, _) = rest.split_once("```").expect("its end");
    let rules = rules.replace('\\', " ").replace('\'', "");
    rules.split_whitespace().map(str::to_owned).collect()
}

fn forget_scripts(server: &Server) {
    let mut command = redis::cmd("SCRIPT");
    command
        .arg("FLUSH")
        .query::<()>(&mut server.connection())
        .expect("forgotten");
}

fn set_user(server: &Server, rules: &[&str]) {
    let mut command = redis::cmd("ACL");
    command
        .arg("SETUSER")
        .arg("limits")
        .arg("reset")
        .arg("on")
        .arg(">s3cret")
        .arg(rules);
    command.query::<()>(&mut server.connection()).expect("a user");
}

fn as_user(url: &str) -> StoreClient {
    let credentials = Credentials::none()
        .with_username("limits")
        .with_password("s3cret");
    StoreClient::new(url.parse().expect("valid"), credentials, patient())
}

#[test]
fn the_permissions_of_the_guide_are_enough_and_a_missing_one_is_named() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let documented = documented_rules();
    let all: Vec<&str> = documented.iter().map(String::as_str).collect();
    set_user(&server, &all);
    for sequence in 1..=3 {
        let request = request(&thousand(), 1, sequence, 5);
        grant(&mut as_user(&server.url()), &request);
        grant(&mut as_user(&server.url()), &keyed(request, 7));
    }
    for (without, name) in [
        ("~shmlimit:*", "key"),
        ("+evalsha", "evalsha"),
        ("+eval", "eval"),
        ("+info", "info"),
        ("+time", "script"),
        ("+hmget", "script"),
        ("+hset", "script"),
        ("+pexpire", "script"),
        ("+get", "script"),
        ("+set", "script"),
    ] {
        let rules: Vec<&str> = all.iter().copied().filter(|rule| *rule != without).collect();
        assert!(rules.len() < all.len(), "{without} is documented");
        set_user(&server, &rules);
        forget_scripts(&server);
        let mut client = as_user(&server.url());
        let asked = request(&thousand(), 1, 4, 5);
        let alone = ask(&mut client, &asked);
        let by_key = ask(&mut client, &keyed(asked, 7));
        let Some(error) = alone.err().or(by_key.err()) else {
            panic!("not denied without {without}");
        };
        assert!(error.is_denial(), "{error:?}");
        let StoreError::Unavailable {
            problem, name: named, ..
        } = error
        else {
            panic!("{error:?}");
        };
        assert_eq!(problem, StoreProblem::NotPermitted, "{without}");
        // Valkey names the command of a script, too.
        let is_named = named == name || without.strip_prefix('+') == Some(named.as_str());
        assert!(is_named, "{named} without {without}");
    }
    set_user(&server, &all);
    let second = format!("{}/2", server.url());
    assert_eq!(
        problem(&mut as_user(&second)),
        (StoreProblem::NotPermitted, "select".to_owned())
    );
}

#[test]
fn what_is_no_store_is_told_apart_from_one_that_is_silent_or_not_there() {
    let port = scene::free_port();
    let mut nothing = client(&format!("redis://127.0.0.1:{port}"), PASSWORD);
    assert_eq!(problem(&mut nothing), unnamed(StoreProblem::Refused));
    // This server accepts connections and says nothing.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("redis://{}", listener.local_addr().expect("an address"));
    let soon = Duration::from_millis(50);
    let timeouts = Timeouts {
        connect: soon,
        answer: soon,
    };
    let mut silent = StoreClient::new(url.parse().expect("valid"), Credentials::none(), timeouts);
    assert_eq!(problem(&mut silent), unnamed(StoreProblem::TimedOut));
    // This one speaks another protocol.
    drop(silent);
    let other = thread::spawn(move || {
        for stream in listener.incoming().take(2) {
            let mut stream = stream.expect("a connection");
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let mut client = StoreClient::new(url.parse().expect("valid"), Credentials::none(), patient());
    // The first connection is that of the client that gave up.
    wait_for("an answer of that server", || {
        problem(&mut client) == unnamed(StoreProblem::Unexpected)
    });
    other.join().expect("no panic");
}

/// A server that was restarted, or has become the primary, gets each script once, and not every call again separately.
#[test]
fn a_server_without_the_scripts_gets_them_with_all_calls_in_one_exchange() {
    const LIMITS: u64 = 100;
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let mut client = server.client();
    let terms = Terms::new(&thousand(), 0).expect("countable");
    let requests = |sequence| -> Vec<_> {
        let of = |number: u64| {
            let mut request = request(&thousand(), 1, sequence, 1);
            request.key = format!("org/{number}");
            let request = if number.is_multiple_of(2) {
                request
            } else {
                keyed(request, 7)
            };
            (request, terms.clone())
        };
        (0..LIMITS).map(of).collect()
    };
    let mut all_granted = |sequence| {
        let answers = client.ask(&requests(sequence)).expect("answers");
        answers
            .iter()
            .all(|answer| matches!(answer, Ok(StoreAnswer::Granted(_))))
    };
    let reads = || -> u64 {
        let stats: String = redis::cmd("INFO")
            .arg("stats")
            .query(&mut server.connection())
            .expect("statistics");
        let reads = stats
            .lines()
            .find_map(|line| line.strip_prefix("total_reads_processed:"));
        reads.expect("counted").trim().parse().expect("a number")
    };
    assert!(all_granted(1));
    forget_scripts(&server);
    let before = reads();
    assert!(all_granted(2));
    let reads = reads() - before;
    // Long pipelines are read in pieces.
    assert!(reads < LIMITS / 2, "{reads}");
    // What the server said to the script's text counts for all calls of the script.
    let rules = documented_rules();
    let rules: Vec<&str> = rules
        .iter()
        .map(String::as_str)
        .filter(|rule| *rule != "+eval")
        .collect();
    set_user(&server, &rules);
    forget_scripts(&server);
    let answers = as_user(&server.url()).ask(&requests(3)).expect("answers");
    for answer in answers {
        let error = answer.expect_err("no script");
        assert_eq!(error.problem(), StoreProblem::NotPermitted, "{error}");
    }
}
