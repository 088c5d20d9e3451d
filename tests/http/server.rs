//! A service behind limits, the server that serves it, and its clients.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde_json::Value;
use shmlimit::declare::Kind;
use shmlimit::layer::{Demand, Extractor, LimitBody, LimitLayer};
use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tower::{Layer, ServiceExt, service_fn};

use crate::scene::process::TIMEOUT;

pub const MINUTE: Duration = Duration::from_secs(60);

/// A segment with one set, `api`, in a temporary directory.
pub struct Limits {
    pub segment: Segment,
    _directory: tempfile::TempDir,
}

impl Limits {
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Self {
        let set = SetDeclaration::new("api");
        Self::declared(limits.into_iter().fold(set, SetDeclaration::add_limit))
    }

    pub fn declared(set: SetDeclaration) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("limits");
        Self {
            segment: Segment::create(path, &Declaration::new().add_set(set)).expect("a segment"),
            _directory: directory,
        }
    }

    /// Demands one of everything, but nothing of rate limits yet.
    pub fn demand(&self) -> Demand {
        let set = self.segment.set("api").expect("declared");
        let rates = set
            .declared_limits()
            .iter()
            .filter(|limit| limit.kind() == Kind::Rate);
        let request = rates.fold(set.request(), |request, rate| {
            request.with(rate.name(), 0).expect("declared")
        });
        Demand::new(request).expect("each rate has a cost")
    }

    pub fn layer(&self) -> LimitLayer<Demand> {
        LimitLayer::new(self.demand())
    }

    /// How many permits hold something.
    pub fn held(&self) -> usize {
        let snapshot = self.segment.snapshot().expect("readable");
        snapshot.sets[0].holds.len()
    }

    pub async fn wait_until_held(&self, expected: usize) {
        wait_until("the number of holds", || self.held() == expected).await;
    }
}

/// Lets everything else run until the condition is met.
pub async fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The writing end of a body that a service answers with: dropping it ends the body.
pub type BodySender = UnboundedSender<Result<Frame<Bytes>, Broken>>;

/// A body that arrives as it is written.
pub struct WrittenBody(UnboundedReceiver<Result<Frame<Bytes>, Broken>>);

/// The error with which a service's body fails.
#[derive(Debug, thiserror::Error)]
#[error("broken")]
pub struct Broken;

impl WrittenBody {
    pub fn new() -> (BodySender, Self) {
        let (sender, receiver) = unbounded_channel();
        (sender, Self(receiver))
    }
}

impl Body for WrittenBody {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        self.0.poll_recv(context)
    }
}

/// A server whose service answers with bodies that the test writes.
pub struct Server {
    pub address: SocketAddr,
    bodies: Arc<Mutex<Vec<BodySender>>>,
    accepting: JoinHandle<()>,
}

impl Server {
    pub async fn start<E>(layer: LimitLayer<E>) -> Self
    where
        E: Extractor + Send + Sync + 'static,
    {
        let bodies: Arc<Mutex<Vec<BodySender>>> = Arc::default();
        let opened = Arc::clone(&bodies);
        let service = layer.layer(service_fn(move |_: Request<Incoming>| {
            let (sender, body) = WrittenBody::new();
            opened.lock().expect("not poisoned").push(sender);
            async { Ok::<_, Infallible>(Response::new(body)) }
        }));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = TowerToHyperService::new(service.clone());
                let connection = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    .serve_connection(TokioIo::new(stream), service);
                tokio::spawn(connection);
            }
        });
        Self {
            address,
            bodies,
            accepting,
        }
    }

    /// The writing end of the oldest body that is not being written yet.
    pub async fn body(&self) -> BodySender {
        let mut body = None;
        wait_until("the service is called", || {
            let mut bodies = self.bodies.lock().expect("not poisoned");
            if !bodies.is_empty() {
                body = Some(bodies.remove(0));
            }
            body.is_some()
        })
        .await;
        body.expect("waited for")
    }

    /// How many bodies are waiting to be written.
    pub fn unwritten(&self) -> usize {
        self.bodies.lock().expect("not poisoned").len()
    }

    pub async fn client(&self) -> Client {
        client_of(self.address).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

pub async fn client_of(address: SocketAddr) -> Client {
    let stream = TcpStream::connect(address).await.expect("it listens");
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
    Client {
        sender,
        connection: tokio::spawn(async {
            let _ = connection.await;
        }),
    }
}

/// A client with one connection. When it is dropped, the client is gone.
pub struct Client {
    sender: http1::SendRequest<Empty<Bytes>>,
    connection: JoinHandle<()>,
}

impl Client {
    pub async fn get(&mut self, path: &str) -> Response<Incoming> {
        self.get_with(path, &[]).await
    }

    pub async fn get_with(&mut self, path: &str, headers: &[(&str, &str)]) -> Response<Incoming> {
        let request = headers.iter().fold(
            Request::get(path).header("host", "test"),
            |request, (name, value)| request.header(*name, *value),
        );
        let request = request.body(Empty::new()).expect("a request");
        self.sender.send_request(request).await.expect("an answer")
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// After how many seconds, according to the answer, it is worth trying again.
#[track_caller]
pub fn retry_after<B>(answer: &Response<B>) -> u64 {
    let seconds = answer.headers()["retry-after"].to_str().expect("ASCII");
    seconds.parse().expect("a number of seconds")
}

/// The problem that a response reports.
pub async fn problem<B>(response: Response<B>) -> Value
where
    B: Body,
    B::Error: std::fmt::Debug,
{
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let body = response.into_body().collect().await.expect("a body");
    serde_json::from_slice(&body.to_bytes()).expect("JSON")
}

/// What the layer answers to one request if the service answers `done`.
pub async fn answer<E: Extractor>(layer: &LimitLayer<E>, path: &str) -> Response<LimitBody<Full<Bytes>>> {
    let request = Request::get(path).body(()).expect("a request");
    answer_to(layer, request).await
}

pub async fn answer_to<E: Extractor>(
    layer: &LimitLayer<E>,
    request: Request<()>,
) -> Response<LimitBody<Full<Bytes>>> {
    let service = layer.layer(service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("done")))
    }));
    let Ok(response) = service.oneshot(request).await;
    response
}
