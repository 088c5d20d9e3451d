//! The layer in an axum application, as in the example of that name: networks by the peer's address, tenants by a
//! header, tokens settled by a handler.

use std::net::SocketAddr;

use axum::extract::ConnectInfo;
use axum::routing::get;
use axum::{Extension, Router};
use hyper::header::HeaderName;
use shmlimit::layer::{ClientAddress, Demand, LimitLayer, Permits};
use shmlimit::{Declaration, Segment};
use tokio::net::TcpListener;

use crate::server::client_of;

#[tokio::test]
async fn the_gateway_of_the_example_limits_tenants_and_settles_what_they_used() {
    let directory = tempfile::tempdir().expect("a directory");
    let declaration = Declaration::from_toml(include_str!("../../../examples/axum_gateway.toml"));
    let declaration = declaration.expect("the example's is valid");
    let segment = Segment::create(directory.path().join("limits"), &declaration).expect("a segment");
    let [visitors, tenants] = ["visitors", "tenants"].map(|set| segment.set(set).expect("declared"));
    let of_tenants = segment.set("tenants").expect("declared");
    let peer = ClientAddress::peer(|head| Some(head.extensions.get::<ConnectInfo<SocketAddr>>()?.ip()));
    let visitors = Demand::new(visitors.request()).expect("calls need no cost");
    let tokens = tenants.request().with("tokens", 1_500).expect("declared");
    let tenants = Demand::new(tokens).expect("it has a cost");
    let by_key = tenants.by_header(HeaderName::from_static("x-api-key"));
    let app = Router::new()
        .route(
            "/frugal",
            get(async |Extension(permits): Extension<Permits>| {
                let permit = permits.of("tenants").ok_or("they hold something")?;
                permit.settle([("tokens", 1)]).map_err(|error| error.to_string())
            }),
        )
        .route("/greedy", get(async || "done"))
        .layer(LimitLayer::new(by_key.expect("keyed")))
        .layer(LimitLayer::new(visitors.by_address(peer).expect("keyed")));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    let serving = tokio::spawn(async move { axum::serve(listener, service).await });

    let mut client = client_of(address).await;
    for (path, tenant, status) in [
        ("/frugal", "acme", 200),
        ("/frugal", "acme", 200), // there would not be enough for a second of 1,500
        ("/greedy", "acme", 200),
        ("/greedy", "acme", 429),
        ("/greedy", "globex", 200),
    ] {
        let answer = client.get_with(path, &[("x-api-key", tenant)]).await;
        assert_eq!(answer.status(), status, "{path} of {tenant}");
        let told = answer.headers().get_all("ratelimit").iter().count();
        assert!(told >= 1, "the network's limit is told");
    }
    assert_eq!(client.get("/greedy").await.status(), 400);

    // Others hold all places at the model: the tenant is refused, learns nothing about them, and is charged nothing.
    let request = of_tenants.request().with("tokens", 1).expect("declared");
    let held: Vec<_> = (0..64)
        .map(|tenant| {
            let request = request.for_key(format!("tenant {tenant}")).expect("keyed");
            request.try_permit().expect("there is room").into_owned()
        })
        .collect();
    let refused = client.get_with("/greedy", &[("x-api-key", "initech")]).await;
    assert_eq!(refused.status(), 429);
    let fields = format!("{:?}", refused.headers());
    assert!(!fields.contains("at_the_model"), "{fields}");
    let own = request.for_key("initech").expect("keyed").peek().expect("works");
    let tokens = own
        .iter()
        .find(|verdict| verdict.limit == "tokens")
        .expect("declared");
    assert_eq!(tokens.remaining, tokens.burst);
    drop(held);
    assert_eq!(
        client
            .get_with("/greedy", &[("x-api-key", "initech")])
            .await
            .status(),
        200
    );
    serving.abort();
}
