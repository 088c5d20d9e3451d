//! One worker: serves HTTP on the shared listening socket, and asks the shared limits before it works.

use std::cell::Cell;
use std::net::TcpListener;
use std::process;
use std::rc::Rc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, http};
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::time::{ClockId, clock_gettime};
use serde_json::json;
use shmlimit::{LimitSet, Outcome, Refusal};
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::{JoinSet, LocalSet};
use tokio::{runtime, select, time};

use crate::Failure;
use crate::fields;
use crate::rules::Rules;

/// The process that answered.
pub const SERVER_WORKER: &str = "server-worker";

/// When the worker asked the limits, when it was admitted, and when the work was done: nanoseconds of the host's
/// monotonic clock. The client holds the limits against these.
pub const WORK_CLOCK: &str = "work-clock";

type Answer = Result<Response<Full<Bytes>>, Failure>;

struct Worker {
    set: LimitSet,
    rules: Rules,
    policy: String,
    work: Duration,
    admitted: Cell<u64>,
}

/// Serves until SIGTERM. Runs in a forked child, and the runtime is made here, after the fork.
pub fn serve(listener: TcpListener, set: LimitSet, rules: Rules, work: Duration) -> Result<(), Failure> {
    let worker = Rc::new(Worker {
        set,
        policy: fields::policy(&rules),
        rules,
        work,
        admitted: Cell::new(0),
    });
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, accept_connections(listener, worker))
}

async fn accept_connections(listener: TcpListener, worker: Rc<Worker>) -> Result<(), Failure> {
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
                    connections.spawn_local(serve_connection(stream, Rc::clone(&worker), ending.clone()));
                }
                // Out of descriptors, for instance: what is waiting in the socket waits a little longer.
                Err(_) => time::sleep(Duration::from_millis(10)).await,
            }
        }
    }
    // What is being worked on is finished; nothing new is begun.
    drop(end);
    while connections.join_next().await.is_some() {}
    Ok(())
}

async fn serve_connection(stream: TcpStream, worker: Rc<Worker>, mut ending: watch::Receiver<()>) {
    let answer = service_fn(move |_: Request<Incoming>| {
        let worker = Rc::clone(&worker);
        async move { worker.answer().await }
    });
    let mut server = http1::Builder::new();
    let connection = server
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), answer);
    let mut connection = std::pin::pin!(connection);
    // An error is a client that went away, which is the client's own affair.
    select! {
        _ = &mut connection => {}
        _ = ending.changed() => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

impl Worker {
    /// The point of it all: the permit is held for as long as the request is worked on.
    ///
    /// When the client hangs up, this future is dropped, and the permit with it. When the process is killed, the
    /// other processes take back what it held.
    async fn answer(&self) -> Answer {
        let asked = nanos()?;
        let permit = match self.set.try_acquire(&self.set.request()) {
            Ok(Outcome::Admitted(permit)) => permit,
            Ok(Outcome::Refused(refusal)) => return self.refuse(&refusal),
            Err(error) => return self.fail(&error),
        };
        let admitted = nanos()?;

        time::sleep(self.next_work()).await;

        let done = nanos()?;
        let standing = fields::standing(&self.rules, permit.verdicts(), true);
        drop(permit);
        let response = self
            .response(StatusCode::OK, &standing)
            .header(WORK_CLOCK, format!("{asked} {admitted} {done}"))
            .header(CONTENT_TYPE, "text/plain")
            .body(Full::from("done\n"))?;
        Ok(response)
    }

    fn refuse(&self, refusal: &Refusal<'_>) -> Answer {
        // The one that bound first, then whatever else would have refused.
        let others = refusal
            .verdicts()
            .filter(|verdict| !verdict.admitted)
            .map(|verdict| verdict.limit);
        let mut violated: Vec<&str> = refusal.binding().into_iter().collect();
        violated.extend(others.filter(|other| Some(*other) != refusal.binding()));
        let problem = json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "violated-policies": violated,
        });
        let standing = fields::standing(&self.rules, refusal.verdicts(), false);
        let response = self
            .response(StatusCode::TOO_MANY_REQUESTS, &standing)
            .header(RETRY_AFTER, fields::retry_after(refusal))
            .header(CONTENT_TYPE, "application/problem+json")
            .body(Full::from(format!("{problem}\n")))?;
        Ok(response)
    }

    fn fail(&self, error: &shmlimit::Error) -> Answer {
        let response = self
            .response(StatusCode::INTERNAL_SERVER_ERROR, "")
            .header(CONTENT_TYPE, "text/plain")
            .body(Full::from(format!("{error}\n")))?;
        Ok(response)
    }

    fn response(&self, status: StatusCode, standing: &str) -> http::response::Builder {
        let fields = [
            ("ratelimit-policy", self.policy.as_str()),
            ("ratelimit", standing),
        ];
        let response = Response::builder()
            .status(status)
            .header(SERVER_WORKER, process::id());
        // Neither field may be empty, and unlimited limits have nothing to say.
        let present = fields.into_iter().filter(|(_, value)| !value.is_empty());
        present.fold(response, |response, (name, value)| response.header(name, value))
    }

    /// Between half and one and a half of the average, so that requests do not march in step.
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
