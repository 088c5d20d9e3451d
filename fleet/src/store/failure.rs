//! What an error of the connection or the server means.

use std::error::Error;
use std::io;
use std::sync::Arc;

use redis::{ErrorKind, RedisError, ServerErrorKind};
use shmlimit::fleet::StoreProblem;

/// What servers say, as the code of an error or within the error of a script.
const SAID: &[(&str, StoreProblem)] = &[
    ("NOPERM", StoreProblem::NotPermitted),
    ("WRONGPASS", StoreProblem::Denied),
    ("NOAUTH", StoreProblem::Denied),
    ("OOM", StoreProblem::OutOfMemory),
    ("READONLY", StoreProblem::ReadOnly),
    ("LOADING", StoreProblem::Loading),
    ("MASTERDOWN", StoreProblem::PrimaryDown),
    ("CLUSTERDOWN", StoreProblem::ClusterDown),
    ("TRYAGAIN", StoreProblem::ClusterDown),
    ("MISCONF", StoreProblem::CannotSave),
    ("NOREPLICAS", StoreProblem::TooFewReplicas),
    ("BUSY", StoreProblem::Busy),
];

/// The same in words, in lower case, for errors that have no code of their own: those of scripts in some versions, and
/// those that the client has put into another error.
const TOLD: &[(&str, StoreProblem)] = &[
    ("no permission", StoreProblem::NotPermitted),
    ("can't run this command", StoreProblem::NotPermitted),
    ("authentication failed", StoreProblem::Denied),
    ("refused to switch database", StoreProblem::WrongDatabase),
    ("unknown command", StoreProblem::Unsupported),
    ("connection refused", StoreProblem::Refused),
    ("timed out", StoreProblem::TimedOut),
    ("resource temporarily unavailable", StoreProblem::TimedOut),
];

/// Whether a system call was interrupted. A wait with a timeout is, if the process is stopped and continued, whatever
/// is done about signals: see signal(7).
pub(super) fn is_interruption(error: &RedisError) -> bool {
    let source = error
        .source()
        .and_then(|source| source.downcast_ref::<Arc<dyn Error + Send + Sync>>());
    let of_system = source.and_then(|source| source.downcast_ref::<io::Error>());
    of_system.is_some_and(|error| error.kind() == io::ErrorKind::Interrupted)
}

/// What an error means, and what the server named with it: the command that the user may not run, or the code of an
/// unexpected error. `is_tls`: the connection is secured.
pub(super) fn problem_of(error: &RedisError, is_tls: bool) -> (StoreProblem, String) {
    let text = error.to_string();
    let problem = said(error, &text).unwrap_or_else(|| of_kind(error, &text, is_tls));
    let name = match problem {
        StoreProblem::NotPermitted => forbidden(&text).to_owned(),
        StoreProblem::Unexpected => error.code().unwrap_or_default().to_owned(),
        _ => String::new(),
    };
    (problem, name)
}

fn said(error: &RedisError, text: &str) -> Option<StoreProblem> {
    let mut words = text.split(|char: char| !char.is_ascii_alphanumeric());
    let by_code = SAID.iter().find(|(code, _)| error.code() == Some(code));
    let by_word = || {
        let of_word = |word| SAID.iter().find(|(code, _)| *code == word);
        words.find_map(of_word)
    };
    by_code.or_else(by_word).map(|(_, problem)| *problem)
}

fn of_kind(error: &RedisError, text: &str, is_tls: bool) -> StoreProblem {
    if error.is_timeout() {
        return StoreProblem::TimedOut;
    }
    if error.is_connection_refusal() {
        return StoreProblem::Refused;
    }
    let text = text.to_lowercase();
    if let Some((_, problem)) = TOLD.iter().find(|(told, _)| text.contains(told)) {
        return *problem;
    }
    match error.kind() {
        ErrorKind::AuthenticationFailed => StoreProblem::Denied,
        ErrorKind::RESP3NotSupported => StoreProblem::Unsupported,
        ErrorKind::MasterNameNotFoundBySentinel => StoreProblem::NoPrimary,
        ErrorKind::ClusterConnectionNotFound
        | ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask) => StoreProblem::ClusterDown,
        // A TLS error comes from neither the system nor its resolver.
        ErrorKind::Io
            if is_tls
                && !error.is_connection_dropped()
                && !text.contains("os error")
                && !text.contains("lookup") =>
        {
            StoreProblem::TlsFailed
        }
        ErrorKind::Io => StoreProblem::Unreachable,
        _ => StoreProblem::Unexpected,
    }
}

/// The command that the user may not run, as the server quotes it; `key` if it is the key that the user may not use,
/// `script` if a script may not run one of its commands.
fn forbidden(text: &str) -> &str {
    let quoted = text
        .split_once("the '")
        .and_then(|(_, rest)| rest.split_once('\''));
    match quoted {
        Some((command, _)) => command,
        None if text.contains("script") => "script",
        None if text.contains("key") => "key",
        None => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_server(text: &str) -> (StoreProblem, String) {
        let (code, detail) = text.split_once(' ').expect("a code");
        let error = redis::make_extension_error(code.to_owned(), Some(detail.to_owned()));
        problem_of(&error, false)
    }

    #[test]
    fn each_error_of_a_server_is_told_apart() {
        for (text, problem, name) in [
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                StoreProblem::OutOfMemory,
                "",
            ),
            (
                "ERR Error running script: @user_script:9: -OOM command not allowed",
                StoreProblem::OutOfMemory,
                "",
            ),
            (
                "READONLY You can't write against a read only replica.",
                StoreProblem::ReadOnly,
                "",
            ),
            ("BUSY Redis is busy running a script.", StoreProblem::Busy, ""),
            (
                "LOADING Redis is loading the dataset in memory",
                StoreProblem::Loading,
                "",
            ),
            (
                "MASTERDOWN Link with MASTER is down",
                StoreProblem::PrimaryDown,
                "",
            ),
            ("CLUSTERDOWN Hash slot not served", StoreProblem::ClusterDown, ""),
            (
                "TRYAGAIN Multiple keys request during rehashing",
                StoreProblem::ClusterDown,
                "",
            ),
            (
                "MISCONF Redis is configured to save RDB snapshots",
                StoreProblem::CannotSave,
                "",
            ),
            (
                "NOREPLICAS Not enough good replicas to write.",
                StoreProblem::TooFewReplicas,
                "",
            ),
            ("NOAUTH Authentication required.", StoreProblem::Denied, ""),
            (
                "WRONGPASS invalid username-password pair",
                StoreProblem::Denied,
                "",
            ),
            (
                "NOPERM User limits has no permissions to run the 'evalsha' command",
                StoreProblem::NotPermitted,
                "evalsha",
            ),
            (
                "NOPERM this user has no permissions to access one of the keys used as arguments",
                StoreProblem::NotPermitted,
                "key",
            ),
            (
                "ERR The user executing the script can't run this command or subcommand script: 5",
                StoreProblem::NotPermitted,
                "script",
            ),
            ("ERR unknown command `EVALSHA`", StoreProblem::Unsupported, ""),
            ("WHAT is this", StoreProblem::Unexpected, "WHAT"),
        ] {
            assert_eq!(of_server(text), (problem, name.to_owned()), "{text}");
        }
    }

    #[test]
    fn each_failure_of_a_connection_is_told_apart() {
        let of_system = |kind: io::ErrorKind| problem_of(&RedisError::from(io::Error::from(kind)), false).0;
        assert_eq!(of_system(io::ErrorKind::ConnectionRefused), StoreProblem::Refused);
        assert!(is_interruption(
            &io::Error::from(io::ErrorKind::Interrupted).into()
        ));
        assert!(!is_interruption(&io::Error::from(io::ErrorKind::TimedOut).into()));
        assert_eq!(of_system(io::ErrorKind::WouldBlock), StoreProblem::TimedOut);
        assert_eq!(of_system(io::ErrorKind::TimedOut), StoreProblem::TimedOut);
        assert_eq!(
            of_system(io::ErrorKind::ConnectionReset),
            StoreProblem::Unreachable
        );
        assert_eq!(of_system(io::ErrorKind::UnexpectedEof), StoreProblem::Unreachable);
        let untrusted = io::Error::new(
            io::ErrorKind::InvalidData,
            "invalid peer certificate: UnknownIssuer",
        );
        assert_eq!(problem_of(&untrusted.into(), true).0, StoreProblem::TlsFailed);
        let reset = io::Error::from(io::ErrorKind::ConnectionReset);
        assert_eq!(problem_of(&reset.into(), true).0, StoreProblem::Unreachable);
        let of_client = |kind: ErrorKind, text: &'static str| problem_of(&(kind, text).into(), false).0;
        for (kind, text, problem) in [
            (
                ErrorKind::AuthenticationFailed,
                "Password authentication failed",
                StoreProblem::Denied,
            ),
            (
                ErrorKind::Server(ServerErrorKind::ResponseError),
                "Redis server refused to switch database",
                StoreProblem::WrongDatabase,
            ),
            (
                ErrorKind::MasterNameNotFoundBySentinel,
                "none",
                StoreProblem::NoPrimary,
            ),
            (
                ErrorKind::ClusterConnectionNotFound,
                "none",
                StoreProblem::ClusterDown,
            ),
            (ErrorKind::Parse, "not RESP", StoreProblem::Unexpected),
        ] {
            assert_eq!(of_client(kind, text), problem, "{text}");
        }
    }
}
