//! Exit codes and failures.

use std::{fmt, io};

use shmlimit::{ChangeError, DeclarationError, Error, OpenError, SegmentError};

/// An exit code, taken from sysexits.h where that has a fitting one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitCode(u8);

impl ExitCode {
    /// Done.
    pub const DONE: Self = Self(0);
    /// Refused, or a problem was found.
    pub const PROBLEM: Self = Self(1);
    /// More verdicts of a simulation flipped than allowed.
    pub const FLIPS: Self = Self(3);
    /// A difference from a live segment cannot be changed in place.
    pub const CANNOT_APPLY: Self = Self(4);
    /// The arguments make no sense, or ask for something that the segment does not have or can never admit.
    pub const USAGE: Self = Self(64);
    /// The file is damaged, of another format, or not a segment.
    pub const DAMAGED: Self = Self(65);
    /// A line of a trace makes no sense, or asks for something that the declaration does not have.
    pub const BAD_TRACE: Self = Self(65);
    /// The segment does not exist, was removed, or is locked by a process that does not release it.
    pub const UNAVAILABLE: Self = Self(69);
    /// The segment could not be created.
    pub const CANNOT_CREATE: Self = Self(73);
    /// The limits refused, but a later try may be admitted.
    pub const REFUSED: Self = Self(75);
    /// No permission, or a file that must not be trusted.
    pub const PERMISSION: Self = Self(77);
    /// The declaration is invalid, or the segment has another one.
    pub const DECLARATION: Self = Self(78);
    /// The command exists but cannot be run, as in a shell.
    pub const COMMAND_NOT_EXECUTABLE: Self = Self(126);
    /// The command does not exist, as in a shell.
    pub const COMMAND_NOT_FOUND: Self = Self(127);

    /// A command's own exit code, or one that the user asked for.
    pub const fn of(number: u8) -> Self {
        Self(number)
    }

    /// The process's exit code.
    pub fn number(self) -> u8 {
        self.0
    }

    /// For the manual and the long help.
    pub const EXPLANATION: &str = "\
Exit codes:
  0   done
  1   a verb refused, or a problem was found
  3   simulate: more verdicts flipped than --max-flips allows
  4   apply, edit: what is asked for cannot change in place, and nothing was changed
  64  wrong arguments, or a set, limit, key or cost that the segment does not have or allow
  65  the file is damaged, of another format, or not a segment; simulate: a line of the trace is wrong
  69  there is no segment, it was removed, or it is locked by a process that does not release it
  73  the segment could not be created
  75  exec: the limits refused, or time was up
  77  no permission, or the file must not be trusted
  78  the declaration is wrong, or the segment has another
  126 exec: the command cannot be run
  127 exec: the command is not there";
}

/// Why a verb failed.
#[derive(Debug)]
pub struct Failure {
    pub code: ExitCode,
    pub message: String,
}

impl Failure {
    pub fn new(code: ExitCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(ExitCode::USAGE, message)
    }

    pub fn problem(message: impl Into<String>) -> Self {
        Self::new(ExitCode::PROBLEM, message)
    }

    pub fn bad_trace(message: impl Into<String>) -> Self {
        Self::new(ExitCode::BAD_TRACE, message)
    }

    /// An error of the system that is not about a segment.
    pub fn of_system(error: &io::Error, what: impl fmt::Display) -> Self {
        Self::new(code_of_system(error), format!("{what}: {error}"))
    }

    /// An error while creating a segment.
    pub fn while_creating(error: Error) -> Self {
        let creation_failed = match &error {
            Error::Open(OpenError::Io { source, .. } | OpenError::NoPlace { source, .. }) => {
                source.kind() != io::ErrorKind::PermissionDenied
            }
            Error::Open(OpenError::UnsupportedFileSystem { .. } | OpenError::LocksNotKept { .. }) => true,
            _ => false,
        };
        let failure = Self::from(error);
        if creation_failed {
            Self {
                code: ExitCode::CANNOT_CREATE,
                ..failure
            }
        } else {
            failure
        }
    }
}

impl From<DeclarationError> for Failure {
    fn from(error: DeclarationError) -> Self {
        Error::from(error).into()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(code_of(&error), message_of(&error))
    }
}

/// The only place that maps errors to exit codes.
fn code_of(error: &Error) -> ExitCode {
    match error {
        Error::Open(OpenError::Io { source, .. } | OpenError::NoPlace { source, .. }) => {
            code_of_system(source)
        }
        Error::Open(
            OpenError::Denied { .. } | OpenError::CallForbidden { .. } | OpenError::Untrusted { .. },
        ) => ExitCode::PERMISSION,
        Error::Open(OpenError::AlreadyExists { .. } | OpenError::NoSpace { .. }) => ExitCode::CANNOT_CREATE,
        Error::Open(
            OpenError::NotASegment { .. }
            | OpenError::NotACheckpoint { .. }
            | OpenError::Incompatible { .. }
            | OpenError::WrongSize { .. }
            | OpenError::Sparse { .. }
            | OpenError::Misplaced { .. },
        )
        | Error::Segment(
            SegmentError::Damaged { .. } | SegmentError::LockLost { .. } | SegmentError::Poisoned { .. },
        ) => ExitCode::DAMAGED,
        Error::Open(
            OpenError::NotFound { .. }
            | OpenError::Anonymous { .. }
            | OpenError::ForeignNamespace { .. }
            | OpenError::ForeignBoot { .. }
            | OpenError::Moved { .. }
            | OpenError::UnsupportedFileSystem { .. }
            | OpenError::LocksNotKept { .. }
            | OpenError::LockedByReader { .. }
            | OpenError::TooManyParticipants { .. }
            | OpenError::AttachStuck { .. }
            | OpenError::Unsupported { .. },
        )
        | Error::Segment(SegmentError::Removed { .. } | SegmentError::LockStuck { .. }) => {
            ExitCode::UNAVAILABLE
        }
        Error::Request(_)
        | Error::Change(ChangeError::CannotOverride { .. })
        | Error::Open(OpenError::NotADirectory { .. }) => ExitCode::USAGE,
        Error::Change(ChangeError::CannotApply { .. }) => ExitCode::CANNOT_APPLY,
        Error::Declaration(DeclarationError::Unreadable { source, .. }) => code_of_system(source),
        Error::Declaration(_) | Error::Open(OpenError::ConfigMismatch { .. }) => ExitCode::DECLARATION,
        // Refusals such as `InUse` and a full table, errors about permits, with which no verb ends, and future errors.
        _ => ExitCode::PROBLEM,
    }
}

fn code_of_system(source: &io::Error) -> ExitCode {
    match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ExitCode::PERMISSION,
        _ => ExitCode::UNAVAILABLE,
    }
}

/// The error and its causes, without repetition.
fn message_of(error: &Error) -> String {
    let mut message = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(current) = cause {
        let text = current.to_string();
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        cause = current.source();
    }
    message
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use shmlimit::RequestError;

    use super::*;

    fn io_error(kind: io::ErrorKind) -> Error {
        Error::Open(OpenError::Io {
            action: "open",
            path: PathBuf::from("limits"),
            source: kind.into(),
        })
    }

    #[test]
    fn each_kind_of_error_has_the_code_of_its_kind() {
        let path = PathBuf::from("limits");
        let set = || "api".to_owned();
        for (error, code) in [
            (io_error(io::ErrorKind::PermissionDenied), ExitCode::PERMISSION),
            (io_error(io::ErrorKind::ReadOnlyFilesystem), ExitCode::PERMISSION),
            (io_error(io::ErrorKind::OutOfMemory), ExitCode::UNAVAILABLE),
            (
                Error::Open(OpenError::NotFound { path: path.clone() }),
                ExitCode::UNAVAILABLE,
            ),
            (
                Error::Segment(SegmentError::Removed {
                    path: path.clone(),
                    cause: shmlimit::RemovalCause::Retired,
                }),
                ExitCode::UNAVAILABLE,
            ),
            (
                Error::Segment(SegmentError::LockStuck {
                    set: set(),
                    process: None,
                }),
                ExitCode::UNAVAILABLE,
            ),
            (
                Error::Open(OpenError::AlreadyExists { path: path.clone() }),
                ExitCode::CANNOT_CREATE,
            ),
            (
                Error::Open(OpenError::NoSpace {
                    path: path.clone(),
                    bytes: 1,
                    why: "make some".into(),
                }),
                ExitCode::CANNOT_CREATE,
            ),
            (
                Error::Segment(SegmentError::Damaged {
                    path: path.clone(),
                    what: "all of it".into(),
                }),
                ExitCode::DAMAGED,
            ),
            (
                Error::Change(ChangeError::CannotApply {
                    path: path.clone(),
                    differences: vec![],
                }),
                ExitCode::CANNOT_APPLY,
            ),
            (
                Error::Request(RequestError::KeyRequired { set: set() }),
                ExitCode::USAGE,
            ),
            (
                Error::Request(RequestError::NotKeyed { set: set() }),
                ExitCode::USAGE,
            ),
            (
                Error::Request(RequestError::InvalidKey {
                    set: set(),
                    bytes: 0,
                    max: 1,
                }),
                ExitCode::USAGE,
            ),
            (
                Error::Segment(SegmentError::Poisoned { set: set() }),
                ExitCode::DAMAGED,
            ),
            (
                Error::Segment(SegmentError::LockLost { set: set() }),
                ExitCode::DAMAGED,
            ),
            (
                Error::Open(OpenError::Untrusted {
                    path: path.clone(),
                    why: "it is a symbolic link".into(),
                }),
                ExitCode::PERMISSION,
            ),
            (
                Error::Request(RequestError::UnknownSet {
                    name: set(),
                    known: vec![],
                }),
                ExitCode::USAGE,
            ),
            (
                Error::Open(OpenError::ConfigMismatch {
                    path: path.clone(),
                    differences: vec![],
                    remedy: String::new(),
                }),
                ExitCode::DECLARATION,
            ),
            (
                Error::Open(OpenError::InUse {
                    path,
                    processes: vec![],
                }),
                ExitCode::PROBLEM,
            ),
        ] {
            assert_eq!(code_of(&error), code, "{error}");
        }
    }

    #[test]
    fn what_the_system_refuses_to_create_cannot_be_created_unless_permission_lacks() {
        let code = |kind| Failure::while_creating(io_error(kind)).code;
        assert_eq!(code(io::ErrorKind::NotFound), ExitCode::CANNOT_CREATE);
        assert_eq!(code(io::ErrorKind::ReadOnlyFilesystem), ExitCode::CANNOT_CREATE);
        assert_eq!(code(io::ErrorKind::PermissionDenied), ExitCode::PERMISSION);
    }

    #[test]
    fn a_cause_is_said_once() {
        let said = Failure::from(io_error(io::ErrorKind::PermissionDenied)).message;
        assert_eq!(said.matches("permission denied").count(), 1);
        let unreadable = Error::Declaration(DeclarationError::Unreadable {
            path: PathBuf::from("limits.toml"),
            source: io::ErrorKind::PermissionDenied.into(),
        });
        assert!(Failure::from(unreadable).message.ends_with("permission denied"));
    }
}
