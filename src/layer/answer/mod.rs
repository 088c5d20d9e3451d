//! Answers in place of the service, and how the application can shape them.

pub(super) mod grpc;
pub(super) mod response;
mod retry_info;

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
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
#[derive(Clone)]
pub(in crate::layer) struct Shape(Arc<ShapeFunction>);

type ShapeFunction = dyn Fn(&Parts, Rejection<'_>, Response<String>) -> Response<String> + Send + Sync;

// The layer keeps no state that a panic of the function could leave half changed.
impl UnwindSafe for Shape {}
impl RefUnwindSafe for Shape {}

impl Shape {
    pub(in crate::layer) fn new<F>(function: F) -> Self
    where
        F: Fn(&Parts, Rejection<'_>, Response<String>) -> Response<String> + Send + Sync + 'static,
    {
        Self(Arc::new(function))
    }
}

/// An answer in place of the service.
#[derive(Debug)]
pub(in crate::layer) struct Answer {
    problem: Problem,
    why: Why,
}

#[derive(Debug)]
enum Why {
    Refused(Refusal),
    Failed(Arc<Error>),
}

impl Answer {
    pub(in crate::layer) fn refused(problem: Problem, refusal: Refusal) -> Self {
        Self {
            problem,
            why: Why::Refused(refusal),
        }
    }

    pub(in crate::layer) fn failed(problem: Problem, error: Arc<Error>) -> Self {
        Self {
            problem,
            why: Why::Failed(error),
        }
    }

    /// The response to a request, in the form that its sender understands and the application wants. The reason is in
    /// its extensions, for the layers around this one.
    pub(in crate::layer) fn into_response(self, head: &Parts, shape: Option<&Shape>) -> Response<String> {
        let mut response = response::of_problem(self.problem);
        if Caller::of(head) == Caller::Grpc {
            response = as_grpc(response);
        }
        if let Some(shape) = shape {
            let why = match &self.why {
                Why::Refused(refusal) => Rejection::Refused(refusal),
                Why::Failed(error) => Rejection::Failed(error),
            };
            response = (shape.0)(head, why, response);
        }
        match self.why {
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
