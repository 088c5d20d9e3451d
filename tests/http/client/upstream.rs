//! An upstream that answers as a test tells it to, and the limits of its clients.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use shmlimit::layer::{ClientLimitLayer, Demand};
use shmlimit::{Declaration, LimitSet, OpenOptions, Removal, Segment, SetDeclaration};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub const MINUTE: Duration = Duration::from_secs(60);
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// A status, and fields to go with it.
pub type Answer = (u16, &'static [(&'static str, &'static str)]);

pub struct Limits {
    pub segment: Segment,
    _directory: tempfile::TempDir,
}

impl Limits {
    pub fn new(set: SetDeclaration) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("limits");
        Self {
            segment: Segment::create(path, &Declaration::new().add_set(set)).expect("a segment"),
            _directory: directory,
        }
    }

    /// Removes the segment, and puts another at its path.
    pub fn replace(&mut self, set: SetDeclaration) {
        let path = self.segment.path().to_owned();
        OpenOptions::new()
            .remove(&path, Removal::Forced)
            .expect("removed");
        self.segment = Segment::create(path, &Declaration::new().add_set(set)).expect("a segment");
    }

    pub fn set(&self) -> LimitSet {
        self.segment.set("provider").expect("declared")
    }

    pub fn layer(&self) -> ClientLimitLayer<Demand> {
        ClientLimitLayer::new(Demand::new(self.set().request()).expect("no cost is needed"))
    }

    pub fn held(&self) -> usize {
        self.segment.snapshot().expect("readable").sets[0].holds.len()
    }

    pub fn is_throttled(&self) -> bool {
        !self.segment.snapshot().expect("readable").sets[0]
            .throttled_for
            .is_zero()
    }
}

/// A server that gives these answers in turn, and then repeats the last of them.
pub struct Upstream {
    pub address: SocketAddr,
    asked: Arc<Mutex<usize>>,
    accepting: JoinHandle<()>,
}

impl Upstream {
    pub async fn answering<const COUNT: usize>(answers: [Answer; COUNT]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let asked: Arc<Mutex<usize>> = Arc::default();
        let count = Arc::clone(&asked);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let count = Arc::clone(&count);
                let service = hyper::service::service_fn(move |_: Request<Incoming>| {
                    let answer = next(&count, &answers);
                    async move { Ok::<_, Infallible>(answer) }
                });
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        Self {
            address,
            asked,
            accepting,
        }
    }

    /// How many requests have come.
    pub fn asked(&self) -> usize {
        *self.asked.lock().expect("no panic")
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

fn next(count: &Mutex<usize>, answers: &[Answer]) -> Response<Full<Bytes>> {
    let mut count = count.lock().expect("no panic");
    let (status, fields) = answers[(*count).min(answers.len() - 1)];
    *count += 1;
    let head = Response::builder().status(status);
    let head = fields
        .iter()
        .fold(head, |head, (name, value)| head.header(*name, *value));
    head.body(Full::from("answered")).expect("a response")
}
