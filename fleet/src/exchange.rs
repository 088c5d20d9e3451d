//! Between a segment and the store: turns requests of the segment into requests of the protocol, and puts answers
//! into force. Uses neither a network nor a clock, so that the simulator can share it.

use std::time::Duration;

use shmlimit::fleet::{Asked, Duty, LeaseRequest, NamedProblem, StoreProblem};

use crate::backoff::Backoff;
use crate::store::answer::StoreAnswer;
use crate::store::calls::Call;
use crate::store::error::StoreError;
use crate::terms::{Terms, difference};

/// The most requests that are sent at once. More than that would hold up the store and the others that it serves.
const REQUESTS_AT_ONCE: usize = 4_096;

/// What a store answers to a pipeline: an answer to each request, or none at all.
pub type Answers = Result<Vec<Result<StoreAnswer, StoreError>>, StoreError>;

/// Requests on their way to the store.
#[derive(Clone, Debug)]
pub struct Pipeline {
    asked: Vec<Asked>,
    requests: Vec<(LeaseRequest, Terms)>,
}

impl Pipeline {
    /// The requests to send; answers come in the same order.
    #[must_use]
    pub fn requests(&self) -> &[(LeaseRequest, Terms)] {
        &self.requests
    }

    /// Records whether the store evicts keys, for each segment that asked.
    pub fn note_eviction(&self, duty: &Duty, evicts: bool) {
        duty.note_eviction(&self.asked, evicts);
    }

    /// How many script calls a store is sent for the requests: one for each, or one for up to 64 keys of one partition.
    #[must_use]
    pub fn calls(&self) -> usize {
        Call::all(&self.requests).len()
    }

    /// How long to wait at most before a store that did not answer is asked again: as long as a host with steady use
    /// waits between two requests, so that nobody is without a lease for long once the store is back.
    fn longest_wait(&self) -> Duration {
        let leases = self.requests.iter().map(|(request, _)| request.declared.lease);
        leases.min().unwrap_or_default() / 2
    }
}

/// Turns requests into pipelines and answers into leases, and decides when to retry.
#[derive(Clone, Debug)]
pub struct Exchange {
    backoff: Backoff,
}

impl Exchange {
    /// Creates an exchange. `seed` should differ for each host.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            backoff: Backoff::new(seed),
        }
    }

    /// Builds a pipeline from what a segment [asked](Duty::ask), of at most 4,096 requests: the segment asks for the rest
    /// again. Requests that the store cannot count are reported to the segment, and returned with the reason.
    pub fn pipeline(&self, duty: &Duty, asked: Vec<Asked>) -> (Pipeline, Vec<(LeaseRequest, StoreError)>) {
        let mut pipeline = Pipeline {
            asked: Vec::with_capacity(asked.len().min(REQUESTS_AT_ONCE)),
            requests: Vec::with_capacity(asked.len().min(REQUESTS_AT_ONCE)),
        };
        let mut problems = Vec::new();
        for asked in asked.into_iter().take(REQUESTS_AT_ONCE) {
            let request = asked.request();
            match Terms::new(&request.declared, request.version) {
                Ok(terms) => {
                    pipeline.requests.push((request.clone(), terms));
                    pipeline.asked.push(asked);
                }
                Err(source) => {
                    let key = request.key.clone();
                    report(duty, &asked, StoreProblem::Unsupported, request.declared.lease);
                    problems.push((request.clone(), StoreError::Terms { key, source }));
                }
            }
        }
        (pipeline, problems)
    }

    /// Puts the answers into force. Returns, in the order of the requests, what was wrong with each, if anything.
    pub fn settle(&mut self, duty: &Duty, pipeline: &Pipeline, answers: Answers) -> Vec<Option<StoreError>> {
        let answers = match answers {
            Ok(answers) => answers,
            Err(error) => {
                let retry_in = self.backoff.after_failure(pipeline.longest_wait());
                for asked in &pipeline.asked {
                    report(duty, asked, error.named_problem(), retry_in);
                }
                return vec![Some(error); pipeline.asked.len()];
            }
        };
        let mut retry_in = None;
        let asked = pipeline.asked.iter().zip(&pipeline.requests).zip(answers);
        let problems = asked.map(|((asked, (_, terms)), answer)| match answer {
            Ok(answer) => self.bring(duty, asked, terms, answer),
            Err(error) => {
                let retry_in =
                    *retry_in.get_or_insert_with(|| self.backoff.after_failure(pipeline.longest_wait()));
                report(duty, asked, error.named_problem(), retry_in);
                Some(error)
            }
        });
        let problems = problems.collect();
        if retry_in.is_none() {
            self.backoff.reset();
        }
        problems
    }

    fn bring(
        &mut self,
        duty: &Duty,
        asked: &Asked,
        terms: &Terms,
        answer: StoreAnswer,
    ) -> Option<StoreError> {
        let lease = asked.request().declared.lease;
        let key = || asked.request().key.clone();
        match answer {
            StoreAnswer::Granted(mut grant) => {
                if !grant.reply.quarantine.is_zero() {
                    // So that not all hosts ask again at the instant it ends.
                    grant.reply.quarantine += self.backoff.up_to(lease / 16);
                }
                // If it cannot be installed now, the request stays unanswered and is repeated.
                let _ = duty.install(asked, &grant.reply);
                None
            }
            StoreAnswer::Declared { in_force } => {
                report(duty, asked, StoreProblem::Mismatch, lease);
                Some(StoreError::Mismatch {
                    key: key(),
                    difference: difference(terms.fingerprint(), &in_force),
                })
            }
            StoreAnswer::Stale { .. } | StoreAnswer::SpentFell { .. } => {
                // Asked again soon, under a new number, but not at the same time as by all other copies.
                report(duty, asked, StoreProblem::Stale, self.backoff.up_to(lease / 8));
                Some(StoreError::Stale { key: key() })
            }
            StoreAnswer::Foreign { found } | StoreAnswer::Protocol { found } => {
                report(duty, asked, StoreProblem::WrongKey, lease);
                Some(StoreError::WrongKey { key: key(), found })
            }
        }
    }
}

fn report(duty: &Duty, asked: &Asked, problem: impl Into<NamedProblem>, retry_in: Duration) {
    // If it cannot be recorded now, it is found again when the request is repeated.
    let _ = duty.report(asked, problem, retry_in);
}
