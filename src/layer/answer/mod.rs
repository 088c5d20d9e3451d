//! Answers in place of the service, and how the application can shape them.

pub(super) mod grpc;
pub(super) mod response;
mod retry_info;

use std::fmt;
use std::sync::Arc;

use http::Response;
use http::request::Parts;

use crate::api::refusal::Refusal;
use crate::error::Error;
use crate::headers::Problem;
use grpc::{Caller, as_grpc};

/// Why a request did not reach the service, as passed to [`on_rejection`](super::LimitLayer::on_rejection).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Rejection<'a> {
    /// The limits refused it: 429, or 503 if no limit would have refused.
    Refused(&'a Refusal),
    /// The limits could not be asked: 400 if the request does not name exactly one key, 429 if it takes more than a
    /// limit can ever admit ([`RequestError::NeverAdmissible`](crate::RequestError::NeverAdmissible)), 500 otherwise.
    Failed(&'a Error),
}

/// Shapes an answer in place of the service.
pub(in crate::layer) type Shape =
    dyn Fn(&Parts, Rejection<'_>, Response<String>) -> Response<String> + Send + Sync;

/// An answer in place of the service.
#[derive(Debug)]
pub(in crate::layer) enum Answer {
    /// The answer of the layer, which the application may shape.
    OfLayer { problem: Problem, why: Why },
    /// The answer of the application's extractor, as it is.
    OfExtractor(Box<Response<String>>),
}

#[derive(Debug)]
pub(in crate::layer) enum Why {
    Refused(Refusal),
    Failed(Arc<Error>),
}

impl Answer {
    pub(in crate::layer) fn refused(problem: Problem, refusal: Refusal) -> Self {
        let why = Why::Refused(refusal);
        Self::OfLayer { problem, why }
    }

    pub(in crate::layer) fn failed(problem: Problem, error: Arc<Error>) -> Self {
        let why = Why::Failed(error);
        Self::OfLayer { problem, why }
    }

    /// The response to a request, in the form that its sender understands and the application wants. The reason is in
    /// its extensions, for the layers around this one.
    pub(in crate::layer) fn into_response(self, head: &Parts, shape: Option<&Shape>) -> Response<String> {
        let (problem, why) = match self {
            Self::OfLayer { problem, why } => (problem, why),
            Self::OfExtractor(response) => return *response,
        };
        let mut response = response::of_problem(problem);
        if Caller::of(head) == Caller::Grpc {
            response = as_grpc(response);
        }
        if let Some(shape) = shape {
            let why = match &why {
                Why::Refused(refusal) => Rejection::Refused(refusal),
                Why::Failed(error) => Rejection::Failed(error),
            };
            response = shape(head, why, response);
        }
        match why {
            Why::Refused(refusal) => {
                response.extensions_mut().insert(refusal);
            }
            Why::Failed(error) => {
                response.extensions_mut().insert(error);
            }
        }
        response
    }
}

impl fmt::Display for Rejection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Failed(error) => error.fmt(f),
        }
    }
}
