//! What becomes of a request.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Response};

use super::body::LimitBody;
use super::demand::Demand;
use super::held::Held;
use super::layer::{Advertise, OnError, Settings};
use super::problem;
use crate::error::Error;
use crate::permit::Outcome;

/// Whether the service is called.
pub(super) enum Decision {
    Admitted(Admission),
    /// What is answered without the service.
    Answered(Response<String>),
}

/// What a response of the service is given.
#[derive(Debug, Default)]
pub(super) struct Admission {
    held: Option<Held>,
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
    pub(super) fn new(demand: &Demand, outcome: Result<Outcome<'_>, Error>, settings: Settings) -> Self {
        // After the decision, by which this process hears of limits that have changed.
        let policies = demand.policies();
        match outcome {
            Ok(Outcome::Admitted(permit)) => {
                let mut fields = Fields::default();
                if settings.advertise == Advertise::Always {
                    fields.policy = policies.policy();
                    fields.standing = policies.standing(demand.set(), permit.verdicts(), true);
                }
                Self::Admitted(Admission {
                    held: Some(Held::new(permit.into_owned(), settings)),
                    fields,
                    error: None,
                })
            }
            Ok(Outcome::Refused(refusal)) => {
                let mut response = problem::refused(demand.set(), &policies, &refusal);
                if settings.advertise != Advertise::Never {
                    let fields = Fields {
                        policy: policies.policy(),
                        standing: policies.standing(demand.set(), refusal.verdicts(), false),
                    };
                    fields.append_to(response.headers_mut());
                }
                Self::Answered(response)
            }
            // Nothing is wrong but with the request, which must not get past the limit where errors do.
            Err(Error::NeverAdmissible { limit, .. }) => {
                let mut response = problem::quota_exceeded(demand.set(), &policies, &[&limit]);
                if settings.advertise != Advertise::Never {
                    let policy = policies.policy();
                    let fields = Fields {
                        policy,
                        standing: None,
                    };
                    fields.append_to(response.headers_mut());
                }
                Self::Answered(response)
            }
            Err(error) => Self::failed(error, settings),
        }
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

    /// For requests that are not limited.
    pub(super) fn unlimited() -> Self {
        Self::Admitted(Admission::default())
    }
}

impl Admission {
    /// The service's response, under the permit and with what clients are told.
    pub(super) fn complete<B>(mut self, response: Response<B>) -> Response<LimitBody<B>> {
        if let Some(held) = &mut self.held {
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
    pub(super) fn fail(mut self) {
        if let Some(held) = &mut self.held {
            held.note_failure();
        }
    }
}

impl Fields {
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
