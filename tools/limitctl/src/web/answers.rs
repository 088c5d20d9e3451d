//! The responses of the server.

use std::net::IpAddr;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderMap, HeaderValue,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};

use super::view::Segments;
use crate::live::exposition::Format;

/// The page, which gets everything that it shows from `/api`.
const PAGE: &str = include_str!("page.html");

const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
/// Prometheus' text format.
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPENMETRICS: &str = "application/openmetrics-text";
const OPENMETRICS_1: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Lets the page run only its own inline code, and talk only to this server.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Answers a request. `is_local` says that the server only serves this host.
pub fn answer<B>(segments: &Segments, is_local: bool, request: &Request<B>) -> Response<Full<Bytes>> {
    // This prevents DNS rebinding: another site may point its name at this host to read from it, but the name gives it
    // away.
    if is_local && !names_this_host(request.headers()) {
        return plain(
            StatusCode::MISDIRECTED_REQUEST,
            "this is not the host that was asked for",
        );
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refusal = plain(StatusCode::METHOD_NOT_ALLOWED, "nothing can be changed here");
        refusal
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    match request.uri().path() {
        "/" => with(StatusCode::OK, HTML, PAGE),
        "/metrics" => {
            let (format, content_type) = format_for(request.headers());
            match segments.exposition(format) {
                Some(text) => with(StatusCode::OK, content_type, text),
                None => plain(StatusCode::SERVICE_UNAVAILABLE, "no segment can be read"),
            }
        }
        "/api/segments" => json_with(StatusCode::OK, &segments.list()),
        path => {
            let index = path
                .strip_prefix("/api/segments/")
                .and_then(|index| index.parse().ok());
            match index.and_then(|index| segments.look(index)) {
                Some(Ok(look)) => json_with(StatusCode::OK, &look),
                Some(Err(error)) => json_with(StatusCode::SERVICE_UNAVAILABLE, &json!({ "error": error })),
                None => plain(StatusCode::NOT_FOUND, "there is no such page"),
            }
        }
    }
}

/// The format for metrics: OpenMetrics if the client accepts it.
fn format_for(headers: &HeaderMap) -> (Format, &'static str) {
    let mut accepted = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok());
    if accepted.any(|value| value.contains(OPENMETRICS)) {
        (Format::OpenMetrics, OPENMETRICS_1)
    } else {
        (Format::Prometheus, EXPOSITION)
    }
}

/// Whether the requested name is an address, or this host's own. A request without a name does not come from a browser.
fn names_this_host(headers: &HeaderMap) -> bool {
    let Some(name) = headers.get(HOST) else {
        return true;
    };
    let Ok(authority) = name
        .to_str()
        .unwrap_or_default()
        .parse::<hyper::http::uri::Authority>()
    else {
        return false;
    };
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok()
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    with(status, TEXT, format!("{text}\n"))
}

fn json_with(status: StatusCode, value: &Value) -> Response<Full<Bytes>> {
    with(status, JSON, value.to_string())
}

fn with(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, content_type),
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_host_are_answered() {
        let named = |name: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_str(name).expect("a value"));
            names_this_host(&headers)
        };
        for own in [
            "localhost",
            "LOCALHOST:9464",
            "127.0.0.1:9464",
            "[::1]:9464",
            "192.0.2.7",
        ] {
            assert!(named(own), "{own}");
        }
        for other in ["example.org", "localhost.example.org:9464", "", "a b"] {
            assert!(!named(other), "{other}");
        }
        assert!(names_this_host(&HeaderMap::new()));
    }
}
