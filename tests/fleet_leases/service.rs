//! A store in a separate process, asked over a socket, and those that ask it.
// Each test uses only a part of this file.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use shmlimit::fleet::{Fleet, LeaseReply, LeaseRequest, LeasedKey, StoreProblem};

use super::scene::clock::boot_time;
use super::scene::process::TIMEOUT;
use super::store::Store;

/// Answers lines until its process is killed: for a line with a limit's name and numbers, it writes another. The
/// templates say how each limit is declared.
pub fn serve(listener: &UnixListener, templates: &[LeaseRequest]) {
    let store = Store::default();
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { continue };
        let mut line = String::new();
        if BufReader::new(&stream).read_line(&mut line).is_err() {
            continue;
        }
        if line == "used\n" {
            let template = &templates[0];
            let used = store.used(&template.key, &template.declared.rule);
            let _ = writeln!(stream, "{used} {}", store.outstanding(&template.key));
            continue;
        }
        let Some((name, numbers)) = line.split_once(' ') else {
            continue;
        };
        let numbers: Vec<u128> = numbers
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        let Some((hash, numbers)) = numbers.split_first() else {
            continue;
        };
        let numbers: Vec<u64> = numbers.iter().map(|number| *number as u64).collect();
        let [began, host, sequence, spent, refunded, ungranted, held, wanted] = numbers[..] else {
            continue;
        };
        let Some(template) = templates.iter().find(|template| template.key == name) else {
            continue;
        };
        let of_key = LeasedKey { hash: *hash, began };
        let request = LeaseRequest {
            of_key: Some(of_key).filter(|of_key| of_key.hash != 0),
            host,
            sequence,
            spent,
            refunded,
            ungranted,
            held,
            wanted,
            ..template.clone()
        };
        let Ok(reply) = store.answer(&request, boot_time()) else {
            continue;
        };
        let (remaining, drained_in) = (reply.remaining.as_nanos(), reply.drained_in.as_nanos());
        let free_in = reply.free_in.as_nanos();
        // If the process that asked is dead by now, the store is asked again.
        let _ = writeln!(
            stream,
            "{} {} {remaining} {} {} {drained_in} {} {free_in}",
            reply.sequence, reply.granted, reply.share, reply.grant_number, reply.available
        );
    }
}

pub fn send(path: &Path, request: &LeaseRequest) -> Result<LeaseReply, StoreProblem> {
    let exchange = || -> std::io::Result<String> {
        let mut stream = UnixStream::connect(path)?;
        let of_key = request.of_key.unwrap_or(LeasedKey { hash: 0, began: 0 });
        write!(stream, "{} {} {}", request.key, of_key.hash, of_key.began)?;
        let counts = [request.spent, request.refunded, request.ungranted];
        for number in [request.host, request.sequence].iter().chain(&counts) {
            write!(stream, " {number}")?;
        }
        writeln!(stream, " {} {}", request.held, request.wanted)?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        Ok(line)
    };
    let line = exchange().map_err(|_| StoreProblem::Unreachable)?;
    let numbers: Vec<u64> = line
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let [
        sequence,
        granted,
        remaining,
        share,
        grant_number,
        drained_in,
        available,
        free_in,
    ] = numbers[..]
    else {
        return Err(StoreProblem::Unreachable);
    };
    Ok(LeaseReply {
        sequence,
        granted,
        remaining: Duration::from_nanos(remaining),
        share,
        grant_number,
        drained_in: Duration::from_nanos(drained_in),
        ceiling: u64::MAX,
        hosts: 1,
        quarantine: Duration::ZERO,
        available,
        free_in: Duration::from_nanos(free_in),
    })
}

/// Asks the store for as long as this process has duty.
pub fn refresh(fleet: &Fleet, path: &Path) {
    loop {
        let Some(duty) = fleet.wait_for_duty(TIMEOUT).expect("works") else {
            continue;
        };
        while duty.is_held() {
            for asked in duty.ask().expect("works") {
                match send(path, asked.request()) {
                    Ok(reply) => duty.install(&asked, &reply).expect("works"),
                    Err(problem) => duty
                        .report(&asked, problem, Duration::from_millis(1))
                        .expect("works"),
                }
            }
            duty.wait(Duration::from_secs(1));
        }
    }
}

/// How much the store counts as used, and how much it has leased.
pub fn used_and_outstanding(path: &Path) -> [u64; 2] {
    let mut stream = UnixStream::connect(path).expect("the store listens");
    writeln!(stream, "used").expect("it reads");
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).expect("it answers");
    let mut numbers = line.split_whitespace().filter_map(|word| word.parse().ok());
    [(); 2].map(|()| numbers.next().expect("a number"))
}
