//! Where a request comes from.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::header::FORWARDED;
use http::request::Parts;
use http::{HeaderMap, HeaderName};

use crate::layer::callback::Callback;

/// How the address of a client is determined: from the connection, or from the headers of trusted proxies.
///
/// Anyone can send a header, so those of proxies are trusted by number. Each proxy appends the address that connected
/// to it, so with one proxy in front of the server the last entry is the client, with two the last but one. Anything
/// before that may have been made up by the client, and is ignored.
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientAddress {
    source: Source,
}

/// The address of the peer of a connection, read from the head of a request.
type FindPeer = dyn Fn(&Parts) -> Option<IpAddr> + Send + Sync;

#[derive(Clone, Debug)]
enum Source {
    Peer(Callback<FindPeer>),
    XForwardedFor { trusted_proxies: usize },
    Forwarded { trusted_proxies: usize },
}

impl ClientAddress {
    /// The peer of the connection, which `find` reads from where the server has put it. In axum:
    ///
    /// ```ignore
    /// ClientAddress::peer(|head| Some(head.extensions.get::<ConnectInfo<SocketAddr>>()?.ip()))
    /// ```
    pub fn peer<F>(find: F) -> Self
    where
        F: Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static,
    {
        Self {
            source: Source::Peer(Callback(Arc::new(find))),
        }
    }

    /// The field `X-Forwarded-For`, behind this many trusted proxies, each of which appends to it. With zero proxies
    /// nobody is trusted, and no request has an address.
    pub fn x_forwarded_for(trusted_proxies: usize) -> Self {
        Self {
            source: Source::XForwardedFor { trusted_proxies },
        }
    }

    /// The field `Forwarded` of [RFC 7239](https://www.rfc-editor.org/rfc/rfc7239), behind this many trusted proxies,
    /// each of which appends to it. With zero proxies nobody is trusted, and no request has an address.
    pub fn forwarded(trusted_proxies: usize) -> Self {
        Self {
            source: Source::Forwarded { trusted_proxies },
        }
    }

    /// The address. `None` if the connection has none, if the request did not come through that many proxies, or if a
    /// proxy does not disclose it (`unknown`, or a name that begins with an underscore).
    pub(in crate::layer) fn find(&self, head: &Parts) -> Option<IpAddr> {
        const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
        match &self.source {
            Source::Peer(find) => find(head),
            Source::XForwardedFor { trusted_proxies } => {
                let entries =
                    |line: &str| Some(line.split(',').map(|entry| entry.trim().to_owned()).collect());
                let entry = appended_by(&head.headers, &X_FORWARDED_FOR, *trusted_proxies, entries)?;
                node(&entry)
            }
            Source::Forwarded { trusted_proxies } => {
                let elements = |line: &str| split(line, ',');
                let element = appended_by(&head.headers, &FORWARDED, *trusted_proxies, elements)?;
                forwarded_for(&element)
            }
        }
    }
}

/// What the first of the trusted proxies has appended to a list, which may span several lines.
fn appended_by(
    headers: &HeaderMap,
    name: &HeaderName,
    trusted_proxies: usize,
    entries_of: impl Fn(&str) -> Option<Vec<String>>,
) -> Option<String> {
    let mut entries = Vec::new();
    for line in headers.get_all(name) {
        entries.extend(entries_of(line.to_str().ok()?)?);
    }
    let place = entries.len().checked_sub(trusted_proxies)?;
    entries.into_iter().nth(place)
}

/// The parts of a list, trimmed. Text in quotation marks is one part, whatever it contains; within it, a backslash
/// escapes the next character. `None` if a quotation does not end: otherwise a client could open one that swallows
/// what proxies append.
fn split(list: &str, separator: char) -> Option<Vec<String>> {
    let mut parts = vec![String::new()];
    let mut characters = list.chars();
    let mut is_quoted = false;
    while let Some(character) = characters.next() {
        if character == separator && !is_quoted {
            parts.push(String::new());
            continue;
        }
        let Some(part) = parts.last_mut() else { break };
        part.push(character);
        match character {
            '"' => is_quoted = !is_quoted,
            '\\' if is_quoted => part.extend(characters.next()),
            _ => {}
        }
    }
    (!is_quoted).then(|| parts.iter().map(|part| part.trim().to_owned()).collect())
}

/// The node that an element of `Forwarded` names as the client.
fn forwarded_for(element: &str) -> Option<IpAddr> {
    split(element, ';')?.iter().find_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        if !name.trim().eq_ignore_ascii_case("for") {
            return None;
        }
        let value = value.trim();
        let unquoted = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        // An address needs no backslashes, so text that contains any is not an address.
        node(unquoted.unwrap_or(value))
    })
}

/// An address with or without a port. IPv6 addresses may be in brackets, and must be if there is a port.
fn node(text: &str) -> Option<IpAddr> {
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if let Some(address) = bracketed {
        return address.parse().ok().map(IpAddr::V6);
    }
    match text.parse() {
        Ok(address) => Some(address),
        Err(_) => text.parse().ok().map(|node: SocketAddr| node.ip()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::client_address::*;

    fn found(source: ClientAddress, field: &str, lines: &[&str]) -> Option<String> {
        let request = lines.iter().fold(http::Request::get("/"), |request, line| {
            request.header(field, *line)
        });
        let (head, ()) = request.body(()).expect("a request").into_parts();
        source.find(&head).map(|address| address.to_string())
    }

    #[test]
    fn only_what_trusted_proxies_appended_is_believed() {
        let made_up_and_real = ["1.1.1.1, 2.2.2.2", " 3.3.3.3 ,4.4.4.4:80"];
        for (proxies, expected) in [
            (0, None),
            (1, Some("4.4.4.4")),
            (2, Some("3.3.3.3")),
            (3, Some("2.2.2.2")),
            (4, Some("1.1.1.1")),
            (5, None),
        ] {
            let address = found(
                ClientAddress::x_forwarded_for(proxies),
                "x-forwarded-for",
                &made_up_and_real,
            );
            assert_eq!(address.as_deref(), expected, "{proxies} proxies");
        }
    }

    #[test]
    fn what_is_no_address_is_none() {
        for entry in [
            "",
            "unknown",
            "_hidden",
            "300.1.1.1",
            "[::1",
            "::1]",
            "1.1.1.1:99999",
            "a b",
        ] {
            let lines = [entry];
            let listed = found(ClientAddress::x_forwarded_for(1), "x-forwarded-for", &lines);
            assert_eq!(listed, None, "{entry:?}");
            let element = format!("for=\"{entry}\"");
            let forwarded = found(ClientAddress::forwarded(1), "forwarded", &[&element]);
            assert_eq!(forwarded, None, "{element:?}");
        }
        assert_eq!(found(ClientAddress::forwarded(1), "forwarded", &[]), None);
    }

    #[test]
    fn no_quotation_of_a_client_swallows_what_proxies_append() {
        let joined = ["for=1.1.1.1;x=\", for=5.5.5.5"];
        assert_eq!(found(ClientAddress::forwarded(1), "forwarded", &joined), None);
        let joined = ["1.1.1.1, \", 5.5.5.5, 10.0.0.1"];
        let address = found(ClientAddress::x_forwarded_for(2), "x-forwarded-for", &joined);
        assert_eq!(address.as_deref(), Some("5.5.5.5"));
    }

    #[test]
    fn the_examples_of_rfc_7239_are_read() {
        for (element, expected) in [
            ("For=\"[2001:db8:cafe::17]:4711\"", Some("2001:db8:cafe::17")),
            ("for=192.0.2.60;proto=http;by=203.0.113.43", Some("192.0.2.60")),
            ("for=192.0.2.43, for=198.51.100.17", Some("198.51.100.17")),
            ("for=\"192.0.2.43:47011\"", Some("192.0.2.43")),
            ("by=\"a, for=1.1.1.1\";for=2.2.2.2", Some("2.2.2.2")),
            ("by=\"\\\", for=1.1.1.1\";for=2.2.2.2", Some("2.2.2.2")),
            ("proto=http", None),
        ] {
            let address = found(ClientAddress::forwarded(1), "forwarded", &[element]);
            assert_eq!(address.as_deref(), expected, "{element}");
        }
    }
}
