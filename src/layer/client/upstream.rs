//! What all clients share: taking the limits before a request, and reporting how it went.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Extensions, HeaderMap, Response, StatusCode};

use super::retry_after::throttled_by;
use crate::api::refusal::Refusal;
use crate::error::{Error, RequestError};
use crate::layer::answer::grpc::{Code, end_call};
use crate::layer::extract::demand::{Asked, Demand};
use crate::layer::held::Held;
use crate::layer::permit_handle::SharedPermit;
use crate::layer::refused_inside::carries_refusal;
use crate::layer::settings::OnError;

/// What is decided once, when a client is built.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) wait: Option<Duration>,
    pub(super) on_error: OnError,
    pub(super) throttled_by: fn(StatusCode, &HeaderMap) -> Option<Duration>,
    pub(super) is_failure: fn(StatusCode) -> bool,
}

/// Why a request is not sent.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotSent {
    #[error("the request was not sent: {0}")]
    Refused(Refusal),
    #[error("the request was not sent: {0}")]
    Failed(Error),
}

/// What a request that is sent holds, if anything.
#[derive(Debug, Default)]
pub(super) struct Sent {
    held: Option<SharedPermit>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            wait: None,
            on_error: OnError::default(),
            throttled_by,
            is_failure: |status| status.is_server_error(),
        }
    }
}

impl Settings {
    /// Takes what a request demands, waiting for it if allowed.
    pub(super) async fn take(self, demand: Result<Option<Demand>, Error>) -> Result<Sent, NotSent> {
        match self.try_take(demand).await {
            Err(NotSent::Failed(error)) if self.admits(&error) => {
                #[cfg(feature = "tracing")]
                tracing::error!(%error, "the limits of an outgoing request could not be asked");
                Ok(Sent::default())
            }
            taken => taken,
        }
    }

    /// Whether the request may pass despite the error. An invalid request may not.
    fn admits(self, error: &Error) -> bool {
        let is_of_request = matches!(
            error,
            Error::Request(
                RequestError::NeverAdmissible { .. }
                    | RequestError::KeyRequired { .. }
                    | RequestError::InvalidKey { .. }
            )
        );
        self.on_error == OnError::Admit && !is_of_request
    }

    async fn try_take(self, demand: Result<Option<Demand>, Error>) -> Result<Sent, NotSent> {
        let Some(demand) = demand? else {
            return Ok(Sent::default());
        };
        let began = Instant::now();
        let error = match self.ask(&demand, self.wait).await {
            Err(NotSent::Failed(error)) => error,
            taken => return taken,
        };
        match demand.after(&error) {
            Some(demand) => {
                // Waits in the queue of the successor, for the time that is left.
                let left = self.wait.map(|longest| longest.saturating_sub(began.elapsed()));
                self.ask(&demand?, left).await
            }
            None => Err(NotSent::Failed(error)),
        }
    }

    async fn ask(self, demand: &Demand, wait: Option<Duration>) -> Result<Sent, NotSent> {
        let outcome = match demand.asked()? {
            // Requests by network hold nothing and do not wait.
            Asked::Networks(address) => {
                let checked = address.check(demand.request())?;
                return match checked.into_result() {
                    Ok(()) => Ok(Sent::default()),
                    Err(refusal) => Err(NotSent::Refused(refusal)),
                };
            }
            Asked::Subject(subject) => match wait {
                None => subject.try_acquire(demand.request())?,
                Some(longest) => subject.acquire_async(demand.request(), Some(longest)).await?,
            },
        };
        match outcome.into_result() {
            Ok(permit) => Ok(Sent {
                held: Some(SharedPermit::new(Held::new(permit.into_owned(), self.is_failure))),
            }),
            Err(refusal) => Err(NotSent::Refused(refusal)),
        }
    }
}

impl Sent {
    /// Puts a handle of the permit into the extensions, where layers and callers find it.
    pub(super) fn announce(&self, extensions: &mut Extensions) {
        if let Some(held) = &self.held {
            held.announce(extensions);
        }
    }

    /// Reports the upstream's response to the limits. Returns what is held until the end of the body.
    pub(super) fn answered(
        self,
        status: StatusCode,
        headers: &HeaderMap,
        extensions: &Extensions,
        settings: Settings,
    ) -> Option<SharedPermit> {
        let held = self.held?;
        if carries_refusal(extensions) {
            // By a client further in: nothing was sent.
            held.abandon();
            return None;
        }
        let Some(wait) = (settings.throttled_by)(status, headers) else {
            held.note_status(status);
            return Some(held);
        };
        if let Err(_error) = held.throttled(wait) {
            held.note_failure();
            #[cfg(feature = "tracing")]
            tracing::warn!(
                error = %_error,
                "the limits are not throttled although the upstream asks for it, and go on admitting: see `error`"
            );
        }
        None
    }

    /// Records that there was no response. If a client further in refused the request, nothing was sent, and all that
    /// it took comes back.
    pub(super) fn failed(self, is_refusal: bool) {
        match &self.held {
            Some(held) if is_refusal => held.abandon(),
            Some(held) => held.note_failure(),
            None => {}
        }
    }
}

impl NotSent {
    /// What a client of gRPC is answered in place of the upstream. The reason is in the extensions.
    pub(super) fn into_grpc(self) -> Response<()> {
        let (code, retry_after) = match &self {
            Self::Refused(refusal) => (Code::ResourceExhausted, refusal.retry_after()),
            Self::Failed(Error::Request(RequestError::NeverAdmissible { .. })) => {
                (Code::ResourceExhausted, None)
            }
            Self::Failed(Error::Request(_)) => (Code::InvalidArgument, None),
            Self::Failed(_) => (Code::Internal, None),
        };
        let mut response = Response::new(());
        end_call(response.headers_mut(), code, &self.to_string(), retry_after);
        match self {
            Self::Refused(refusal) => response.extensions_mut().insert(refusal).map(drop),
            Self::Failed(error) => response.extensions_mut().insert(Arc::new(error)).map(drop),
        };
        response
    }
}

impl From<Error> for NotSent {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}
