//! How long the permit is held.

use std::convert::Infallible;
use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{HeaderValue, UPGRADE};
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use shmlimit::Limit;
use shmlimit::declare::Adaptive;
use shmlimit::layer::Permits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::server::{BodySender, Broken, Client, Limits, Server, WrittenBody, answer};

fn one_at_a_time() -> Limits {
    Limits::new([Limit::concurrency("in_flight", 1)])
}

#[tokio::test]
async fn a_place_is_held_until_the_body_has_ended_not_until_the_head_is_sent() {
    let limits = one_at_a_time();
    let server = Server::start(limits.layer()).await;
    let mut downloading = server.client().await;
    let mut other = server.client().await;

    let mut download = downloading.get("/").await;
    assert_eq!(download.status(), 200);
    let body = server.body().await;
    for part in ["first", "second"] {
        body.send(Ok(Frame::data(part.into()))).expect("it is being read");
        let frame = download.body_mut().frame().await.expect("more").expect("a frame");
        assert_eq!(frame.into_data().expect("data"), part);
        assert_eq!(limits.held(), 1);
        assert_eq!(other.get("/").await.status(), 429);
    }
    drop(body);
    assert!(download.body_mut().frame().await.is_none());
    limits.wait_until_held(0).await;
    assert_eq!(other.get("/").await.status(), 200);
}

/// A client that has received the head of an answer, and the writer of its body.
async fn answering(server: &Server) -> (Client, Response<Incoming>, BodySender) {
    let mut client = server.client().await;
    let response = client.get("/").await;
    (client, response, server.body().await)
}

#[tokio::test]
async fn a_client_that_leaves_during_the_body_gives_its_place_back() {
    let limits = one_at_a_time();
    let server = Server::start(limits.layer()).await;
    let (client, response, body) = answering(&server).await;
    assert_eq!(limits.held(), 1);
    drop((client, response));
    // A server notices it when it writes, or when there is nothing more to read.
    crate::server::wait_until("the client's absence is noticed", || {
        let _ = body.send(Ok(Frame::data(vec![0; 1 << 10].into())));
        limits.held() == 0
    })
    .await;
}

#[tokio::test]
async fn a_caller_that_leaves_before_the_head_gives_its_place_back() {
    let limits = one_at_a_time();
    let service = limits.layer().layer(service_fn(async |_: Request<()>| {
        pending::<Result<Response<Full<Bytes>>, Infallible>>().await
    }));
    {
        let mut call = pin!(service.oneshot(Request::new(())));
        let answered = poll_fn(|context| Poll::Ready(call.as_mut().poll(context).is_ready())).await;
        assert!(!answered);
        assert_eq!(limits.held(), 1);
    }
    assert_eq!(limits.held(), 0);
}

#[tokio::test]
async fn a_body_that_fails_gives_its_place_back() {
    let limits = one_at_a_time();
    let server = Server::start(limits.layer()).await;
    let (_client, response, body) = answering(&server).await;
    assert_eq!(limits.held(), 1);
    body.send(Err(Broken)).expect("it is being read");
    response.into_body().collect().await.expect_err("cut off");
    limits.wait_until_held(0).await;
}

#[tokio::test]
async fn a_service_that_fails_gives_its_place_back_and_its_error_is_passed_on() {
    let limits = one_at_a_time();
    let service = service_fn(async |_: Request<()>| Err::<Response<Full<Bytes>>, _>(Broken));
    let mut service = limits.layer().layer(service);
    let mut call = pin!(service.call(Request::new(())));
    let Broken = call.as_mut().await.expect_err("it fails");
    // The future still exists, but nothing that it took is held any more.
    assert_eq!(limits.held(), 0);
}

/// What happens to the response of a service.
#[derive(Clone, Copy)]
enum End {
    Answered(StatusCode),
    BrokenOff,
    NoAnswer,
}

#[tokio::test]
async fn work_that_fails_is_told_to_an_adaptive_limit() {
    for (end, is_told, is_told_of_503_only) in [
        (End::Answered(StatusCode::OK), 0, 0),
        (End::Answered(StatusCode::NOT_FOUND), 0, 0),
        (End::Answered(StatusCode::INTERNAL_SERVER_ERROR), 1, 0),
        (End::Answered(StatusCode::SERVICE_UNAVAILABLE), 1, 1),
        (End::BrokenOff, 1, 1),
        (End::NoAnswer, 1, 1),
    ] {
        let limit = Limit::concurrency("in_flight", 4)
            .adaptive(Adaptive::Aimd)
            .ceiling(8);
        let limits = Limits::new([limit]);
        let only_503 = limits
            .layer()
            .fails_with(|status| status == StatusCode::SERVICE_UNAVAILABLE);
        let mut told = 0;
        for (layer, expected) in [(limits.layer(), is_told), (only_503, is_told_of_503_only)] {
            let service = layer.layer(service_fn(async |_: Request<()>| {
                let (sender, body) = WrittenBody::new();
                match end {
                    End::Answered(status) => {
                        sender.send(Ok(Frame::data("done".into()))).expect("open");
                        let mut response = Response::new(body);
                        *response.status_mut() = status;
                        Ok(response)
                    }
                    End::BrokenOff => {
                        sender.send(Err(Broken)).expect("open");
                        Ok(Response::new(body))
                    }
                    End::NoAnswer => Err(Broken),
                }
            }));
            if let Ok(response) = service.oneshot(Request::new(())).await {
                assert_eq!(limits.held(), 1);
                let _ = response.into_body().collect().await;
            }
            assert_eq!(limits.held(), 0);
            told += expected;
            let snapshot = limits.segment.snapshot().expect("readable");
            assert_eq!(snapshot.sets[0].limits[0].counts.failed, told);
        }
    }
}

#[tokio::test]
async fn frames_trailers_and_sizes_pass_through() {
    let limits = one_at_a_time();
    let done = answer(&limits.layer(), "/").await.into_body();
    assert_eq!(done.size_hint().exact(), Some(4));
    assert!(!done.is_end_stream());
    assert_eq!(done.collect().await.expect("a body").to_bytes(), "done");

    let (sender, body) = WrittenBody::new();
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().expect("a value"));
    sender.send(Ok(Frame::data("data".into()))).expect("open");
    sender.send(Ok(Frame::trailers(trailers.clone()))).expect("open");
    drop(sender);
    let body = Arc::new(Mutex::new(Some(body)));
    let service = service_fn(move |_: Request<()>| {
        let body = body.lock().expect("not poisoned").take();
        async { Ok::<_, Infallible>(Response::new(body.expect("called once"))) }
    });
    let service = limits.layer().layer(service);
    let Ok(response) = service.oneshot(Request::new(())).await;
    assert_eq!(limits.held(), 1);
    let collected = response.into_body().collect().await.expect("a body");
    assert_eq!(collected.trailers(), Some(&trailers));
    assert_eq!(collected.to_bytes(), "data");
    assert_eq!(limits.held(), 0);
}

#[tokio::test]
async fn an_upgraded_connection_holds_its_place_until_the_service_lets_go_of_it() {
    let limits = one_at_a_time();
    let service = limits
        .layer()
        .layer(service_fn(async |request: Request<Incoming>| {
            let permits = request.extensions().get::<Permits>().expect("it is limited");
            let carried = permits.of("api").expect("it holds a place").carry();
            tokio::spawn(async {
                let upgraded = hyper::upgrade::on(request).await.expect("an upgrade");
                let mut upgraded = TokioIo::new(upgraded);
                let mut asked = [0; 4];
                upgraded.read_exact(&mut asked).await.expect("a question");
                upgraded.write_all(&asked).await.expect("an echo");
                drop(carried);
            });
            let mut response = Response::new(Full::<Bytes>::default());
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            response
                .headers_mut()
                .insert(UPGRADE, HeaderValue::from_static("echo"));
            Ok::<_, Infallible>(response)
        }));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let serving = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("a client");
        let connection = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
            .with_upgrades();
        connection.await
    });

    let mut client = TcpStream::connect(address).await.expect("it listens");
    let request = b"GET / HTTP/1.1\r\nHost: test\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
    client.write_all(request).await.expect("sent");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.expect("a head"));
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "));
    assert_eq!(limits.held(), 1);
    client.write_all(b"ping").await.expect("sent");
    let mut echo = [0; 4];
    client.read_exact(&mut echo).await.expect("an echo");
    assert_eq!(&echo, b"ping");
    serving.await.expect("it does not panic").expect("it ends well");
    limits.wait_until_held(0).await;
}
