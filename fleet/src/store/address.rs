//! The address of the store: the URL of a declaration.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use shmlimit::debug_is_message;

const DEFAULT_PORT: u16 = 6379;
const DEFAULT_SENTINEL_PORT: u16 = 26379;

/// Why a URL is not a valid address of a store.
#[derive(Clone, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddressError {
    /// It does not have a store's scheme.
    #[error(
        "a store's URL begins with redis://, rediss:// (TLS), redis+sentinel://, rediss+sentinel://, redis+cluster:// \
         or rediss+cluster://, or valkey in place of redis"
    )]
    Scheme,
    /// It contains a user or a password.
    #[error(
        "a store's URL holds no user and no password: they come from SHMLIMIT_FLEET_USERNAME and SHMLIMIT_FLEET_PASSWORD \
         or SHMLIMIT_FLEET_PASSWORD_FILE"
    )]
    Secret,
    /// A host is missing, or a port is not a number.
    #[error("{0:?} in a store's URL is not HOST or HOST:PORT")]
    Host(String),
    /// A sentinel's URL lacks the name of the primary.
    #[error(
        "the URL of sentinels ends with the name of the primary: redis+sentinel://HOST:PORT,HOST:PORT/NAME"
    )]
    Primary,
    /// The number of the database is invalid.
    #[error("{0:?} in a store's URL is not the number of a database")]
    Database(String),
    /// An option after the question mark is unknown.
    #[error(
        "{0:?} in a store's URL: only protocol=resp2, protocol=resp3 and sentinel_auth=yes can follow the question mark"
    )]
    Option(String),
}

debug_is_message!(AddressError);

/// A server, or a sentinel that knows servers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Node {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') {
            return write!(f, "[{host}]:{port}");
        }
        write!(f, "{host}:{port}")
    }
}

/// How the servers are organized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    Single(Node),
    Sentinel { sentinels: Vec<Node>, primary: String },
    Cluster(Vec<Node>),
}

/// The address of a store.
///
/// ```
/// use shmlimit_fleet::StoreAddress;
///
/// for url in [
///     "redis://limits.internal:6379/0",
///     "rediss://limits.internal",
///     "redis+sentinel://10.0.0.1:26379,10.0.0.2/primary?sentinel_auth=yes",
///     "redis+cluster://10.0.0.1:7000,10.0.0.2:7000?protocol=resp3",
/// ] {
///     assert_eq!(url.parse::<StoreAddress>().unwrap().to_string(), url);
/// }
/// assert!("redis://user:password@limits.internal".parse::<StoreAddress>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreAddress {
    url: String,
    pub(crate) topology: Topology,
    pub(crate) is_tls: bool,
    pub(crate) database: i64,
    pub(crate) is_resp3: bool,
    pub(crate) sentinels_authenticate: bool,
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.url)
    }
}

impl FromStr for StoreAddress {
    type Err = AddressError;

    fn from_str(url: &str) -> Result<Self, AddressError> {
        let (scheme, rest) = url.split_once("://").ok_or(AddressError::Scheme)?;
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        if rest.contains('@') {
            return Err(AddressError::Secret);
        }
        let (scheme, how) = scheme.split_once('+').unwrap_or((scheme, ""));
        let is_tls = match scheme {
            "redis" | "valkey" => false,
            "rediss" | "valkeys" => true,
            _ => return Err(AddressError::Scheme),
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let mut address = Self {
            url: url.to_owned(),
            topology: Topology::Cluster(Vec::new()),
            is_tls,
            database: 0,
            is_resp3: false,
            sentinels_authenticate: false,
        };
        address.topology = match how {
            "" => {
                address.database = database(path)?;
                Topology::Single(node(hosts, DEFAULT_PORT)?)
            }
            "sentinel" => {
                let (primary, number) = path.split_once('/').unwrap_or((path, ""));
                if primary.is_empty() {
                    return Err(AddressError::Primary);
                }
                address.database = database(number)?;
                Topology::Sentinel {
                    sentinels: nodes(hosts, DEFAULT_SENTINEL_PORT)?,
                    primary: primary.to_owned(),
                }
            }
            "cluster" if path.is_empty() => Topology::Cluster(nodes(hosts, DEFAULT_PORT)?),
            "cluster" => return Err(AddressError::Database(path.to_owned())),
            _ => return Err(AddressError::Scheme),
        };
        for option in options.split('&').filter(|option| !option.is_empty()) {
            match option {
                "protocol=resp2" => address.is_resp3 = false,
                "protocol=resp3" => address.is_resp3 = true,
                "sentinel_auth=yes" => address.sentinels_authenticate = true,
                // The value may be a secret that other clients expect there.
                _ => {
                    let name = option.split('=').next().unwrap_or_default();
                    return Err(AddressError::Option(name.to_owned()));
                }
            }
        }
        Ok(address)
    }
}

fn nodes(hosts: &str, default_port: u16) -> Result<Vec<Node>, AddressError> {
    hosts.split(',').map(|host| node(host, default_port)).collect()
}

fn node(text: &str, default_port: u16) -> Result<Node, AddressError> {
    let wrong = || AddressError::Host(text.to_owned());
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) => (host, port.strip_prefix(':')),
        None => text
            .split_once(':')
            .map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map_or(Ok(default_port), |port| port.parse().map_err(|_| wrong()))?;
    if host.is_empty() {
        return Err(wrong());
    }
    Ok(Node {
        host: host.to_owned(),
        port,
    })
}

fn database(text: &str) -> Result<i64, AddressError> {
    if text.is_empty() {
        return Ok(0);
    }
    text.parse::<u32>()
        .map(i64::from)
        .map_err(|_| AddressError::Database(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_is_wrong_without_the_secret() {
        let secret = "redis://user:s3cret@host"
            .parse::<StoreAddress>()
            .expect_err("refused");
        assert_eq!(secret, AddressError::Secret);
        let option = "redis://host?password=s3cret"
            .parse::<StoreAddress>()
            .expect_err("refused");
        assert!(!option.to_string().contains("s3cret"), "{option}");
        for (url, error) in [
            ("http://host", AddressError::Scheme),
            ("redis+sentinel://host", AddressError::Primary),
            ("redis://host:port", AddressError::Host("host:port".to_owned())),
            ("redis://", AddressError::Host(String::new())),
            ("redis://host/zero", AddressError::Database("zero".to_owned())),
            ("redis+cluster://host/1", AddressError::Database("1".to_owned())),
        ] {
            assert_eq!(url.parse::<StoreAddress>(), Err(error), "{url}");
        }
    }

    #[test]
    fn reads_addresses_of_ipv6() {
        let address: StoreAddress = "redis://[::1]:7000".parse().expect("valid");
        let node = Node {
            host: "::1".to_owned(),
            port: 7000,
        };
        assert_eq!(address.topology, Topology::Single(node));
    }
}
