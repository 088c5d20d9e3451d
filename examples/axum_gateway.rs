//! A gateway in front of a model that is paid for by the token. It limits each network of visitors, each tenant, and
//! all tenants together, across all serving processes. Tenants wait for their turn instead of being refused. Try it:
//!
//! ```sh
//! cargo run --example axum_gateway &
//! curl -i -H 'x-api-key: acme' -d 'How many legs has a millipede?' http://127.0.0.1:8080/chat
//! limitctl show /dev/shm/axum_gateway.limits tenants acme
//! ```

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::http::{HeaderName, StatusCode};
use axum::routing::post;
use axum::{Extension, Router};
use shmlimit::layer::{ClientAddress, Demand, LimitLayer, Permits};
use shmlimit::{Declaration, Segment};

#[tokio::main]
async fn main() -> ExitCode {
    if let Err(error) = run().await {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let declaration = Declaration::from_toml(include_str!("axum_gateway.toml"))?;
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let path = arguments
        .next()
        .unwrap_or_else(|| "/dev/shm/axum_gateway.limits".to_owned());
    let segment = Segment::open_or_create(path, &declaration)?;
    let peer = ClientAddress::peer(|head| Some(head.extensions.get::<ConnectInfo<SocketAddr>>()?.ip()));
    let visitors = Demand::new(segment.set("visitors")?.request())?.by_address(peer)?;
    let tenants = Demand::new(segment.set("tenants")?.request().with("tokens", 500)?)? // reserved for each prompt
        .by_header(HeaderName::from_static("x-api-key"))?;
    let app = Router::new()
        .route("/chat", post(chat))
        .layer(LimitLayer::new(tenants).wait(Duration::from_secs(30))) // those that wait get equal shares
        .layer(LimitLayer::new(visitors));
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?)
}

async fn chat(Extension(permits): Extension<Permits>, prompt: String) -> Result<String, StatusCode> {
    let used = prompt.split_whitespace().count() as u64; // a model would say what it used
    if let Some(tenant) = permits.of("tenants") {
        let settled = tenant.settle([("tokens", used)]); // the rest of what was reserved comes back
        settled.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    }
    Ok(format!("{used} tokens\n"))
}
