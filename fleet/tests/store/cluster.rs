//! A cluster with a server that is silent, closes connections, or gives slots to another.

use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::client::thousand;
use crate::requests::{self, request};
use crate::scene::cluster::{Move, index_of, start, url};
use crate::scene::{DEADLINE, PASSWORD, Server, client, server_program, wait_for};
use shmlimit::fleet::{LeaseRequest, StoreProblem};
use shmlimit_fleet::protocol::store_key;
use shmlimit_fleet::{Credentials, StoreAnswer, StoreClient, StoreError, Terms, Timeouts};

/// Far longer than a server takes that is not stopped. If each of so many exchanges waited for a stopped server, a test
/// would take longer than it may.
const TIMEOUTS: Timeouts = Timeouts {
    connect: Duration::from_secs(5),
    answer: Duration::from_secs(5),
};
const EXCHANGES: u64 = 60;
/// Waiting once for each of this many limits would take too long as well.
const MANY: usize = 100;

/// A server that is stopped, and goes on when this is dropped.
struct Stopped(Pid);

impl Stopped {
    fn new(server: &Server) -> Self {
        let pid = Pid::from_raw(server.pid());
        kill(pid, Signal::SIGSTOP).expect("stopped");
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

/// Many limits of a silent server, each of which takes a call, together cost one wait.
#[test]
fn many_limits_of_a_silent_server_cost_as_much_as_one() {
    let Some(program) = server_program() else { return };
    let servers = start(&program);
    let keys = (0..).map(|number| format!("org/{number}"));
    let mut requests: Vec<_> = keys
        .filter(|key| index_of(&servers, &store_key(key)) == 1)
        .map(|key| of_key(&key, 1))
        .take(MANY)
        .collect();
    let credentials = Credentials::none().with_password(PASSWORD);
    let url = url([&servers[0]]);
    let mut client = StoreClient::new(url.parse().expect("valid"), credentials, TIMEOUTS);
    assert!(outcomes(&mut client, &requests).iter().all(Result::is_ok));
    let stopped = Stopped::new(&servers[1]);
    for (request, _) in &mut requests {
        request.sequence = 2;
    }
    let begun = Instant::now();
    let timed_out = |outcome: &Result<u64, _>| *outcome == Err(StoreProblem::TimedOut);
    assert!(outcomes(&mut client, &requests).iter().all(timed_out));
    assert!(begun.elapsed() < DEADLINE, "each of them is waited for");
    // The error says which server it is.
    let answers = client.ask(&requests).expect("answers of the others");
    let expected = format!(
        "the store at 127.0.0.1:{} of {url} does not answer",
        servers[1].port
    );
    for answer in answers {
        let error = answer.expect_err("no answer").to_string();
        assert!(error.starts_with(&expected), "{error}");
    }
    drop(stopped);
}

/// So one outage is reported, and not one for each server.
#[test]
fn that_a_cluster_is_down_is_said_of_no_single_server() {
    let Some(program) = server_program() else { return };
    let mut servers = start(&program);
    for server in &servers {
        let mut command = redis::cmd("CONFIG");
        command.arg("SET").arg("cluster-require-full-coverage").arg("yes");
        command.query::<()>(&mut server.connection()).expect("set");
    }
    let url = url(&servers);
    let mut client = client(&url, PASSWORD);
    let mut requests = one_of_each(&servers, 1);
    assert_eq!(outcomes(&mut client, &requests), [Ok(10); 3]);
    servers[1].kill();
    requests.remove(1);
    let down = Err(StoreProblem::ClusterDown);
    let mut sequence = 1;
    wait_for("the others to know that it is gone", || {
        sequence += 1;
        for (request, _) in &mut requests {
            request.sequence = sequence;
        }
        outcomes(&mut client, &requests) == [down, down]
    });
    for answer in client.ask(&requests).expect("answers of the others") {
        let error = answer.expect_err("no answer").to_string();
        assert!(error.starts_with(&format!("the store at {url} ")), "{error}");
    }
}

/// A request for one limit of each server, in the order of the servers.
fn one_of_each(servers: &[Server], sequence: u64) -> Vec<(LeaseRequest, Terms)> {
    (0..servers.len())
        .map(|index| {
            let keys = (0..).map(|number| format!("org/{number}"));
            let key = keys
                .into_iter()
                .find(|key| index_of(servers, &store_key(key)) == index);
            of_key(&key.expect("some key"), sequence)
        })
        .collect()
}

fn of_key(key: &str, sequence: u64) -> (LeaseRequest, Terms) {
    let declared = thousand();
    let terms = Terms::new(&declared, 0).expect("countable");
    let key = key.to_owned();
    let request = LeaseRequest {
        key,
        ..request(&declared, 1, sequence, 10)
    };
    (request, terms)
}

/// What was granted, or why nothing was.
fn outcomes(client: &mut StoreClient, requests: &[(LeaseRequest, Terms)]) -> Vec<Result<u64, StoreProblem>> {
    let answers = client.ask(requests).expect("answers");
    let outcome = |answer: Result<StoreAnswer, StoreError>| match answer {
        Ok(StoreAnswer::Granted(grant)) => Ok(grant.reply.granted),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.problem()),
    };
    answers.into_iter().map(outcome).collect()
}

const NOTHING_FROM_THE_SECOND: [Result<u64, StoreProblem>; 3] = [Ok(10), Err(StoreProblem::TimedOut), Ok(10)];

#[test]
fn a_silent_server_of_a_cluster_holds_up_no_limits_of_others() {
    let Some(program) = server_program() else { return };
    let servers = start(&program);
    let mut requests = one_of_each(&servers, 0);
    let mut ask = |client: &mut StoreClient, sequence: u64| {
        for (request, _) in &mut requests {
            request.sequence = sequence;
        }
        outcomes(client, &requests)
    };
    let credentials = || Credentials::none().with_password(PASSWORD);
    let new_client = |servers: &[&Server]| {
        let url = url(servers.iter().copied());
        StoreClient::new(url.parse().expect("valid"), credentials(), TIMEOUTS)
    };
    let mut client = new_client(&[&servers[0]]);
    assert_eq!(ask(&mut client, 1), [Ok(10); 3]);
    let begun = Instant::now();
    let stopped = Stopped::new(&servers[1]);
    for sequence in 2..EXCHANGES {
        assert_eq!(ask(&mut client, sequence), NOTHING_FROM_THE_SECOND);
        assert!(begun.elapsed() < DEADLINE, "waits in exchange {sequence}");
    }
    // A client that connects only now, first to the silent server, does not wait each time either.
    let mut client = new_client(&[&servers[1], &servers[2]]);
    for sequence in EXCHANGES..2 * EXCHANGES {
        assert_eq!(ask(&mut client, sequence), NOTHING_FROM_THE_SECOND);
        assert!(begun.elapsed() < DEADLINE, "waits in exchange {sequence}");
    }
    drop(stopped);
    let mut sequence = 2 * EXCHANGES;
    wait_for("the server to be asked again", || {
        sequence += 1;
        ask(&mut client, sequence) == [Ok(10); 3]
    });
}

#[test]
fn a_cluster_without_an_answer_is_given_up() {
    let Some(program) = server_program() else { return };
    let servers = start(&program);
    let requests = one_of_each(&servers, 1);
    let stopped: Vec<_> = servers.iter().map(Stopped::new).collect();
    let soon = Duration::from_millis(200);
    let timeouts = Timeouts {
        connect: soon,
        answer: soon,
    };
    let credentials = Credentials::none().with_password(PASSWORD);
    let mut client = StoreClient::new(url(&servers).parse().expect("valid"), credentials, timeouts);
    let asking = thread::spawn(move || client.ask(&requests));
    wait_for("an error", || asking.is_finished());
    let error = asking.join().expect("no panic").expect_err("silent");
    assert_eq!(error.problem(), StoreProblem::TimedOut, "{error:?}");
    drop(stopped);
}

#[test]
fn a_server_of_a_cluster_may_close_idle_connections() {
    let Some(program) = server_program() else { return };
    let servers = start(&program);
    let mut client = client(&url(&servers), PASSWORD);
    assert_eq!(outcomes(&mut client, &one_of_each(&servers, 1)), [Ok(10); 3]);
    let of_client: u64 = redis::cmd("CLIENT")
        .arg("KILL")
        .arg("TYPE")
        .arg("normal")
        .query(&mut servers[1].connection())
        .expect("a number");
    assert!(of_client > 0);
    assert_eq!(outcomes(&mut client, &one_of_each(&servers, 2)), [Ok(10); 3]);
}

/// While a slot is being moved and afterwards, its limits are asked for where they are.
#[test]
fn follows_a_slot_to_another_server() {
    let Some(program) = server_program() else { return };
    let servers = start(&program);
    let mut client = client(&url(&servers), PASSWORD);
    // A limit, and some keys of a partition of another limit.
    let all = |sequence| {
        let mut all = vec![of_key("org/moved", sequence)];
        all.extend((0..3_u128).map(|number| {
            let (request, terms) = of_key("org/keys", sequence);
            (requests::keyed(request, number << 6), terms)
        }));
        all
    };
    assert_eq!(outcomes(&mut client, &all(1)), [Ok(10); 4]);
    for (name, sequence) in [
        (store_key("org/moved"), 2),
        ("shmlimit:{org/keys/00}".to_owned(), 4),
    ] {
        let moving = Move::begin(&servers, &name);
        // The other server may have lost something, so it may grant nothing new for one lease.
        let mut is_answered = |sequence| outcomes(&mut client, &all(sequence)).iter().all(Result::is_ok);
        assert!(is_answered(sequence), "{name} while it moves");
        moving.end();
        assert!(is_answered(sequence + 1), "{name} once it has moved");
    }
}

/// A server that is cut off from the others goes on naming the servers that had the slots before.
#[test]
fn a_server_that_names_former_ones_is_not_believed_for_ever() {
    let Some(program) = server_program() else { return };
    let servers = start(&program);
    let mut cut_off = start(&program);
    cut_off.drain(1..);
    // A limit of a server that no longer exists, but that the cut-off server still names.
    let asked = vec![one_of_each(&servers, 1).swap_remove(1)];
    let credentials = Credentials::none().with_password(PASSWORD);
    let url = url([&servers[0], &cut_off[0]]);
    let mut client = StoreClient::new(url.parse().expect("valid"), credentials, TIMEOUTS);
    // This makes the cut-off server the first to say where the slots are.
    let stopped = Stopped::new(&servers[0]);
    assert_eq!(outcomes(&mut client, &asked), [Err(StoreProblem::Refused)]);
    drop(stopped);
    wait_for("another to be asked", || {
        outcomes(&mut client, &asked) == [Ok(10)]
    });
}

/// How many times a server was asked where the slots are.
fn questions(server: &Server) -> String {
    let stats: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(&mut server.connection())
        .expect("statistics");
    let of_slots = stats.lines().find(|line| line.contains("cluster|slots"));
    of_slots
        .unwrap_or_default()
        .split(',')
        .next()
        .unwrap_or_default()
        .to_owned()
}

#[test]
fn while_a_server_is_out_nobody_is_asked_for_slots_on_account_of_limits_of_others() {
    let Some(program) = server_program() else { return };
    let mut servers = start(&program);
    let mut requests = one_of_each(&servers, 1);
    let mut client = client(&url(&servers), PASSWORD);
    assert_eq!(outcomes(&mut client, &requests), [Ok(10); 3]);
    servers[1].kill();
    let mut ask = |sequence, requests: &mut [(LeaseRequest, Terms)]| {
        for (request, _) in &mut *requests {
            request.sequence = sequence;
        }
        outcomes(&mut client, requests)
    };
    let refused = [Ok(10), Err(StoreProblem::Refused), Ok(10)];
    assert_eq!(ask(2, &mut requests), refused);
    let asked = || [questions(&servers[0]), questions(&servers[2])];
    let before = asked();
    let out = requests.remove(1);
    for sequence in 3..20 {
        assert_eq!(ask(sequence, &mut requests), [Ok(10); 2]);
    }
    assert_eq!(asked(), before);
    // If another server took over the slots, it would be found at once.
    requests.insert(1, out);
    assert_eq!(ask(20, &mut requests), refused);
    assert_ne!(asked(), before);
}
