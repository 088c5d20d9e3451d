//! One worker: serves HTTP on the shared listening socket, behind the shared limits.

use std::cell::Cell;
use std::net::TcpListener;
use std::process;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderName};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use nix::time::{ClockId, clock_gettime};
use shmlimit::LimitSet;
use shmlimit::layer::{Demand, LimitBody, LimitLayer};
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::{JoinSet, LocalSet};
use tokio::{runtime, select, time};
use tower::{ServiceBuilder, service_fn};

use crate::Failure;

/// The header that names the client: each key has its own limits, and requests without a key share theirs.
pub const CLIENT_KEY: &str = "x-api-key";

/// The header that names the process that answered.
pub const SERVER_WORKER: &str = "server-worker";

/// The header that says when the worker asked the limits, when the request was admitted, and when the work was done, in
/// nanoseconds of the host's monotonic clock. The client checks the limits by these.
pub const WORK_CLOCK: &str = "work-clock";

/// When the worker asked the limits for a request.
#[derive(Clone, Copy)]
struct Asked(u64);

struct Worker {
    work: Duration,
    admitted: Cell<u64>,
}

/// Serves until SIGTERM. Runs in a forked child, so the runtime is made here, after the fork.
pub fn serve(
    listener: TcpListener,
    everyone: &LimitSet,
    each_key: Option<&LimitSet>,
    wait: Option<Duration>,
    work: Duration,
) -> Result<(), Failure> {
    let everyone = Demand::new(everyone.request())?;
    let each_key = each_key.map(|set| Demand::new(set.request())).transpose()?;
    let mut limits = LimitLayer::new(move |head: &Parts| {
        Ok(Some(match (&each_key, head.headers.get(CLIENT_KEY)) {
            (Some(each_key), Some(key)) => each_key.clone().key(key)?,
            _ => everyone.clone(),
        }))
    });
    if let Some(longest) = wait {
        limits = limits.wait(longest);
    }
    let worker = Rc::new(Worker {
        work,
        admitted: Cell::new(0),
    });
    // The point of it all: whatever is inside the layer runs only while it holds a permit.
    //
    // When the client hangs up, the permit is given back. When the process is killed, the other processes take back
    // what it held.
    let service = ServiceBuilder::new()
        .map_request(|mut request: Request<Incoming>| {
            if let Ok(now) = nanos() {
                request.extensions_mut().insert(Asked(now));
            }
            request
        })
        .map_response(|mut response: Response<LimitBody<Full<Bytes>>>| {
            if let Some(error) = response.extensions().get::<Arc<shmlimit::Error>>() {
                eprintln!("worker {}: {error}", process::id());
            }
            let name = HeaderName::from_static(SERVER_WORKER);
            response.headers_mut().insert(name, process::id().into());
            response
        })
        .layer(limits)
        .service(service_fn(move |request| {
            let worker = Rc::clone(&worker);
            async move { worker.answer(request).await }
        }));
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(
        &runtime,
        accept_connections(listener, TowerToHyperService::new(service)),
    )
}

async fn accept_connections<S>(listener: TcpListener, service: S) -> Result<(), Failure>
where
    S: Service<Request<Incoming>, Response = Response<LimitBody<Full<Bytes>>>, Error = Failure>
        + Clone
        + 'static,
{
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut terminate = signal(SignalKind::terminate())?;
    let (end, ending) = watch::channel(());
    let mut connections = JoinSet::new();
    loop {
        select! {
            _ = terminate.recv() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn_local(serve_connection(stream, service.clone(), ending.clone()));
                }
                // The process may be out of descriptors. Connections in the socket's queue wait a little longer.
                Err(_) => time::sleep(Duration::from_millis(10)).await,
            }
        }
    }
    // Finish the requests that are being worked on, and begin no new ones.
    drop(end);
    while connections.join_next().await.is_some() {}
    Ok(())
}

async fn serve_connection<S>(stream: TcpStream, service: S, mut ending: watch::Receiver<()>)
where
    S: Service<Request<Incoming>, Response = Response<LimitBody<Full<Bytes>>>, Error = Failure>,
{
    let mut server = http1::Builder::new();
    let connection = server
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    // An error means that the client has gone away, which is no concern of the server.
    select! {
        _ = &mut connection => {}
        _ = ending.changed() => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

impl Worker {
    /// Works on a request that was admitted.
    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Failure> {
        let Asked(asked) = request
            .extensions()
            .get()
            .copied()
            .ok_or("the request does not say when it was made")?;
        let admitted = nanos()?;
        time::sleep(self.next_work()).await;
        let done = nanos()?;
        let response = Response::builder()
            .header(WORK_CLOCK, format!("{asked} {admitted} {done}"))
            .header(CONTENT_TYPE, "text/plain")
            .body(Full::from("done\n"))?;
        Ok(response)
    }

    /// Returns between half and one and a half times the average, so that requests do not run in step.
    fn next_work(&self) -> Duration {
        let number = self.admitted.get();
        self.admitted.set(number + 1);
        let percent = 50 + (number * 37 + u64::from(process::id()) * 13) % 101;
        self.work * u32::try_from(percent).unwrap_or(100) / 100
    }
}

fn nanos() -> Result<u64, Failure> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(u64::try_from(Duration::from(now).as_nanos())?)
}
