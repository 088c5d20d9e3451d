//! The layer as a middleware of `reqwest`.

use http::request::Parts;
use http::{Extensions, Uri};
use reqwest::{Body, Request, Response, ResponseBuilderExt};
use reqwest_middleware::{Error as MiddlewareError, Middleware, Next, Result};

use super::client_layer::ClientLimitLayer;
use super::upstream::NotSent;
use crate::layer::body::LimitBody;
use crate::layer::extract::demand::Extractor;
use crate::layer::permit_handle::SharedPermit;
use crate::layer::refused_inside::{is_refusal, refuses};

/// Available with the feature `reqwest-middleware`. A request that is not sent fails with
/// `reqwest_middleware::Error::Middleware`, which contains a [`Refusal`](crate::Refusal) or an
/// [`Error`](crate::Error). The extensions of the request are those of the middleware.
///
/// ```no_run
/// use reqwest_middleware::{ClientBuilder, Error, reqwest};
/// use shmlimit::Refusal;
/// use shmlimit::layer::{ClientLimitLayer, Demand};
/// # use shmlimit::Segment;
///
/// # async fn ask(segment: Segment) -> Result<(), Box<dyn std::error::Error>> {
/// let every_request = Demand::new(segment.set("provider")?.request())?;
/// let client = ClientBuilder::new(reqwest::Client::new()).with(ClientLimitLayer::new(every_request)).build();
/// match client.get("http://localhost/").send().await {
///     Ok(response) => println!("{}", response.status()),
///     Err(Error::Middleware(error)) if error.is::<Refusal>() => println!("not sent: {error}"),
///     Err(error) => println!("{error}"),
/// }
/// # Ok(())
/// # }
/// ```
#[async_trait::async_trait]
impl<E> Middleware for ClientLimitLayer<E>
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
        let demand = self.extractor.extract(&head_of(&request, extensions)?);
        let sent = match self.settings.take(demand).await {
            Ok(sent) => sent,
            Err(NotSent::Refused(refusal)) => return Err(MiddlewareError::middleware(refusal)),
            Err(NotSent::Failed(error)) => return Err(MiddlewareError::middleware(error)),
        };
        sent.announce(extensions);
        match next.run(request, extensions).await {
            Ok(mut response) => {
                sent.announce(response.extensions_mut());
                let Some(held) = sent.answered(
                    response.status(),
                    response.headers(),
                    response.extensions(),
                    self.settings,
                ) else {
                    return Ok(response);
                };
                with_permit(response, held)
            }
            Err(error) => {
                let is_refusal = match &error {
                    MiddlewareError::Middleware(error) => error.chain().any(refuses),
                    MiddlewareError::Reqwest(error) => is_refusal(error),
                };
                sent.failed(is_refusal);
                Err(error)
            }
        }
    }
}

/// The response, with a body that holds the permit until it has ended.
fn with_permit(response: Response, held: SharedPermit) -> Result<Response> {
    let url = response.url().clone();
    let (head, body) = http::Response::from(response).into_parts();
    let body = Body::wrap(LimitBody::new(body, Some(held)));
    // A response built from parts would lack the URL.
    let response = http::Response::builder().url(url).body(body);
    let mut response = response.map_err(MiddlewareError::middleware)?;
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
        .map_err(MiddlewareError::middleware::<http::uri::InvalidUri>)?;
    let (mut head, ()) = http::Request::new(()).into_parts();
    head.method = request.method().clone();
    head.uri = uri;
    head.headers = request.headers().clone();
    head.extensions = extensions.clone();
    Ok(head)
}
