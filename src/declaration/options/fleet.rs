//! The declared store of a segment's fleet.

use serde::{Deserialize, Serialize};

use crate::error::DeclarationError;

/// The `[fleet]` of a [`Declaration`](crate::Declaration): the store that hosts share, and the name of this host
/// there.
///
/// The user and the password are not part of it: a declaration is stored in the segment, where other processes read it.
/// The client takes them from its environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FleetOptions {
    pub(crate) url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<String>,
}

/// The URL schemes of a store.
const SCHEMES: [&str; 8] = [
    "redis",
    "rediss",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
    "valkey",
    "valkeys",
];
const MAX_URL_BYTES: usize = 1024;
const MAX_HOST_BYTES: usize = 64;

impl FleetOptions {
    /// The URL of the store, without a user or password.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The declared name of this host for people to read. By default it is the host's own name.
    pub fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// Validates the options. No message repeats the URL, which may contain a password by mistake.
    pub(crate) fn check(&self) -> Result<(), DeclarationError> {
        let wrong = |problem: String| DeclarationError::FleetUrl {
            place: "fleet / url".to_owned(),
            problem,
        };
        let Some((scheme, rest)) = self.url.split_once("://") else {
            return Err(wrong(
                "has no scheme: write one such as \"redis://10.0.0.5:6379/0\"".to_owned(),
            ));
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        if authority.contains('@') || rest.contains('@') {
            return Err(wrong(
                "contains `@`, so it may hold a user or a password, which a declaration must not: it is stored in the \
                 segment. Remove them and set SHMLIMIT_FLEET_USERNAME, and SHMLIMIT_FLEET_PASSWORD or \
                 SHMLIMIT_FLEET_PASSWORD_FILE"
                    .to_owned(),
            ));
        }
        if !SCHEMES.contains(&scheme) {
            return Err(wrong(format!(
                "has a scheme that is not known: write one of {}",
                SCHEMES.join(", ")
            )));
        }
        // Anything else there may be a secret, and a declaration is stored in the segment.
        let query = rest.split_once('?').map(|(_, query)| query);
        let is_known = |pair: &str| ["protocol=resp2", "protocol=resp3", "sentinel_auth=yes"].contains(&pair);
        if rest.contains('#') || query.is_some_and(|query| !query.split('&').all(is_known)) {
            return Err(wrong(
                "has something behind its path that is not known: only protocol=resp2, protocol=resp3 and \
                 sentinel_auth=yes can follow a question mark. A declaration must not hold a user or a password, because it \
                 is stored in the segment: set SHMLIMIT_FLEET_USERNAME, and SHMLIMIT_FLEET_PASSWORD or \
                 SHMLIMIT_FLEET_PASSWORD_FILE"
                    .to_owned(),
            ));
        }
        if authority.is_empty() {
            return Err(wrong(
                "names no host: write one such as \"redis://10.0.0.5:6379/0\"".to_owned(),
            ));
        }
        if self.url.len() > MAX_URL_BYTES
            || self
                .url
                .chars()
                .any(|char| char.is_control() || char.is_whitespace())
        {
            return Err(wrong(format!(
                "is not a URL: write at most {MAX_URL_BYTES} bytes without spaces and control characters"
            )));
        }
        match &self.host {
            Some(host)
                if host.is_empty() || host.len() > MAX_HOST_BYTES || host.chars().any(char::is_control) =>
            {
                Err(DeclarationError::Name {
                    place: "fleet / host".to_owned(),
                    given: host.clone(),
                    rule: "write 1 to 64 bytes without control characters",
                })
            }
            _ => Ok(()),
        }
    }
}
