//! `limitctl serve`.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use crate::arguments::interval;
use crate::exit::{ExitCode, Failure};
use crate::output;
use crate::reveal::Reveal;
use crate::web::{self, Segments};

/// Show segments live in a browser
///
/// Serves a page with sets, limits, rates, queues, holders and hottest keys at /, the same as JSON under /api, and figures
/// for Prometheus at /metrics. It can change nothing. Maps the files read-only and takes no lock, so nobody waits for it,
/// and permission to read them is enough. There is no authentication: anyone who can reach the address sees labels, and
/// what is shown of keys. By default, only this host can reach it.
#[derive(Args, Debug)]
pub struct Serve {
    /// How long to wait between two looks, such as 500ms or 5s
    ///
    /// Rates are averages over this time. A bare number counts seconds. Figures for Prometheus are taken when they are
    /// asked for.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    every: Duration,

    /// How many of the hottest keys of each keyed set to show
    ///
    /// To find them, every key of the set is looked at, which takes some milliseconds for each hundred thousand. With 0,
    /// no key is looked at.
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    keys: usize,

    #[command(flatten)]
    reveal: Reveal,

    /// Where to listen: a port of this host, or ADDRESS:PORT
    ///
    /// A port alone means 127.0.0.1. With port 0, the system chooses one, which is printed.
    #[arg(value_name = "ADDR", value_parser = address)]
    address: SocketAddr,

    /// The segments
    ///
    /// Files that `limitctl create` or programs made, or will make. Symbolic links are not followed.
    #[arg(required = true)]
    segments: Vec<PathBuf>,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let port = text.strip_prefix(':').unwrap_or(text);
    if let Ok(port) = port.parse() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    if text.contains('/') {
        return Err("the port is named first, as in `limitctl serve 9464 SEGMENT`".to_owned());
    }
    let mut found = text.to_socket_addrs().map_err(|error| error.to_string())?;
    found.next().ok_or_else(|| "no address has this name".to_owned())
}

impl Serve {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let failed = |error| Failure::of_system(&error, format!("cannot listen at {}", self.address));
        let listener = TcpListener::bind(self.address).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let paths: BTreeSet<PathBuf> = self.segments.into_iter().collect();
        let segments = Arc::new(Segments::new(paths.into_iter().collect()));
        web::keep_looking(Arc::clone(&segments), self.every, self.keys, self.reveal);
        output::print(&format!("serving http://{bound}/\n"))?;
        web::serve(listener, segments).map_err(|error| Failure::of_system(&error, "cannot serve"))?;
        Ok(ExitCode::DONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_of_this_host() {
        for (text, expected) in [
            ("9464", "127.0.0.1:9464"),
            (":9464", "127.0.0.1:9464"),
            ("0.0.0.0:80", "0.0.0.0:80"),
            ("[::1]:80", "[::1]:80"),
        ] {
            assert_eq!(address(text), Ok(expected.parse().expect("an address")), "{text}");
        }
        for text in ["", "65536", "host", "127.0.0.1", "::1"] {
            assert!(address(text).is_err(), "{text}");
        }
    }
}
