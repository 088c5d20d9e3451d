//! The client with a real server: what is granted to which host.

use std::time::{Duration, Instant};

use crate::requests::{backlog, request};
use crate::scene::{DEADLINE, Server, server_program};
use shmlimit::declare::Kind;
use shmlimit::fleet::{LeaseRequest, LeasedLimit, LeasedRule};
use shmlimit_fleet::protocol::store_key;
use shmlimit_fleet::{Grant, StoreAnswer, StoreClient, StoreError, Terms, difference};

/// Longer than any of these tests takes.
const LONG: Duration = Duration::from_secs(3_600);

/// A limit that is not replenished while a test runs.
pub fn thousand() -> LeasedLimit {
    backlog(1_000, LONG * 1_000, 1_000, LONG)
}

pub fn ask(client: &mut StoreClient, request: &LeaseRequest) -> Result<StoreAnswer, StoreError> {
    let terms = Terms::new(&request.declared, 0).expect("countable");
    let mut answered = client.ask(&[(request.clone(), terms)])?;
    answered.pop().expect("an answer")
}

pub fn grant(client: &mut StoreClient, request: &LeaseRequest) -> Grant {
    match ask(client, request) {
        Ok(StoreAnswer::Granted(grant)) => grant,
        other => panic!("{other:?} to {request:?}"),
    }
}

#[test]
fn grants_what_there_is_and_no_more() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let mut client = server.client();
    let limit = thousand();
    assert_eq!(grant(&mut client, &request(&limit, 1, 1, 600)).reply.granted, 600);
    // What is leased to one host is not available to another.
    let second = grant(&mut client, &request(&limit, 2, 1, 600));
    assert_eq!(second.reply.granted, 400);
    assert!(second.reply.remaining > LONG && second.reply.remaining <= LONG * 9 / 8);
    assert_eq!(grant(&mut client, &request(&limit, 3, 1, 1)).reply.granted, 0);
    // The first host has spent 100 and keeps 200. What it returns is available to others.
    let returned = LeaseRequest {
        spent: 100,
        held: 200,
        ..request(&limit, 1, 2, 0)
    };
    assert_eq!(grant(&mut client, &returned).kept, 200);
    assert_eq!(
        grant(&mut client, &request(&limit, 3, 2, 1_000)).reply.granted,
        300
    );
}

#[test]
fn answers_a_repeated_request_with_the_same_grant() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let mut client = server.client();
    let limit = thousand();
    let first = grant(&mut client, &request(&limit, 1, 1, 600)).reply;
    let again = grant(&mut client, &request(&limit, 1, 1, 600)).reply;
    assert_eq!(
        (again.granted, again.grant_number),
        (first.granted, first.grant_number)
    );
    assert!(again.remaining <= first.remaining);
    assert_eq!(
        grant(&mut client, &request(&limit, 2, 1, 1_000)).reply.granted,
        400
    );
    let next = LeaseRequest {
        held: 600,
        ..request(&limit, 1, 2, 0)
    };
    grant(&mut client, &next);
    assert_eq!(
        ask(&mut client, &request(&limit, 1, 1, 600)),
        Ok(StoreAnswer::Stale { last: 2 })
    );
}

#[test]
fn writes_off_what_a_dead_host_had_and_charges_its_report_once() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let mut client = server.client();
    let limit = backlog(1_000, LONG * 1_000, 1_000, Duration::from_millis(200));
    let lost = grant(&mut client, &request(&limit, 1, 1, 600)).reply;
    assert_eq!(lost.granted, 600);
    let begun = Instant::now();
    let mut sequence = 0;
    // Expired units count as spent and do not come back.
    while begun.elapsed() < lost.remaining * 2 {
        sequence += 1;
        let taken = grant(&mut client, &request(&limit, 2, sequence, 1_000)).reply;
        assert!(taken.granted <= 400);
    }
    // The host is alive, and had spent 250 of the units. These are not charged again.
    let report = LeaseRequest {
        spent: 250,
        ..request(&limit, 1, 2, 1_000)
    };
    let begun = Instant::now();
    let mut answer = grant(&mut client, &report).reply.granted;
    let mut sequence = 2;
    while answer == 0 {
        assert!(begun.elapsed() < DEADLINE);
        sequence += 1;
        let request = LeaseRequest {
            spent: 250,
            ..request(&limit, 1, sequence, 1_000)
        };
        answer = grant(&mut client, &request).reply.granted;
        // The other host's units expire in the meantime, and are charged.
        if begun.elapsed() > Duration::from_secs(2) {
            break;
        }
    }
    assert!(answer <= 400, "{answer}");
    let mut connection = server.connection();
    let account: String = redis::cmd("HGET")
        .arg(store_key("org/tokens"))
        .arg("account")
        .query(&mut connection)
        .expect("numbers");
    let level: u64 = account
        .split(' ')
        .nth(4)
        .expect("a level")
        .parse()
        .expect("a number");
    let period = Terms::new(&limit, 0).expect("countable").to_string();
    let period: u64 = period
        .split(' ')
        .nth(3)
        .expect("ten words")
        .parse()
        .expect("a number");
    let units = level.div_ceil(period);
    assert!((600..=1_000).contains(&units), "{units}");
}

/// Hosts that ask in turn, one of which wants a hundred times as much as the others, all get the same.
#[test]
fn divides_evenly_among_hosts_that_want_more_than_they_get() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let mut client = server.client();
    // 10,000 per second and eight hosts, one of which wants 100 times as much as each of the others.
    let limit = backlog(10_000, Duration::from_secs(1), 5_000, Duration::from_millis(400));
    let wants = [200_000_u64, 2_000, 2_000, 2_000, 2_000, 2_000, 2_000, 2_000];
    let mut granted = [0_u64; 8];
    let mut sequences = [0_u64; 8];
    // From the third epoch on, the hosts know about one another and the initial units are spent.
    let mut before = [0_u64; 8];
    let mut counted = Duration::ZERO;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(4) {
        if counted.is_zero() && begun.elapsed() > 2 * limit.lease {
            (before, counted) = (granted, begun.elapsed());
        }
        for (host, want) in wants.iter().enumerate() {
            sequences[host] += 1;
            let request = LeaseRequest {
                // Everything is spent at once.
                spent: granted[host],
                ..request(&limit, host as u64 + 1, sequences[host], *want)
            };
            granted[host] += grant(&mut client, &request).reply.granted;
        }
    }
    let bound = 5_000.0 + 10_000.0 * begun.elapsed().as_secs_f64();
    let sum: u64 = granted.iter().sum();
    assert!((sum as f64) <= bound, "{sum} of {bound}");
    for (units, before) in granted.iter_mut().zip(before) {
        *units -= before;
    }
    let jain = jain(&granted);
    println!("granted {granted:?}, Jain {jain:.4}");
    assert!(jain >= 0.95, "{granted:?}: {jain}");
    let sum: u64 = granted.iter().sum();
    let there_was = 10_000.0 * (begun.elapsed() - counted).as_secs_f64();
    assert!((sum as f64) > 0.5 * there_was, "{sum} of {there_was}");
}

fn jain(granted: &[u64]) -> f64 {
    let sum: f64 = granted.iter().map(|&units| units as f64).sum();
    let squares: f64 = granted.iter().map(|&units| (units as f64).powi(2)).sum();
    sum * sum / (granted.len() as f64 * squares)
}

#[test]
fn leaves_to_small_wants_what_they_want() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let mut client = server.client();
    let limit = thousand();
    // All hosts are known to the store before there is anything to divide.
    let all = grant(&mut client, &request(&limit, 9, 1, 1_000));
    assert_eq!(all.reply.granted, 1_000);
    for (host, wanted) in [(1, 10), (2, 100_000), (3, 100_000)] {
        assert_eq!(
            grant(&mut client, &request(&limit, host, 1, wanted))
                .reply
                .granted,
            0
        );
    }
    grant(&mut client, &request(&limit, 9, 2, 0));
    let second = grant(&mut client, &request(&limit, 2, 2, 100_000)).reply.granted;
    let first = grant(&mut client, &request(&limit, 1, 2, 10)).reply.granted;
    let third = grant(&mut client, &request(&limit, 3, 2, 100_000)).reply.granted;
    assert_eq!(first, 10);
    assert!(second + third + first <= 1_000);
}

#[test]
fn returns_places_and_frees_those_of_the_dead() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let mut client = server.client();
    let limit = LeasedLimit {
        kind: Kind::Concurrency,
        unit: "1".to_owned(),
        rule: LeasedRule::Concurrency { places: 10 },
        lease: Duration::from_millis(200),
    };
    let first = grant(&mut client, &request(&limit, 1, 1, 10)).reply;
    assert_eq!(first.granted, 10);
    assert_eq!(grant(&mut client, &request(&limit, 2, 1, 5)).reply.granted, 0);
    // The first host dies: after one lease, its places are available again, with a higher number.
    let mut sequence = 1;
    let begun = Instant::now();
    let second = loop {
        sequence += 1;
        let reply = grant(&mut client, &request(&limit, 2, sequence, 5)).reply;
        if reply.granted > 0 {
            break reply;
        }
        assert!(begun.elapsed() < DEADLINE);
    };
    assert_eq!(second.granted, 5);
    assert!(second.grant_number > first.grant_number);
    // The first host had only been stopped, and comes back: it no longer holds anything.
    let back = LeaseRequest {
        held: 10,
        ..request(&limit, 1, 2, 0)
    };
    let back = grant(&mut client, &back);
    assert_eq!((back.kept, back.reply.remaining), (0, Duration::ZERO));
}

#[test]
fn names_what_another_declaration_differs_in() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let mut client = server.client();
    grant(&mut client, &request(&thousand(), 1, 1, 1));
    let other = backlog(1_000, LONG * 1_000, 2_000, LONG);
    let Ok(StoreAnswer::Declared { in_force }) = ask(&mut client, &request(&other, 2, 1, 1)) else {
        panic!("two declarations of one limit");
    };
    assert_eq!(
        difference(&other.to_string(), &in_force),
        "burst=2000 here, burst=1000 in the store"
    );
    // The same declaration with a higher version comes into force, and hosts with the former one are served by it.
    let terms = Terms::new(&other, 1).expect("countable");
    let answered = client
        .ask(&[(request(&other, 2, 1, 1_500), terms)])
        .expect("an answer");
    let Ok(StoreAnswer::Granted(given)) = &answered[0] else {
        panic!("{answered:?}");
    };
    assert_eq!(given.reply.granted, 1_500);
    assert_eq!(
        grant(&mut client, &request(&thousand(), 1, 2, 0)).reply.granted,
        0
    );
}

#[test]
fn refuses_keys_that_hold_something_else() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let mut client = server.client();
    let mut connection = server.connection();
    let key = store_key("org/tokens");
    let _: () = redis::cmd("SET")
        .arg(&key)
        .arg(1)
        .query(&mut connection)
        .expect("set");
    let found = |found: &str| {
        Ok(StoreAnswer::Foreign {
            found: found.to_owned(),
        })
    };
    assert_eq!(ask(&mut client, &request(&thousand(), 1, 1, 1)), found("string"));
    let _: () = redis::cmd("DEL")
        .arg(&key)
        .query(&mut connection)
        .expect("removed");
    let _: () = redis::cmd("HSET")
        .arg(&key)
        .arg("name")
        .arg("value")
        .query(&mut connection)
        .expect("set");
    assert_eq!(ask(&mut client, &request(&thousand(), 1, 1, 1)), found("hash"));
    let value: String = redis::cmd("HGET")
        .arg(&key)
        .arg("name")
        .query(&mut connection)
        .expect("kept");
    assert_eq!(value, "value");
}

#[test]
fn asks_for_several_limits_at_once_also_after_the_scripts_were_flushed() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let mut client = server.client();
    let mut connection = server.connection();
    for round in 1..=3 {
        let _: () = redis::cmd("SCRIPT")
            .arg("FLUSH")
            .query(&mut connection)
            .expect("flushed");
        let requests: Vec<_> = (0..10)
            .map(|number| {
                let request = LeaseRequest {
                    key: format!("org/{number}"),
                    ..request(&thousand(), 1, round, 10)
                };
                (request, Terms::new(&thousand(), 0).expect("countable"))
            })
            .collect();
        let answered = client.ask(&requests).expect("answers");
        assert_eq!(answered.len(), 10);
        for answer in answered {
            let Ok(StoreAnswer::Granted(grant)) = answer else {
                panic!("{answer:?}");
            };
            assert_eq!(grant.reply.granted, 10);
        }
    }
}

#[test]
fn grants_nothing_for_one_lease_after_the_server_was_restarted_with_its_data() {
    let Some(program) = server_program() else { return };
    let mut server = Server::start_durable(&program);
    let mut client = server.client();
    let limit = backlog(1_000, LONG * 1_000, 1_000, Duration::from_millis(500));
    assert_eq!(grant(&mut client, &request(&limit, 1, 1, 100)).reply.granted, 100);
    server.restart();
    let begun = Instant::now();
    let mut quarantined = 0;
    let granted = loop {
        // What is held is leased again, but nothing new is granted.
        let next = LeaseRequest {
            held: 100,
            ..request(&limit, 1, 2 + quarantined, 100)
        };
        match ask(&mut client, &next) {
            Ok(StoreAnswer::Granted(grant)) if !grant.reply.quarantine.is_zero() => {
                assert!(grant.reply.quarantine <= limit.lease * 9 / 8);
                assert_eq!((grant.reply.granted, grant.kept), (0, 100));
                assert!(!grant.reply.remaining.is_zero());
                quarantined += 1;
            }
            Ok(StoreAnswer::Granted(grant)) => break grant.reply.granted,
            Err(error) if error.is_outage() => {}
            other => panic!("{other:?}"),
        }
        assert!(begun.elapsed() < DEADLINE);
    };
    assert!(quarantined > 0);
    assert_eq!(granted, 100);
}

#[test]
fn starts_with_nothing_left_where_a_store_has_lost_everything() {
    let Some(program) = server_program() else { return };
    let mut server = Server::start(&program);
    let mut client = server.client();
    let limit = backlog(1_000, LONG * 1_000, 1_000, Duration::from_millis(300));
    assert_eq!(
        grant(&mut client, &request(&limit, 1, 1, 1_000)).reply.granted,
        1_000
    );
    server.restart();
    client.disconnect();
    let spent = LeaseRequest {
        spent: 1_000,
        ..request(&limit, 1, 2, 1_000)
    };
    assert_eq!(grant_after_quarantine(&mut client, &spent).reply.granted, 0);
}

/// Waits for the end of a quarantine, which must happen.
fn grant_after_quarantine(client: &mut StoreClient, request: &LeaseRequest) -> Grant {
    let begun = Instant::now();
    let mut quarantined = 0;
    loop {
        let next = LeaseRequest {
            sequence: request.sequence + quarantined,
            ..request.clone()
        };
        match ask(client, &next) {
            Ok(StoreAnswer::Granted(grant)) if !grant.reply.quarantine.is_zero() => {
                assert_eq!(grant.reply.granted, 0);
                quarantined += 1;
            }
            Ok(StoreAnswer::Granted(grant)) => {
                assert!(quarantined > 0);
                return grant;
            }
            other => panic!("{other:?}"),
        }
        assert!(begun.elapsed() < DEADLINE);
    }
}

#[test]
fn grant_numbers_rise_over_a_store_that_has_lost_everything() {
    let Some(program) = server_program() else { return };
    let mut server = Server::start(&program);
    let mut client = server.client();
    let limit = LeasedLimit {
        kind: Kind::Concurrency,
        unit: "1".to_owned(),
        rule: LeasedRule::Concurrency { places: 100 },
        lease: Duration::from_millis(300),
    };
    let number = |grant: Grant| grant.reply.grant_number;
    let first = number(grant(&mut client, &request(&limit, 1, 1, 1)));
    let last = (2..10)
        .map(|host| number(grant(&mut client, &request(&limit, host, 1, 1))))
        .max();
    assert!(last > Some(first));
    server.restart();
    client.disconnect();
    // The first host that comes back does not know the last number.
    let back = LeaseRequest {
        grant_number: first,
        ..request(&limit, 1, 2, 1)
    };
    let after = number(grant_after_quarantine(&mut client, &back));
    assert!(Some(after) > last, "{after} after {last:?}");
    // If a host knows a greater number than the store, the store's number moves forward.
    let knowing = LeaseRequest {
        grant_number: after + 1_000_000,
        ..request(&limit, 2, 2, 1)
    };
    assert!(number(grant(&mut client, &knowing)) > after + 1_000_000);
}

#[test]
fn a_connection_that_the_server_has_closed_is_no_failure() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let mut client = server.client();
    let limit = thousand();
    for sequence in 1..4 {
        let answer = grant(&mut client, &request(&limit, 1, sequence, 10));
        assert_eq!(answer.reply.sequence, sequence);
        // This is what a server does that closes idle connections.
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL")
            .arg("TYPE")
            .arg("normal")
            .arg("SKIPME")
            .arg("yes");
        let killed: u64 = kill.query(&mut server.connection()).expect("a number");
        assert!(killed >= 1);
    }
}
