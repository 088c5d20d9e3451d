//! What becomes of a request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Response};

use super::answer::Answer;
use super::body::LimitBody;
use super::demand::{Asked, Demand};
use super::held::Held;
use super::layer::{Advertise, OnError, Settings};
use super::permit_handle::SharedPermit;
use super::problem;
use crate::check::Checked;
use crate::error::Error;
use crate::permit::Outcome;
use crate::refusal::{Refusal, Verdict};

/// Whether the service is called.
pub(super) enum Decision {
    Admitted(Admission),
    Answered(Answer),
}

/// What a response of the service is given.
#[derive(Debug, Default)]
pub(super) struct Admission {
    held: Option<SharedPermit>,
    fields: Fields,
    /// Why the limits could not be asked, where the request was admitted nevertheless.
    error: Option<Arc<Error>>,
}

/// What clients are told. Neither field may be empty.
#[derive(Debug, Default)]
struct Fields {
    policy: Option<HeaderValue>,
    standing: Option<HeaderValue>,
}

impl Decision {
    /// Asks the limits, which answer at once.
    pub(super) fn at_once(demand: &Demand, settings: &Settings) -> Self {
        Self::ask(demand, settings).unwrap_or_else(|error| match demand.after(&error) {
            Some(Ok(demand)) => Self::ask(&demand, settings)
                .unwrap_or_else(|error| Self::not_decided(&demand, error, settings)),
            Some(Err(error)) => Self::failed(error, settings),
            None => Self::not_decided(demand, error, settings),
        })
    }

    fn ask(demand: &Demand, settings: &Settings) -> Result<Self, Error> {
        Ok(match demand.asked()? {
            Asked::Subject(subject) => {
                Self::of_outcome(demand, subject.try_acquire(demand.request())?, settings)
            }
            Asked::Networks(address) => Self::of_check(demand, address.check(demand.request())?, settings),
        })
    }

    /// Asks the limits, and waits in line for them.
    pub(super) async fn in_line(demand: &Demand, longest: Duration, settings: &Settings) -> Self {
        let began = Instant::now();
        let error = match Self::wait(demand, longest, settings).await {
            Ok(decision) => return decision,
            Err(error) => error,
        };
        match demand.after(&error) {
            Some(Ok(demand)) => {
                // In the queue of the successor, for as long as is left.
                let left = longest.saturating_sub(began.elapsed());
                let decision = Self::wait(&demand, left, settings).await;
                decision.unwrap_or_else(|error| Self::not_decided(&demand, error, settings))
            }
            Some(Err(error)) => Self::failed(error, settings),
            None => Self::not_decided(demand, error, settings),
        }
    }

    async fn wait(demand: &Demand, longest: Duration, settings: &Settings) -> Result<Self, Error> {
        match demand.asked()? {
            Asked::Subject(subject) => {
                let outcome = subject.acquire_async(demand.request(), Some(longest)).await?;
                Ok(Self::of_outcome(demand, outcome, settings))
            }
            // Networks have no lines.
            Asked::Networks(_) => Self::ask(demand, settings),
        }
    }

    fn of_outcome(demand: &Demand, outcome: Outcome<'_>, settings: &Settings) -> Self {
        match outcome {
            Outcome::Admitted(permit) => {
                let fields = Fields::of_admitted(demand, permit.verdicts(), settings);
                let held = SharedPermit::new(Held::new(permit.into_owned(), settings.is_failure));
                Self::Admitted(Admission {
                    held: Some(held),
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
                fields: Fields::of_admitted(demand, checked.verdicts(), settings),
                ..Admission::default()
            }),
        }
    }

    fn refused(demand: &Demand, refusal: Refusal, settings: &Settings) -> Self {
        let policies = demand.policies();
        let mut response = problem::refused(demand.set(), &policies, &refusal);
        if settings.advertise != Advertise::Never {
            let fields = Fields {
                policy: policies.policy(demand.set(), refusal.verdicts()),
                standing: policies.standing(demand.set(), refusal.verdicts(), false),
            };
            fields.append_to(response.headers_mut());
        }
        Self::Answered(Answer::refused(response, refusal))
    }

    fn not_decided(demand: &Demand, error: Error, settings: &Settings) -> Self {
        // Nothing is wrong but with the request, which must not get past the limit where errors do.
        let Error::NeverAdmissible { limit, .. } = &error else {
            return Self::failed(error, settings);
        };
        let policies = demand.policies();
        let mut response = problem::quota_exceeded(demand.set(), &policies, &[limit]);
        if settings.advertise != Advertise::Never {
            let fields = Fields {
                policy: policies.policy(demand.set(), std::iter::empty()),
                standing: None,
            };
            fields.append_to(response.headers_mut());
        }
        Self::Answered(Answer::failed(response, Arc::new(error)))
    }

    pub(super) fn failed(error: Error, settings: &Settings) -> Self {
        // Clients say what their key is. Where errors admit, a bad one must not be a way past the limits.
        if matches!(error, Error::KeyRequired { .. } | Error::InvalidKey { .. }) {
            let response = problem::without_a_key();
            return Self::Answered(Answer::failed(response, Arc::new(error)));
        }
        #[cfg(feature = "tracing")]
        tracing::error!(%error, "the limits of a request could not be asked");
        let error = Arc::new(error);
        match settings.on_error {
            OnError::Admit => Self::Admitted(Admission {
                error: Some(error),
                ..Admission::default()
            }),
            OnError::Refuse => Self::Answered(Answer::failed(problem::failed(), error)),
        }
    }

    /// For requests that are not limited.
    pub(super) fn unlimited() -> Self {
        Self::Admitted(Admission::default())
    }
}

impl Admission {
    /// Tells the service, by the request's extensions, what is held for it.
    pub(super) fn announce(&self, extensions: &mut Extensions) {
        if let Some(held) = &self.held {
            held.announce(extensions);
        }
    }

    /// The service's response, under the permit and with what clients are told.
    pub(super) fn complete<B>(self, response: Response<B>) -> Response<LimitBody<B>> {
        if let Some(held) = &self.held {
            held.note_status(response.status());
        }
        let mut response = response.map(|body| LimitBody::new(body, self.held));
        self.fields.append_to(response.headers_mut());
        if let Some(error) = self.error {
            response.extensions_mut().insert(error);
        }
        response
    }

    /// The service has failed: there is no response to hold anything for.
    pub(super) fn fail(self) {
        if let Some(held) = &self.held {
            held.note_failure();
        }
    }
}

impl Fields {
    /// Described after the decision, by which this process hears of limits that have changed.
    fn of_admitted<'a>(
        demand: &Demand,
        verdicts: impl Iterator<Item = Verdict<'a>>,
        settings: &Settings,
    ) -> Self {
        if settings.advertise != Advertise::Always {
            return Self::default();
        }
        let policies = demand.policies();
        let verdicts: Vec<_> = verdicts.collect();
        Self {
            policy: policies.policy(demand.set(), verdicts.iter().copied()),
            standing: policies.standing(demand.set(), verdicts.into_iter(), true),
        }
    }

    /// Both are lists, and the service may be limited by others as well: what is there already stays.
    fn append_to(self, headers: &mut HeaderMap) {
        const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
        const STANDING: HeaderName = HeaderName::from_static("ratelimit");
        for (name, value) in [(POLICY, self.policy), (STANDING, self.standing)] {
            if let Some(value) = value {
                headers.append(name, value);
            }
        }
    }
}
