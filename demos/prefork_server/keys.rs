//! Clients that name themselves: several keys at once, each of which asks for more than its limits allow.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use shmlimit::declare::Kind;
use tokio::runtime;
use tokio::task::{JoinSet, LocalSet};

use crate::Failure;
use crate::client::Connection;
use crate::rules::{Check, Rule, Rules};
use crate::worker::SERVER_WORKER;

/// How many connections each key has at a time.
const CONNECTIONS: u32 = 4;

/// How many requests a key makes beyond what it gets.
const TOO_MANY: u64 = 5;

/// A key makes no more requests than this, however many are admitted.
const MAX_REQUESTS: u64 = 200;

/// A tally of the answers to all keys.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct KeyTally {
    /// From before the first request to after the last answer.
    pub elapsed: Duration,
    pub by_key: BTreeMap<String, KeyAnswers>,
}

/// A tally of the answers to one key.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct KeyAnswers {
    pub requests: u64,
    pub admitted: u64,
    pub refused: u64,
    /// The workers that answered.
    pub workers: BTreeSet<i32>,
}

impl Rules {
    /// The limit of which each key asks too much.
    fn of_each_key(&self) -> Option<&Rule> {
        self.of_kind(Kind::Calls).next()
    }
}

/// Sends requests of several keys at once. Runs in a forked child, so the runtime is made here, after the fork.
pub fn drive(server: SocketAddr, keys: u32, rules: &Rules) -> Result<KeyTally, Failure> {
    let max = rules
        .of_each_key()
        .and_then(|limit| limit.max_within(Duration::ZERO));
    let requests = max.map_or(MAX_REQUESTS, |max| max.saturating_add(TOO_MANY).min(MAX_REQUESTS));
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let by_key = Rc::new(RefCell::new(BTreeMap::new()));
    let started = Instant::now();
    LocalSet::new().block_on(&runtime, async {
        let mut clients = JoinSet::new();
        for number in 1..=keys {
            let left = Rc::new(Cell::new(requests));
            for _ in 0..CONNECTIONS {
                let key = format!("key-{number}");
                clients.spawn_local(ask_as(server, key, Rc::clone(&left), Rc::clone(&by_key)));
            }
        }
        while let Some(ended) = clients.join_next().await {
            ended??;
        }
        Ok::<_, Failure>(())
    })?;
    Ok(KeyTally {
        elapsed: started.elapsed(),
        by_key: by_key.take(),
    })
}

/// Sends each request on a new connection, so that whichever worker accepts that answers it.
async fn ask_as(
    server: SocketAddr,
    key: String,
    left: Rc<Cell<u64>>,
    by_key: Rc<RefCell<BTreeMap<String, KeyAnswers>>>,
) -> Result<(), Failure> {
    while let Some(rest) = left.get().checked_sub(1) {
        left.set(rest);
        let answer = Connection::open(server).await?.ask(Some(&key)).await?;
        let worker = answer.header(SERVER_WORKER)?.parse()?;
        let mut by_key = by_key.borrow_mut();
        let answers = by_key.entry(key.clone()).or_default();
        answers.requests += 1;
        answers.workers.insert(worker);
        match answer.status {
            StatusCode::OK => answers.admitted += 1,
            StatusCode::TOO_MANY_REQUESTS => answers.refused += 1,
            status => return Err(format!("{key} was answered {status}").into()),
        }
    }
    Ok(())
}

impl KeyTally {
    /// Compares what each key got with what it should have got: no more and, if it asked for more, no less.
    pub fn checks(&self, rules: &Rules) -> Vec<Check> {
        let mut checks = Vec::new();
        let limit = rules.of_each_key();
        let admitted = || self.by_key.values().map(|answers| answers.admitted);
        let (Some(limit), Some(min), Some(max)) = (limit, admitted().min(), admitted().max()) else {
            return checks;
        };
        let mut check = |what: &str, allowed: u64, counted: u64, is_held: bool| {
            checks.push(Check {
                subject: limit.name.clone(),
                what: what.to_owned(),
                allowed,
                counted,
                held: is_held,
            });
        };
        if let Some(allowed) = limit.max_within(self.elapsed) {
            check("admitted for the key that got most", allowed, max, max <= allowed);
        }
        let due = limit
            .capacity
            .map(|capacity| limit.burst.unwrap_or(capacity).min(capacity));
        // Other limits of the set may refuse before this one does.
        if let (Some(due), 1) = (due, rules.limits.len()) {
            let asked = self.by_key.values().map(|answers| answers.requests).min();
            let due = due.min(asked.unwrap_or(0));
            check("admitted for the key that got least", due, min, min >= due);
        }
        checks
    }
}
