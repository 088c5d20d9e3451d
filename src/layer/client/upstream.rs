//! What all clients share: taking the limits before a request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::not_sent::NotSent;
use super::outgoing_permit::OutgoingPermit;
use super::retry_after::throttled_by;
use crate::error::{Error, RequestError};
use crate::layer::callback::{Callback, FailureRule, ThrottleRule};
use crate::layer::extract::demand::Demand;
use crate::layer::extract::extract_error::ExtractError;
use crate::layer::held::Held;
use crate::layer::permit_handle::SharedPermit;
use crate::layer::settings::OnError;

/// What is decided once, when a client is built.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) wait: Option<Duration>,
    pub(super) on_error: OnError,
    pub(super) throttled_by: Callback<ThrottleRule>,
    pub(super) is_failure: Callback<FailureRule>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            wait: None,
            on_error: OnError::default(),
            throttled_by: Callback(Arc::new(throttled_by)),
            is_failure: Callback(Arc::new(|status| status.is_server_error())),
        }
    }
}

impl Settings {
    /// Takes what a request demands, waiting for it if allowed.
    pub(super) async fn take(
        self,
        demand: Result<Option<Demand>, ExtractError>,
    ) -> Result<OutgoingPermit, NotSent> {
        let held = match self.try_take(demand).await {
            Err(NotSent::Failed(error)) if self.admits(&error) => {
                #[cfg(feature = "tracing")]
                tracing::error!(%error, "the limits of an outgoing request could not be asked");
                None
            }
            taken => taken?,
        };
        Ok(OutgoingPermit::new(held, self.throttled_by))
    }

    /// Whether the request may pass despite the error. An invalid request may not.
    fn admits(&self, error: &Error) -> bool {
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

    async fn try_take(
        &self,
        demand: Result<Option<Demand>, ExtractError>,
    ) -> Result<Option<SharedPermit>, NotSent> {
        let Some(demand) = demand? else {
            return Ok(None);
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

    async fn ask(&self, demand: &Demand, wait: Option<Duration>) -> Result<Option<SharedPermit>, NotSent> {
        let request = demand.request();
        if demand.is_by_network() {
            // Networks have no queues and hold nothing.
            return match request.check()?.into_result() {
                Ok(()) => Ok(None),
                Err(refusal) => Err(NotSent::Refused(refusal)),
            };
        }
        let outcome = match wait.or_else(|| demand.wait_for_store()) {
            None => request.try_acquire()?,
            Some(longest) => request.acquire_async(longest).await?,
        };
        match outcome.into_result() {
            Ok(permit) => {
                let held = Held::new(permit.into_owned(), self.is_failure.clone());
                Ok(Some(SharedPermit::new(held)))
            }
            Err(refusal) => Err(NotSent::Refused(refusal)),
        }
    }
}
