//! What becomes of a request.

use std::sync::Arc;
use std::time::Duration;

use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Response};

use super::body::LimitBody;
use super::demand::{Asked, Demand};
use super::held::Held;
use super::layer::{Advertise, OnError, Settings};
use super::permit_handle::SharedPermit;
use super::problem::{self, Caller};
use crate::check::Checked;
use crate::error::Error;
use crate::permit::Outcome;
use crate::refusal::{Refusal, Verdict};

/// Whether the service is called.
pub(super) enum Decision {
    Admitted(Admission),
    /// What is answered without the service.
    Answered(Response<String>),
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
    pub(super) fn at_once(demand: &Demand, settings: Settings) -> Self {
        match demand.asked() {
            Ok(Asked::Subject(subject)) => {
                let outcome = subject.try_acquire(demand.request());
                Self::of_outcome(demand, outcome, settings)
            }
            Ok(Asked::Networks(address)) => {
                let checked = address.check(demand.request());
                Self::of_check(demand, checked, settings)
            }
            Err(error) => Self::failed(error, settings),
        }
    }

    /// Asks the limits, and waits in line for them.
    pub(super) async fn in_line(demand: &Demand, longest: Duration, settings: Settings) -> Self {
        match demand.asked() {
            Ok(Asked::Subject(subject)) => {
                let outcome = subject.acquire_async(demand.request(), Some(longest)).await;
                Self::of_outcome(demand, outcome, settings)
            }
            // Networks have no lines.
            Ok(Asked::Networks(_)) | Err(_) => Self::at_once(demand, settings),
        }
    }

    fn of_outcome(demand: &Demand, outcome: Result<Outcome<'_>, Error>, settings: Settings) -> Self {
        match outcome {
            Ok(Outcome::Admitted(permit)) => {
                let fields = Fields::of_admitted(demand, permit.verdicts(), settings);
                let held = SharedPermit::new(Held::new(permit.into_owned(), settings));
                Self::Admitted(Admission {
                    held: Some(held),
                    fields,
                    error: None,
                })
            }
            Ok(Outcome::Refused(refusal)) => Self::refused(demand, &refusal, settings),
            Err(error) => Self::not_decided(demand, error, settings),
        }
    }

    fn of_check(demand: &Demand, checked: Result<Checked<'_>, Error>, settings: Settings) -> Self {
        match checked {
            Ok(checked) => match checked.refusal() {
                Some(refusal) => Self::refused(demand, &refusal, settings),
                None => Self::Admitted(Admission {
                    fields: Fields::of_admitted(demand, checked.verdicts(), settings),
                    ..Admission::default()
                }),
            },
            Err(error) => Self::not_decided(demand, error, settings),
        }
    }

    fn refused(demand: &Demand, refusal: &Refusal<'_>, settings: Settings) -> Self {
        let policies = demand.policies();
        let mut response = problem::refused(demand.set(), &policies, refusal);
        if settings.advertise != Advertise::Never {
            let fields = Fields {
                policy: policies.policy(),
                standing: policies.standing(demand.set(), refusal.verdicts(), false),
            };
            fields.append_to(response.headers_mut());
        }
        Self::Answered(response)
    }

    fn not_decided(demand: &Demand, error: Error, settings: Settings) -> Self {
        // Nothing is wrong but with the request, which must not get past the limit where errors do.
        let Error::NeverAdmissible { limit, .. } = error else {
            return Self::failed(error, settings);
        };
        let policies = demand.policies();
        let mut response = problem::quota_exceeded(demand.set(), &policies, &[&limit]);
        if settings.advertise != Advertise::Never {
            let fields = Fields {
                policy: policies.policy(),
                standing: None,
            };
            fields.append_to(response.headers_mut());
        }
        Self::Answered(response)
    }

    pub(super) fn failed(error: Error, settings: Settings) -> Self {
        // Clients say what their key is. Where errors admit, a bad one must not be a way past the limits.
        if matches!(error, Error::KeyRequired { .. } | Error::InvalidKey { .. }) {
            let mut response = problem::without_a_key();
            response.extensions_mut().insert(Arc::new(error));
            return Self::Answered(response);
        }
        #[cfg(feature = "tracing")]
        tracing::error!(%error, "the limits of a request could not be asked");
        let error = Arc::new(error);
        match settings.on_error {
            OnError::Admit => Self::Admitted(Admission {
                error: Some(error),
                ..Admission::default()
            }),
            OnError::Refuse => {
                let mut response = problem::failed();
                response.extensions_mut().insert(error);
                Self::Answered(response)
            }
        }
    }

    /// The same, as whoever asked understands it.
    pub(super) fn told_to(self, caller: Caller) -> Self {
        match (self, caller) {
            (Self::Answered(response), Caller::Grpc) => Self::Answered(problem::as_grpc(response)),
            (decision, _) => decision,
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
        settings: Settings,
    ) -> Self {
        if settings.advertise != Advertise::Always {
            return Self::default();
        }
        let policies = demand.policies();
        Self {
            policy: policies.policy(),
            standing: policies.standing(demand.set(), verdicts, true),
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
