//! Code of the program that panics, wherever the middleware calls or drops it: no place stays taken, and no request queued.

use http::request::Parts;
use http::{Extensions, StatusCode};
use reqwest_middleware::{ClientBuilder, reqwest};
use shmlimit::layer::{ClientLimitLayer, Demand};
use shmlimit::{Limit, Permit, SetDeclaration};
use shmlimit_reqwest_middleware::LimitMiddleware;
use tokio::runtime;

use crate::scene::expect_permit;
use crate::scene::process::TIMEOUT;
use crate::scene::touchy::{Observed, Touchy, users_code, with_each_panic};
use crate::upstream::Upstream;
use crate::url;

/// What a request meets, and whether it may wait.
const MEETS: [(&str, bool, bool); 4] = [
    ("the place is free", false, false),
    ("the place is taken", true, false),
    ("the place is free, and it may wait", false, true),
    ("it waits for the place", true, true),
];

#[test]
fn a_program_that_panics_around_the_middleware_leaves_nothing_taken() {
    for (meets, is_taken, may_wait) in MEETS {
        let place = || Observed::of(SetDeclaration::new("set").add_limit(Limit::concurrency("places", 1)));
        let panics = with_each_panic(
            place,
            |place| {
                let mut permit = is_taken.then(|| take(place));
                let freeing = async {
                    while may_wait && permit.is_some() {
                        if place.taken().1 == 1 {
                            permit = None;
                        }
                        tokio::task::yield_now().await;
                    }
                };
                let runtime = runtime::Builder::new_current_thread().enable_all().build();
                runtime.expect("a runtime").block_on(async {
                    tokio::join!(ask(place, may_wait), freeing);
                });
            },
            |place, calls| {
                assert_eq!(place.taken(), (0, 0), "{meets}, call {calls}");
                drop(take(place));
            },
        );
        assert!(panics > 2, "{meets}: {panics}");
    }
}

fn take(place: &Observed) -> Permit<'_> {
    expect_permit(place.set.request().try_acquire())
}

/// Asks an upstream once, by way of functions of the program, and reads what it answers.
async fn ask(place: &Observed, may_wait: bool) {
    let demand = Demand::new(place.set.request()).expect("no cost is needed");
    let [extracts, fails, throttles] = [Touchy, Touchy, Touchy];
    let mut layer = ClientLimitLayer::new(move |_: &Parts| {
        let _ = &extracts;
        users_code();
        Ok(Some(demand.clone()))
    })
    .fails_with(move |status: StatusCode| {
        let _ = &fails;
        users_code();
        status.is_server_error()
    })
    .throttled_by(move |_, _| {
        let _ = &throttles;
        users_code();
        None
    });
    if may_wait {
        layer = layer.wait(TIMEOUT);
    }
    let upstream = Upstream::answering([(200, &[])]).await;
    // Whatever proxies the environment names: it is this upstream that is meant.
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let client = ClientBuilder::new(client)
        .with(LimitMiddleware::new(layer))
        .build();
    let mut extensions = Extensions::new();
    extensions.insert(Touchy);
    let asked = client.get(url(&upstream)).build().expect("a request");
    if let Ok(answer) = client.execute_with_extensions(asked, &mut extensions).await {
        let _ = answer.text().await;
    }
}
