#![doc = include_str!("../README.md")]

use http::request::Parts;
use http::{Extensions, Uri};
use reqwest::{Body, Request, Response, ResponseBuilderExt, Url};
use reqwest_middleware::{Error, Middleware, Next, Result};
use shmlimit::layer::{ClientLimitLayer, Extractor, NotSent};

/// A [`ClientLimitLayer`] as a middleware of `reqwest`. The page of the crate shows it.
///
/// Extractors see the extensions of the middleware. Clones share the limits, as all processes do.
#[derive(Clone, Debug)]
#[must_use]
pub struct LimitMiddleware<E> {
    limits: ClientLimitLayer<E>,
}

impl<E: Extractor> LimitMiddleware<E> {
    /// A middleware that asks these limits.
    pub fn new(limits: ClientLimitLayer<E>) -> Self {
        Self { limits }
    }
}

#[async_trait::async_trait]
impl<E> Middleware for LimitMiddleware<E>
where
    E: Extractor + Send + Sync + 'static,
{
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        // The copies of the extensions are dropped here, and not by the compiler at the end of this block: a panic would
        // then leave the permit in the response without an owner.
        let taken = self.limits.take(&head_of(&request, extensions)?);
        let permit = match taken.await {
            Ok(permit) => permit,
            Err(NotSent::Answered(response)) => return at(request.url().clone(), response.map(Body::from)),
            Err(NotSent::Refused(refusal)) => return Err(Error::middleware(refusal)),
            Err(NotSent::Failed(error)) => return Err(Error::middleware(error)),
            Err(not_sent) => return Err(Error::middleware(not_sent)),
        };
        permit.announce(extensions);
        match next.run(request, extensions).await {
            Ok(response) => {
                // That of the last request: it may have been redirected.
                let url = response.url().clone();
                let response = permit.answered(http::Response::<Body>::from(response));
                at(url, response.map(Body::wrap))
            }
            Err(error) => {
                match &error {
                    // The error itself hides what the middleware has failed with.
                    Error::Middleware(error) => permit.failed(error.as_ref()),
                    Error::Reqwest(error) => permit.failed(error),
                }
                Err(error)
            }
        }
    }
}

/// The response with its URL, which a response that is built from parts lacks.
fn at(url: Url, response: http::Response<Body>) -> Result<Response> {
    let (head, body) = response.into_parts();
    let response = http::Response::builder().url(url).body(body);
    let mut response = response.map_err(Error::middleware)?;
    *response.status_mut() = head.status;
    *response.version_mut() = head.version;
    *response.headers_mut() = head.headers;
    response.extensions_mut().extend(head.extensions);
    Ok(response.into())
}

/// The head of a request, for extractors.
fn head_of(request: &Request, extensions: &Extensions) -> Result<Parts> {
    let uri: Uri = request
        .url()
        .as_str()
        .parse()
        .map_err(Error::middleware::<http::uri::InvalidUri>)?;
    let (mut head, ()) = http::Request::new(()).into_parts();
    head.method = request.method().clone();
    head.uri = uri;
    head.headers = request.headers().clone();
    head.extensions = extensions.clone();
    Ok(head)
}
