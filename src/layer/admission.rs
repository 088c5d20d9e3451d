//! The decision on a request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Extensions, Response};

use super::answer::{Answer, response};
use super::body::LimitBody;
use super::callback::{Callback, RefundRule};
use super::extract::demand::Demand;
use super::extract::extract_error::ExtractError;
use super::held::Held;
use super::permit_handle::SharedPermit;
use super::permits::Permits;
use super::settings::{OnError, Settings};
use crate::api::permit::Outcome;
use crate::api::refusal::Refusal;
use crate::api::set::checked::Checked;
use crate::error::{Error, RequestError};
use crate::headers::{Fields, Problem};

/// Whether the service is called.
pub(super) enum Decision {
    Admitted(Admission),
    Answered(Answer),
}

/// What the service's response carries.
#[derive(Debug, Default)]
pub(super) struct Admission {
    /// With the rule that says whether its request never happened.
    held: Option<(SharedPermit, Callback<RefundRule>)>,
    fields: Fields,
    /// Why the limits could not be asked, if the request was admitted anyway.
    error: Option<Arc<Error>>,
}

impl Decision {
    /// Asks the limits, without waiting.
    pub(super) fn at_once(demand: &Demand, settings: &Settings) -> Self {
        Self::ask(demand, settings).unwrap_or_else(|error| match demand.after(&error) {
            Some(Ok(demand)) => Self::ask(&demand, settings)
                .unwrap_or_else(|error| Self::not_decided(&demand, error, settings)),
            Some(Err(error)) => Self::failed(error, settings),
            None => Self::not_decided(demand, error, settings),
        })
    }

    fn ask(demand: &Demand, settings: &Settings) -> Result<Self, Error> {
        let request = demand.request();
        Ok(match demand.is_by_network() {
            true => Self::of_check(demand, request.check()?, settings),
            false => Self::of_outcome(demand, request.try_acquire()?, settings),
        })
    }

    /// Asks the limits, and waits in the queue if necessary.
    pub(super) async fn in_queue(demand: &Demand, longest: Duration, settings: &Settings) -> Self {
        let began = Instant::now();
        let error = match Self::wait(demand, longest, settings).await {
            Ok(decision) => return decision,
            Err(error) => error,
        };
        match demand.after(&error) {
            Some(Ok(demand)) => {
                // Waits in the queue of the successor, for the time that is left.
                let left = longest.saturating_sub(began.elapsed());
                let decision = Self::wait(&demand, left, settings).await;
                decision.unwrap_or_else(|error| Self::not_decided(&demand, error, settings))
            }
            Some(Err(error)) => Self::failed(error, settings),
            None => Self::not_decided(demand, error, settings),
        }
    }

    async fn wait(demand: &Demand, longest: Duration, settings: &Settings) -> Result<Self, Error> {
        if demand.is_by_network() {
            return Self::ask(demand, settings);
        }
        let outcome = demand.request().acquire_async(longest).await?;
        Ok(Self::of_outcome(demand, outcome, settings))
    }

    fn of_outcome(demand: &Demand, outcome: Outcome<'_>, settings: &Settings) -> Self {
        match outcome {
            Outcome::Admitted(permit) => {
                let fields = demand.headers().admission(permit.verdicts(), settings.advertise);
                let held = SharedPermit::new(Held::new(permit.into_owned(), settings.is_failure.clone()));
                Self::Admitted(Admission {
                    held: Some((held, settings.is_unused.clone())),
                    fields,
                    error: None,
                })
            }
            Outcome::Refused(refusal) => Self::refused(demand, refusal, settings),
        }
    }

    fn of_check(demand: &Demand, checked: Checked<'_>, settings: &Settings) -> Self {
        match checked.refusal() {
            Some(refusal) => Self::refused(demand, refusal, settings),
            None => Self::Admitted(Admission {
                fields: demand.headers().admission(checked.verdicts(), settings.advertise),
                ..Admission::default()
            }),
        }
    }

    fn refused(demand: &Demand, refusal: Refusal, settings: &Settings) -> Self {
        let problem = demand.headers().refusal(&refusal, settings.advertise);
        Self::Answered(Answer::refused(problem, refusal))
    }

    fn not_decided(demand: &Demand, error: Error, settings: &Settings) -> Self {
        // The request itself is at fault, so it must not pass even if errors admit.
        let Error::Request(RequestError::NeverAdmissible { limit, .. }) = &error else {
            return Self::failed(error, settings);
        };
        let problem = demand.headers().never_admissible(limit, settings.advertise);
        Self::Answered(Answer::failed(problem, Arc::new(error)))
    }

    pub(super) fn failed(error: Error, settings: &Settings) -> Self {
        // The client chose the key. Even if errors admit, an invalid one must not bypass the limits.
        if matches!(
            error,
            Error::Request(RequestError::KeyRequired { .. } | RequestError::InvalidKey { .. })
        ) {
            return Self::Answered(Answer::failed(Problem::without_a_key(), Arc::new(error)));
        }
        #[cfg(feature = "tracing")]
        tracing::error!(%error, "the limits of a request could not be asked");
        let error = Arc::new(error);
        match settings.on_error {
            OnError::Admit => Self::Admitted(Admission {
                error: Some(error),
                ..Admission::default()
            }),
            OnError::Refuse => Self::Answered(Answer::failed(Problem::failed(), error)),
        }
    }

    /// The decision for a request whose extractor does not say what it takes.
    pub(super) fn not_extracted(error: ExtractError, settings: &Settings) -> Self {
        match error {
            ExtractError::Failed(error) => Self::failed(error, settings),
            ExtractError::Answered(response) => Self::Answered(Answer::OfExtractor(response)),
        }
    }

    /// The decision for requests that are not limited.
    pub(super) fn unlimited() -> Self {
        Self::Admitted(Admission::default())
    }
}

impl Admission {
    /// Gives the service access to what is held for it, through the request's extensions.
    pub(super) fn announce(&self, extensions: &mut Extensions) {
        let held = self.held.as_ref().map(|(held, _)| held);
        Permits::announce(held, extensions);
    }

    /// The service's response, with the permit and the fields that show the limits.
    pub(super) fn complete<B>(self, response: Response<B>) -> Response<LimitBody<B>> {
        let (head, body) = response.into_parts();
        let held = match self.held {
            Some((held, is_unused)) => {
                match is_unused(&head) {
                    true => held.abandon(),
                    false => held.note_status(head.status),
                }
                // Dropped here and not by the compiler at the end, where a panic would leave the response without an
                // owner.
                drop(is_unused);
                Some(held)
            }
            None => None,
        };
        let mut response = Response::from_parts(head, LimitBody::new(body, held));
        response::append(self.fields, response.headers_mut());
        if let Some(error) = self.error {
            response.extensions_mut().insert(error);
        }
        response
    }

    /// Records that the service failed and there is no response.
    pub(super) fn fail(self) {
        if let Some((held, _)) = &self.held {
            held.note_failure();
        }
    }
}
