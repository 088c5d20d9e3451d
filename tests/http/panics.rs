//! Code of the program that panics, wherever the layers call or drop it: no place stays taken, and no request stays
//! queued.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame};
use hyper::http::request::Parts;
use hyper::{Request, Response, StatusCode};
use shmlimit::layer::{ClientAddress, ClientLimitLayer, Demand, ExtractError, LimitLayer};
use shmlimit::{Keyed, Limit, SetDeclaration};
use tokio::runtime;
use tower::{Layer, Service, ServiceExt};

use crate::scene::expect_permit;
use crate::scene::process::TIMEOUT;
use crate::scene::touchy::{Observed, Touchy, users_code, with_each_panic};
use crate::server::wait_until;

fn place() -> Observed {
    Observed::of(SetDeclaration::new("set").add_limit(Limit::concurrency("places", 1)))
}

/// Extracts the demand with code of the program.
fn extractor(
    place: &Observed,
) -> impl Fn(&Parts) -> Result<Option<Demand>, ExtractError> + Send + Sync + 'static {
    let demand = Demand::new(place.set.request()).expect("no cost is needed");
    let touchy = Touchy;
    move |_| {
        let _ = &touchy;
        users_code();
        Ok(Some(demand.clone()))
    }
}

/// A closure of the program that also owns something of the program.
fn closure<A, B>(answer: impl Fn(A) -> B + Send + Sync + 'static) -> impl Fn(A) -> B + Send + Sync + 'static {
    let touchy = Touchy;
    move |argument| {
        let _ = &touchy;
        users_code();
        answer(argument)
    }
}

/// Checks that whatever panics in the body, nothing is left taken or queued, and another request is admitted.
#[track_caller]
fn leaves_nothing(case: &str, body: impl FnMut(&Observed)) {
    let panics = with_each_panic(place, body, |place, calls| {
        assert_eq!(place.taken(), (0, 0), "{case}, call {calls}");
        drop(expect_permit(place.set.request().try_acquire()));
    });
    assert!(panics > 2, "{case}: {panics}");
}

/// What a request finds, whether the place is taken, and whether the request may wait.
const MEETS: [(&str, bool, bool); 4] = [
    ("the place is free", false, false),
    ("the place is taken", true, false),
    ("the place is free, and it may wait", false, true),
    ("it waits for the place", true, true),
];

/// Does the work. If the place is taken, it is freed once the work waits for it, if that may wait.
fn run<T>(place: &Observed, is_taken: bool, may_wait: bool, work: impl Future<Output = T>) -> T {
    let mut permit = is_taken.then(|| expect_permit(place.set.request().try_acquire()));
    let freeing = async {
        if may_wait && permit.is_some() {
            wait_until("it waits", || place.taken().1 == 1).await;
            permit = None;
        }
    };
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let (done, ()) = runtime
        .expect("a runtime")
        .block_on(async { tokio::join!(work, freeing) });
    done
}

/// A service of the program.
#[derive(Clone)]
struct Program {
    status: StatusCode,
    _touchy: Touchy,
}

impl Service<Request<Touchy>> for Program {
    type Response = Response<Parted>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Response<Parted>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        users_code();
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Touchy>) -> Self::Future {
        users_code();
        let (status, touchy) = (self.status, Touchy);
        Box::pin(async move {
            let _until_the_end = (request, touchy);
            users_code();
            tokio::task::yield_now().await;
            users_code();
            if status == StatusCode::INTERNAL_SERVER_ERROR {
                return Err(io::Error::other("the program failed"));
            }
            let mut response = Response::new(Parted {
                left: 2,
                _touchy: Touchy,
            });
            *response.status_mut() = status;
            Ok(response)
        })
    }
}

/// A body of the program, in several parts.
struct Parted {
    left: u8,
    _touchy: Touchy,
}

impl Body for Parted {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        users_code();
        let frame = self.left.checked_sub(1).map(|left| {
            self.left = left;
            Ok(Frame::data(Bytes::from_static(b"part")))
        });
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        users_code();
        self.left == 0
    }
}

fn request() -> Request<Touchy> {
    let mut request = Request::new(Touchy);
    request.extensions_mut().insert(Touchy);
    request
}

fn program(status: StatusCode) -> Program {
    Program {
        status,
        _touchy: Touchy,
    }
}

/// Puts a layer around a service. Of the layer's closures, only what the service holds is kept.
fn put_around<S, L: Layer<S>>(layer: L, service: S) -> L::Service {
    layer.layer(service)
}

/// Asks a service once, and reads its answer.
async fn ask<S, B>(service: S)
where
    S: Service<Request<Touchy>, Response = Response<B>>,
    B: Body,
{
    if let Ok(answer) = service.oneshot(request()).await {
        let _ = answer.into_body().collect().await;
    }
}

const STATUSES: [StatusCode; 3] = [
    StatusCode::OK,
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::INTERNAL_SERVER_ERROR,
];

#[test]
fn a_program_that_panics_under_the_layer_leaves_nothing_taken() {
    for (meets, is_taken, may_wait) in MEETS {
        for status in STATUSES {
            leaves_nothing(&format!("{meets}, {status}"), |place| {
                let [unused, shaped] = [Touchy, Touchy];
                let mut layer = LimitLayer::new(extractor(place))
                    .fails_with(closure(|status: StatusCode| status.is_server_error()))
                    .refund_when(move |head| {
                        let _ = &unused;
                        users_code();
                        head.status == StatusCode::TOO_MANY_REQUESTS
                    })
                    .on_rejection(move |_, _, response| {
                        let _ = &shaped;
                        users_code();
                        response
                    });
                if may_wait {
                    layer = layer.wait(TIMEOUT);
                }
                run(place, is_taken, may_wait, ask(put_around(layer, program(status))));
            });
        }
    }
}

#[test]
fn a_client_that_panics_under_the_layer_leaves_nothing_taken() {
    for (meets, is_taken, may_wait) in MEETS {
        for status in STATUSES {
            leaves_nothing(&format!("{meets}, {status}"), |place| {
                let throttles = Touchy;
                let mut layer = ClientLimitLayer::new(extractor(place))
                    .fails_with(closure(|status: StatusCode| status.is_server_error()))
                    .throttled_by(move |status, _| {
                        let _ = &throttles;
                        users_code();
                        (status == StatusCode::TOO_MANY_REQUESTS).then_some(Duration::ZERO)
                    });
                if may_wait {
                    layer = layer.wait(TIMEOUT);
                }
                run(place, is_taken, may_wait, ask(put_around(layer, program(status))));
            });
        }
    }
}

#[test]
fn a_program_that_panics_where_it_finds_an_address_or_answers_leaves_nothing_taken() {
    let set = || {
        let set = SetDeclaration::new("set").keyed(Keyed::new(10));
        Observed::of(set.add_limit(Limit::concurrency("places", 1)))
    };
    let by_address = with_each_panic(
        set,
        |place| {
            let find = Touchy;
            let peer = ClientAddress::peer(move |_| {
                let _ = &find;
                users_code();
                Some([127, 0, 0, 1].into())
            });
            let demand = Demand::new(place.set.request()).and_then(|demand| demand.by_address(peer));
            let layer = LimitLayer::new(demand.expect("keyed"));
            run(place, false, false, ask(layer.layer(program(StatusCode::OK))));
        },
        |place, calls| assert_eq!(place.taken(), (0, 0), "call {calls}"),
    );
    assert!(by_address > 2, "{by_address}");
    leaves_nothing("the extractor answers", |place| {
        let answers = Touchy;
        let layer = LimitLayer::new(move |_: &Parts| {
            let _ = &answers;
            users_code();
            let mut response = Response::new("not you".to_owned());
            response.extensions_mut().insert(Touchy);
            Err(response.into())
        });
        run(place, false, false, ask(layer.layer(program(StatusCode::OK))));
    });
}
