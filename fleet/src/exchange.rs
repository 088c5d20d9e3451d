//! What is between a segment and the store: requests that the segment keeps become requests of the protocol, and answers are
//! brought into force. Without a network and without a clock, so that the simulator does the same.

use std::time::Duration;

use shmlimit::fleet::{Asked, Duty, LeaseRequest, StoreProblem};

use crate::backoff::Backoff;
use crate::store::answer::StoreAnswer;
use crate::store::error::StoreError;
use crate::terms::{Terms, difference};

/// What a store answers to a pipeline: nothing at all, or to each request.
pub type Answers = Result<Vec<Result<StoreAnswer, StoreError>>, StoreError>;

/// Requests on their way.
#[derive(Clone, Debug)]
pub struct Pipeline {
    asked: Vec<Asked>,
    requests: Vec<(LeaseRequest, Terms)>,
}

impl Pipeline {
    /// What is sent, in the order of the answers.
    #[must_use]
    pub fn requests(&self) -> &[(LeaseRequest, Terms)] {
        &self.requests
    }
}

/// Turns requests into pipelines and answers into leases, and says when to try again.
#[derive(Clone, Debug)]
pub struct Exchange {
    backoff: Backoff,
}

impl Exchange {
    /// `seed` is different for each host.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            backoff: Backoff::new(seed),
        }
    }

    /// Puts into a pipeline what was [asked](Duty::ask) by a segment; what the store cannot count is reported, and is the
    /// problem that is answered.
    pub fn pipeline(&self, duty: &Duty, asked: Vec<Asked>) -> (Pipeline, Option<StoreError>) {
        let mut pipeline = Pipeline {
            asked: Vec::with_capacity(asked.len()),
            requests: Vec::with_capacity(asked.len()),
        };
        let mut problem = None;
        for asked in asked {
            let request = asked.request();
            match Terms::new(&request.declared, request.version) {
                Ok(terms) => {
                    pipeline.requests.push((request.clone(), terms));
                    pipeline.asked.push(asked);
                }
                Err(source) => {
                    let key = request.key.clone();
                    report(duty, &asked, StoreProblem::Unsupported, request.declared.lease);
                    problem = Some(StoreError::Terms { key, source });
                }
            }
        }
        (pipeline, problem)
    }

    /// Brings what was answered into force; answers what was wrong, if anything was.
    pub fn settle(&mut self, duty: &Duty, pipeline: &Pipeline, answers: Answers) -> Option<StoreError> {
        let answers = match answers {
            Ok(answers) => answers,
            Err(error) => {
                let retry_in = self.backoff.after_failure();
                for asked in &pipeline.asked {
                    report(duty, asked, problem_of(&error), retry_in);
                }
                return Some(error);
            }
        };
        let (mut problem, mut retry_in) = (None, None);
        for ((asked, (_, terms)), answer) in pipeline.asked.iter().zip(&pipeline.requests).zip(answers) {
            match answer {
                Ok(answer) => problem = self.bring(duty, asked, terms, answer).or(problem),
                Err(error) => {
                    let retry_in = *retry_in.get_or_insert_with(|| self.backoff.after_failure());
                    report(duty, asked, problem_of(&error), retry_in);
                    problem = Some(error);
                }
            }
        }
        if retry_in.is_none() {
            self.backoff.reset();
        }
        problem
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
            StoreAnswer::Granted(grant) => {
                // What cannot be installed now stays unanswered, and is repeated.
                let _ = duty.install(asked, &grant.reply);
                None
            }
            StoreAnswer::Quarantine { remaining, .. } => {
                let retry_in = remaining + self.backoff.up_to(lease / 8);
                report(duty, asked, StoreProblem::Quarantine, retry_in);
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
                // At once, as another host; not with all that were copied together.
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

fn report(duty: &Duty, asked: &Asked, problem: StoreProblem, retry_in: Duration) {
    // What cannot be noted now is found again when the request is repeated.
    let _ = duty.report(asked, problem, retry_in);
}

fn problem_of(error: &StoreError) -> StoreProblem {
    match error {
        StoreError::AccessDenied { .. } | StoreError::Credentials(_) => StoreProblem::Denied,
        StoreError::NoScripts { .. } | StoreError::Terms { .. } | StoreError::Address(_) => {
            StoreProblem::Unsupported
        }
        StoreError::Mismatch { .. } => StoreProblem::Mismatch,
        StoreError::WrongKey { .. } => StoreProblem::WrongKey,
        StoreError::Stale { .. } => StoreProblem::Stale,
        StoreError::Unreachable { .. } | StoreError::Unexpected { .. } => StoreProblem::Unreachable,
    }
}
