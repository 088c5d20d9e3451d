//! Accepts connections: a limited number at a time, each for one request, none for long.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::Semaphore;

use super::answers::answer;
use super::view::Segments;

/// The most connections at a time. Further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 64;
/// The longest request head. A request only needs to say where it goes.
const MAX_HEADER_BYTES: usize = 16 * 1024;
/// The longest life of a connection, whatever the client does.
const MAX_TIME: Duration = Duration::from_secs(20);

/// Answers requests forever.
///
/// # Errors
///
/// Fails if the system lacks the resources that a server needs.
pub fn serve(listener: TcpListener, segments: Arc<Segments>) -> io::Result<()> {
    let is_local = listener.local_addr()?.ip().is_loopback();
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let free = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            // The semaphore is never closed.
            let Ok(place) = Arc::clone(&free).acquire_owned().await else {
                return Ok(());
            };
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) if is_of_one_connection(&error) => continue,
                Err(error) => return Err(error),
            };
            let segments = Arc::clone(&segments);
            let service = service_fn(move |request| {
                let response = answer(&segments, is_local, &request);
                async { Ok::<_, Infallible>(response) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .keep_alive(false)
                .max_buf_size(MAX_HEADER_BYTES)
                .serve_connection(TokioIo::new(stream), service);
            tokio::spawn(async move {
                // A client that hangs up or is too slow gets no answer.
                let _ = tokio::time::timeout(MAX_TIME, connection).await;
                drop(place);
            });
        }
    })
}

/// Whether an error of `accept` only concerns the connection that would have been accepted.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}
