//! Limits by key with a real server: what it grants, keeps, and forgets.

use std::time::Duration;

use crate::client::{ask, grant, thousand};
use crate::requests::{backlog, keyed, request};
use crate::scene::{Server, server_program, wait_for};
use shmlimit::fleet::{LeaseRequest, LeasedLimit, LeasedRule};
use shmlimit_fleet::protocol::{name_of_key, partition_key, partition_of};
use shmlimit_fleet::{Grant, StoreAnswer, StoreError, Terms};

/// A key like those that hosts have: its bits are as good as random.
fn hash_of(number: u128) -> u128 {
    (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
}

const KEY: u128 = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef;
/// The microseconds of a clock by which hosts number their requests.
const CLOCK: u64 = 1_795_903_200_000_000;

fn of_key(declared: &LeasedLimit, host: u64, sequence: u64, wanted: u64) -> LeaseRequest {
    keyed(request(declared, host, CLOCK + sequence, wanted), KEY)
}

#[test]
fn grants_each_key_what_there_is_and_no_more() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let mut client = server.client();
    let limit = thousand();
    let first = grant(&mut client, &of_key(&limit, 1, 1, 600)).reply;
    assert_eq!((first.granted, first.hosts, first.available), (600, 1, 400));
    assert_eq!(first.free_in, Duration::ZERO);
    // A second host gets what it wants of the rest, up to an even share.
    let second = grant(&mut client, &of_key(&limit, 2, 1, 600)).reply;
    assert_eq!((second.granted, second.hosts, second.available), (400, 2, 0));
    assert!(second.free_in > limit.lease, "{second:?}");
    // Another key has its own units, and so has the limit that all keys would share.
    let other = keyed(request(&limit, 2, 1, 600), hash_of(1));
    assert_eq!(grant(&mut client, &other).reply.granted, 600);
    assert_eq!(grant(&mut client, &request(&limit, 2, 1, 600)).reply.granted, 600);
    // The first host has spent 100 and keeps 200. What it returns is available to others.
    let returned = LeaseRequest {
        spent: 100,
        held: 200,
        ..of_key(&limit, 1, 2, 0)
    };
    assert_eq!(grant(&mut client, &returned).kept, 200);
    assert_eq!(
        grant(&mut client, &of_key(&limit, 3, 1, 1_000)).reply.granted,
        300
    );
}

#[test]
fn charges_once_what_was_reported_again_and_what_a_forgotten_row_began_anew() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let mut client = server.client();
    let limit = thousand();
    let left = |grant: Grant| grant.reply.available;
    let report = |sequence: u64, began: u64, spent: u64| {
        let mut request = LeaseRequest {
            spent,
            ..of_key(&limit, 1, sequence, 0)
        };
        request.of_key.as_mut().expect("a key").began = CLOCK + began;
        request
    };
    assert_eq!(left(grant(&mut client, &report(1, 1, 10))), 990);
    // The answer is lost: the request is repeated, and then made anew with what was spent since.
    assert_eq!(left(grant(&mut client, &report(1, 1, 10))), 990);
    assert_eq!(left(grant(&mut client, &report(5, 1, 15))), 985);
    assert_eq!(left(grant(&mut client, &report(5, 1, 15))), 985);
    // The request was answered. What follows counts from there, even if the host has forgotten the key.
    assert_eq!(left(grant(&mut client, &report(7, 7, 2))), 983);
    assert_eq!(left(grant(&mut client, &report(90, 90, 3))), 980);
    assert_eq!(
        ask(&mut client, &report(7, 7, 2)),
        Ok(StoreAnswer::Stale { last: CLOCK + 90 })
    );
    assert_eq!(
        ask(&mut client, &report(91, 90, 2)),
        Ok(StoreAnswer::SpentFell { before: 3 })
    );
    // A repeated grant has the time that is left of the first.
    let lease = LeaseRequest {
        wanted: 80,
        ..report(92, 92, 0)
    };
    let first = grant(&mut client, &lease).reply;
    let again = grant(&mut client, &lease).reply;
    assert_eq!((first.granted, again.granted), (80, 80));
    assert!(again.remaining <= first.remaining && again.available == 900);
}

/// Ten hosts admit a unit each before they ask, on a burst of five.
#[test]
fn charges_what_was_spent_before_asking_above_the_burst_and_says_when_a_unit_is_free() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let mut client = server.client();
    let hour = Duration::from_secs(3_600);
    let limit = backlog(1, hour, 5, Duration::from_secs(1));
    let reports = |host| LeaseRequest {
        spent: 1,
        ..of_key(&limit, host, 1, 1)
    };
    let granted: Vec<_> = (1..=4)
        .map(|host| grant(&mut client, &reports(host)).reply.granted)
        .collect();
    // For each of the first two hosts, one unit is charged and one is leased. The third has used the last.
    assert_eq!(granted, [1, 1, 0, 0]);
    for host in 5..=10 {
        let reply = grant(&mut client, &reports(host)).reply;
        assert_eq!((reply.granted, reply.available), (0, 0));
        // Ten are charged, two are leased, and four must be left over: this takes eight hours, less what has drained
        // since the first.
        let units = u32::try_from(host - 2).expect("few");
        let free_in = hour * units;
        assert!(
            reply.free_in <= free_in && reply.free_in > free_in - hour,
            "{host}: {reply:?}"
        );
    }
    // What an outage policy admitted is charged only as far as there is room.
    let by_policy = LeaseRequest {
        spent: 100,
        ungranted: 100,
        ..of_key(&limit, 11, 1, 0)
    };
    let reply = grant(&mut client, &by_policy).reply;
    assert!(reply.free_in <= hour * 8, "{reply:?}");
}

#[test]
fn answers_in_order_also_after_the_scripts_were_flushed() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let mut client = server.client();
    let mut connection = server.connection();
    let limit = thousand();
    let other = backlog(500, Duration::from_secs(3_600), 500, limit.lease);
    for round in 1..=2 {
        let _: () = redis::cmd("SCRIPT")
            .arg("FLUSH")
            .query(&mut connection)
            .expect("flushed");
        let requests: Vec<_> = (0..5_000)
            .map(|number: u64| {
                let (declared, key) = if number.is_multiple_of(3) {
                    (&other, "org/other")
                } else {
                    (&limit, "org/keys")
                };
                let mut request = request(declared, 1, round, number % 7 + 1);
                if number.is_multiple_of(100) {
                    request.key = format!("org/alone/{number}");
                } else {
                    request = keyed(request, hash_of(u128::from(number)));
                    key.clone_into(&mut request.key);
                    request.sequence = CLOCK * round + number;
                }
                let terms = Terms::new(declared, 0).expect("countable");
                (request, terms)
            })
            .collect();
        let answers = client.ask(&requests).expect("answers");
        assert_eq!(answers.len(), requests.len());
        for ((request, _), answer) in requests.iter().zip(answers) {
            match answer {
                Ok(StoreAnswer::Granted(grant)) => {
                    assert_eq!(grant.reply.sequence, request.sequence);
                    assert_eq!(grant.reply.granted, request.wanted, "{request:?}");
                }
                other => panic!("{other:?} to {request:?}"),
            }
        }
    }
}

#[test]
fn tells_each_key_of_a_declaration_that_differs_and_takes_a_higher_version() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let mut client = server.client();
    let spent = LeaseRequest {
        spent: 900,
        ..of_key(&thousand(), 1, 1, 0)
    };
    grant(&mut client, &spent);
    let other = backlog(1_000, Duration::from_secs(3_600_000), 2_000, thousand().lease);
    let answers = |client: &mut shmlimit_fleet::StoreClient, version| {
        let terms = Terms::new(&other, version).expect("countable");
        // Two keys are in the same partition as what was spent, and one is in another.
        let requests = [
            (of_key(&other, 2, 1, 2_000), terms.clone()),
            (
                keyed(request(&other, 2, 1, 2_000), KEY ^ (1 << 100)),
                terms.clone(),
            ),
            (keyed(request(&other, 2, 1, 2_000), KEY ^ 1), terms),
        ];
        client.ask(&requests).expect("answers")
    };
    let refused = answers(&mut client, 0);
    for answer in &refused[..2] {
        let in_force = thousand().to_string();
        assert_eq!(answer, &Ok(StoreAnswer::Declared { in_force }));
    }
    // Nobody has used that partition yet.
    assert!(matches!(&refused[2], Ok(StoreAnswer::Granted(_))), "{refused:?}");
    let granted: Vec<_> = answers(&mut client, 1)
        .into_iter()
        .map(|answer| match answer {
            Ok(StoreAnswer::Granted(grant)) => grant.reply.granted,
            other => panic!("{other:?}"),
        })
        .collect();
    // What was spent still counts, and a unit is reserved for the host that was just seen. The last answer is a
    // repetition.
    assert_eq!(granted, [1_099, 2_000, 2_000]);
    // A host with the former declaration is served by the new one.
    let reply = grant(&mut client, &of_key(&thousand(), 1, 2, 10)).reply;
    assert_eq!((reply.granted, reply.available), (1, 0));
    assert!(!reply.free_in.is_zero());
}

#[test]
fn leaves_alone_what_others_keep_under_its_names() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let mut client = server.client();
    let mut connection = server.connection();
    let foreign = |found: &str| {
        let found = found.to_owned();
        Ok(StoreAnswer::Foreign { found })
    };
    let partition = partition_key("org/tokens", partition_of(KEY));
    let limit = thousand();
    grant(&mut client, &of_key(&limit, 1, 1, 1));
    for (name, others_too) in [(name_of_key("org/tokens", KEY), false), (partition, true)] {
        for command in [["LPUSH", "list"], ["SET", "string"]] {
            let _: () = redis::cmd("DEL")
                .arg(&name)
                .query(&mut connection)
                .expect("removed");
            let _: () = redis::cmd(command[0])
                .arg(&name)
                .arg("value")
                .query(&mut connection)
                .expect("set");
            let requests = [
                of_key(&limit, 1, 2, 1),
                keyed(request(&limit, 1, 1, 1), KEY ^ (1 << 90)),
            ];
            let terms = Terms::new(&limit, 0).expect("countable");
            let requests = requests.map(|request| (request, terms.clone()));
            let answers: Vec<Result<StoreAnswer, StoreError>> = client.ask(&requests).expect("answers");
            assert_eq!(answers[0], foreign(command[1]));
            if others_too {
                assert_eq!(answers[1], foreign(command[1]));
            } else {
                assert!(matches!(&answers[1], Ok(StoreAnswer::Granted(_))), "{answers:?}");
            }
        }
        let _: () = redis::cmd("DEL")
            .arg(&name)
            .query(&mut connection)
            .expect("removed");
    }
}

/// What is leased stays leased, nothing new is granted, and what was spent of a key is not forgotten.
#[test]
fn grants_keys_nothing_new_for_one_lease_after_the_server_was_restarted_with_its_data() {
    let Some(program) = server_program() else { return };
    let mut server = Server::start_durable(&program);
    let mut client = server.client();
    let limit = backlog(
        1_000,
        Duration::from_secs(3_600_000),
        1_000,
        Duration::from_secs(60),
    );
    assert_eq!(grant(&mut client, &of_key(&limit, 1, 1, 100)).reply.granted, 100);
    server.restart();
    client.disconnect();
    let next = LeaseRequest {
        held: 100,
        ..of_key(&limit, 1, 2, 100)
    };
    wait_for("the server to load", || ask(&mut client, &next).is_ok());
    let renewed = grant(&mut client, &next);
    assert_eq!((renewed.reply.granted, renewed.kept), (0, 100));
    assert!(!renewed.reply.quarantine.is_zero() && !renewed.reply.remaining.is_zero());
    // An empty server first hears from a host that has a lease.
    server.kill();
    let empty = Server::start(&program);
    let mut client = empty.client();
    let renewed = grant(&mut client, &next);
    assert_eq!((renewed.reply.granted, renewed.kept), (0, 100));
    assert!(!renewed.reply.quarantine.is_zero() && renewed.reply.available == 0);
}

#[test]
fn a_record_is_small_and_is_gone_when_it_says_nothing() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let mut client = server.client();
    let mut connection = server.connection();
    // This limit drains in a tenth of a second, and its lease is equally short.
    let limit = backlog(10_000, Duration::from_secs(1), 1_000, Duration::from_millis(100));
    let name = name_of_key("org/tokens", KEY);
    grant(&mut client, &of_key(&limit, 1, 1, 100));
    let mut number = |command: &str, name: &str| -> i64 {
        let mut command = redis::cmd(command);
        command.arg(name).query(&mut connection).expect("a number")
    };
    assert!(number("PTTL", &name) <= 1_000);
    wait_for("the record to go", || number("EXISTS", &name) == 0);
    // What all keys of the partition share is kept for a day.
    let partition = partition_key("org/tokens", partition_of(KEY));
    assert!((86_000_000..87_000_000).contains(&number("PTTL", &partition)));
    // A window's keys are kept for as long as it lasts, and for two leases.
    let window = Duration::from_secs(1_000_000);
    let of_window = LeasedLimit {
        rule: LeasedRule::Window { capacity: 5, window },
        ..limit
    };
    let mut in_window = of_key(&of_window, 1, 1, 1);
    in_window.key = "org/windows".to_owned();
    let now = Duration::from_micros(grant(&mut client, &in_window).store_time);
    let left = window.as_millis() - now.as_millis() % window.as_millis();
    let kept_for = number("PTTL", &name_of_key("org/windows", KEY));
    let left = i64::try_from(left).expect("a week and more");
    assert!(
        (left - 60_000..=left + 300).contains(&kept_for),
        "{kept_for} of {left}"
    );

    let limit = backlog(1_000, Duration::from_secs(60), 1_000, Duration::from_secs(10));
    for (key, hosts) in [(KEY, 1), (KEY ^ 1 << 80, 3), (KEY ^ 2 << 80, 10)] {
        for round in 0..3 {
            for host in 1..=hosts {
                // The hosts' ids are as random as real ones. They report late, and now and then their answers are lost.
                let host = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(host);
                let mut request = request(&limit, host, CLOCK + round * 5_000_000 + host % 1_000_000, 7);
                request = keyed(request, key);
                request.key = "org/tenants/calls".to_owned();
                request.of_key.as_mut().expect("a key").began -= (host % 3) * 400_000;
                request.spent = 300;
                grant(&mut client, &request);
            }
        }
        let name = name_of_key("org/tenants/calls", key);
        let mut memory = redis::cmd("MEMORY");
        memory.arg("USAGE").arg(&name);
        let used: u64 = memory.query(&mut server.connection()).expect("a number");
        let record: u64 = redis::cmd("STRLEN")
            .arg(&name)
            .query(&mut server.connection())
            .expect("a number");
        println!(
            "{hosts} hosts: a record of {record} bytes, {used} bytes with the name ({} bytes)",
            name.len()
        );
        if hosts == 1 {
            assert!(used < 250, "{used}");
        }
        if hosts == 3 {
            assert!(record < 200, "{record}");
        }
    }
}
