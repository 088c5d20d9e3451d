//! What all clients share: taking the limits before a request, and reporting how it went.

use std::time::{Duration, Instant};

use http::{Extensions, HeaderMap, StatusCode};

use super::retry_after::throttled_by;
use crate::api::refusal::Refusal;
use crate::error::{Error, RequestError};
use crate::tower::extract::demand::{Asked, Demand};
use crate::tower::held::Held;
use crate::tower::permit_handle::SharedPermit;
use crate::tower::settings::OnError;

/// What is decided once, when a client is built.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) wait: Option<Duration>,
    pub(super) on_error: OnError,
    pub(super) throttled_by: fn(StatusCode, &HeaderMap) -> Option<Duration>,
    pub(super) is_failure: fn(StatusCode) -> bool,
}

/// Why a request is not sent.
#[derive(Debug)]
pub(super) enum NotSent {
    Refused(Refusal),
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
        settings: Settings,
    ) -> Option<SharedPermit> {
        let held = self.held?;
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

    /// Records that there was no response.
    pub(super) fn failed(self) {
        if let Some(held) = &self.held {
            held.note_failure();
        }
    }
}

impl From<Error> for NotSent {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}
