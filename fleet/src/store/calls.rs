//! Requests as calls of the scripts: one by one, or many keys of one partition in one call.

use std::collections::HashMap;

use redis::{Cmd, Value};
use shmlimit::fleet::{LeaseRequest, LeasedKey};

use crate::protocol::{
    KEYED_SCRIPT, KEYS_IN_A_CALL, LEASE_SCRIPT, add_arguments, add_keyed_arguments, partition_key,
    partition_of, read_answer, read_keyed_answers, store_key,
};
use crate::store::answer::StoreAnswer;
use crate::terms::Terms;

/// The scripts, with the hashes by which a server that has them knows them.
pub(super) struct Scripts {
    lease: String,
    keyed: String,
}

impl Scripts {
    pub(super) fn new() -> Self {
        let hash = |script| redis::Script::new(script).get_hash().to_owned();
        Self {
            lease: hash(LEASE_SCRIPT),
            keyed: hash(KEYED_SCRIPT),
        }
    }
}

/// One call of a script.
pub(crate) enum Call<'a> {
    /// For a limit that all requests share.
    Lease {
        position: usize,
        request: &'a LeaseRequest,
        terms: &'a Terms,
    },
    /// For keys of one partition of a limit, all counted alike.
    Keyed {
        positions: Vec<usize>,
        key: &'a str,
        terms: &'a Terms,
        requests: Vec<(LeasedKey, &'a LeaseRequest)>,
    },
}

impl<'a> Call<'a> {
    /// Groups requests into as few calls as possible.
    pub(crate) fn all(requests: &'a [(LeaseRequest, Terms)]) -> Vec<Self> {
        let mut calls = Vec::new();
        let mut open = HashMap::new();
        for (position, (request, terms)) in requests.iter().enumerate() {
            let Some(of_key) = request.of_key else {
                calls.push(Self::Lease {
                    position,
                    request,
                    terms,
                });
                continue;
            };
            let key = request.key.as_str();
            let alike = (key, partition_of(of_key.hash), terms.version, terms.fingerprint());
            let last = open.get(&alike).and_then(|&index: &usize| calls.get_mut(index));
            match last {
                Some(Self::Keyed {
                    positions, requests, ..
                }) if requests.len() < KEYS_IN_A_CALL => {
                    positions.push(position);
                    requests.push((of_key, request));
                }
                _ => {
                    open.insert(alike, calls.len());
                    calls.push(Self::Keyed {
                        positions: vec![position],
                        key,
                        terms,
                        requests: vec![(of_key, request)],
                    });
                }
            }
        }
        calls
    }

    /// The call of a script that the server has.
    pub(super) fn by_hash(&self, scripts: &Scripts, run: &str) -> Cmd {
        let sha = match self {
            Self::Lease { .. } => &scripts.lease,
            Self::Keyed { .. } => &scripts.keyed,
        };
        self.command("EVALSHA", sha, run)
    }

    /// The call with the text of the script, which the server keeps for later calls by its hash.
    pub(super) fn with_text(&self, run: &str) -> Cmd {
        self.command("EVAL", self.script(), run)
    }

    /// The text of its script.
    pub(super) fn script(&self) -> &'static str {
        match self {
            Self::Lease { .. } => LEASE_SCRIPT,
            Self::Keyed { .. } => KEYED_SCRIPT,
        }
    }

    fn command(&self, name: &str, script: &str, run: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script);
        match self {
            Self::Lease { request, terms, .. } => add_arguments(&mut command, run, terms, request),
            Self::Keyed {
                key, terms, requests, ..
            } => add_keyed_arguments(&mut command, run, (key, terms), requests),
        }
        command
    }

    /// The key that determines where a cluster places all keys of the call.
    pub(super) fn place(&self) -> String {
        match self {
            Self::Lease { request, .. } => store_key(&request.key),
            Self::Keyed { key, requests, .. } => {
                let first = requests.first();
                partition_key(key, first.map_or(0, |(of_key, _)| partition_of(of_key.hash)))
            }
        }
    }

    /// The positions of its requests among all requests.
    pub(super) fn positions(&self) -> &[usize] {
        match self {
            Self::Lease { position, .. } => std::slice::from_ref(position),
            Self::Keyed { positions, .. } => positions,
        }
    }

    /// Parses the script's answer into an answer to each request.
    ///
    /// # Errors
    ///
    /// A description of an unexpected answer.
    pub(super) fn read(&self, value: &Value) -> Result<Vec<StoreAnswer>, String> {
        match self {
            Self::Lease { .. } => read_answer(value).map(|answer| vec![answer]),
            Self::Keyed { requests, .. } => read_keyed_answers(value, requests.len()),
        }
    }
}
