//! Exit codes and failures.

use std::{fmt, io};

use shmlimit::{ChangeError, DeclarationError, Error, OpenError, SegmentError};

/// Exit codes, from sysexits.h if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitCode {
    /// Done.
    Done,
    /// Refused, or a problem was found.
    Problem,
    /// More verdicts of a simulation flipped than allowed.
    Flips,
    /// A difference from a live segment cannot be changed in place.
    CannotApply,
    /// The arguments make no sense, or ask for something that the segment does not have or can never admit.
    Usage,
    /// The file is damaged, of another format, or not a segment.
    Damaged,
    /// A line of a trace makes no sense, or asks for something that the declaration does not have.
    BadTrace,
    /// The segment does not exist, was removed, or is locked by a process that does not release it.
    Unavailable,
    /// The segment could not be created.
    CannotCreate,
    /// The limits refused, and a later try may be admitted.
    Refused,
    /// No permission, or a file that must not be trusted.
    Permission,
    /// The declaration is invalid, or the segment has another.
    Declaration,
    /// The command exists but cannot be run, as in a shell.
    CommandNotExecutable,
    /// The command does not exist, as in a shell.
    CommandNotFound,
    /// A command's own exit code, or one that the user asked for.
    Other(u8),
}

impl ExitCode {
    /// The process's exit code.
    pub fn number(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Problem => 1,
            Self::Flips => 3,
            Self::CannotApply => 4,
            Self::Usage => 64,
            Self::Damaged | Self::BadTrace => 65,
            Self::Unavailable => 69,
            Self::CannotCreate => 73,
            Self::Refused => 75,
            Self::Permission => 77,
            Self::Declaration => 78,
            Self::CommandNotExecutable => 126,
            Self::CommandNotFound => 127,
            Self::Other(number) => number,
        }
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

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> Self {
        Self::from(code.number())
    }
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
                code: ExitCode::CannotCreate,
                ..failure
            }
        } else {
            failure
        }
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
        ) => ExitCode::Permission,
        Error::Open(OpenError::AlreadyExists { .. } | OpenError::NoSpace { .. }) => ExitCode::CannotCreate,
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
        ) => ExitCode::Damaged,
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
            ExitCode::Unavailable
        }
        Error::Request(_)
        | Error::Change(ChangeError::CannotOverride { .. })
        | Error::Open(OpenError::NotADirectory { .. }) => ExitCode::Usage,
        Error::Change(ChangeError::CannotApply { .. }) => ExitCode::CannotApply,
        Error::Declaration(DeclarationError::Unreadable { source, .. }) => code_of_system(source),
        Error::Declaration(_) | Error::Open(OpenError::ConfigMismatch { .. }) => ExitCode::Declaration,
        // Refusals such as `InUse` and a full table; errors of permits, with which no verb ends; and future errors.
        _ => ExitCode::Problem,
    }
}

fn code_of_system(source: &io::Error) -> ExitCode {
    match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ExitCode::Permission,
        _ => ExitCode::Unavailable,
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
            (io_error(io::ErrorKind::PermissionDenied), ExitCode::Permission),
            (io_error(io::ErrorKind::ReadOnlyFilesystem), ExitCode::Permission),
            (io_error(io::ErrorKind::OutOfMemory), ExitCode::Unavailable),
            (
                Error::Open(OpenError::NotFound { path: path.clone() }),
                ExitCode::Unavailable,
            ),
            (
                Error::Segment(SegmentError::Removed {
                    path: path.clone(),
                    cause: shmlimit::RemovalCause::Retired,
                }),
                ExitCode::Unavailable,
            ),
            (
                Error::Segment(SegmentError::LockStuck {
                    set: set(),
                    process: None,
                }),
                ExitCode::Unavailable,
            ),
            (
                Error::Open(OpenError::AlreadyExists { path: path.clone() }),
                ExitCode::CannotCreate,
            ),
            (
                Error::Open(OpenError::NoSpace {
                    path: path.clone(),
                    bytes: 1,
                    why: "make some".into(),
                }),
                ExitCode::CannotCreate,
            ),
            (
                Error::Segment(SegmentError::Damaged {
                    path: path.clone(),
                    what: "all of it".into(),
                }),
                ExitCode::Damaged,
            ),
            (
                Error::Change(ChangeError::CannotApply {
                    path: path.clone(),
                    differences: vec![],
                }),
                ExitCode::CannotApply,
            ),
            (
                Error::Request(RequestError::KeyRequired { set: set() }),
                ExitCode::Usage,
            ),
            (
                Error::Request(RequestError::NotKeyed { set: set() }),
                ExitCode::Usage,
            ),
            (
                Error::Request(RequestError::InvalidKey {
                    set: set(),
                    bytes: 0,
                    max: 1,
                }),
                ExitCode::Usage,
            ),
            (
                Error::Segment(SegmentError::Poisoned { set: set() }),
                ExitCode::Damaged,
            ),
            (
                Error::Segment(SegmentError::LockLost { set: set() }),
                ExitCode::Damaged,
            ),
            (
                Error::Open(OpenError::Untrusted {
                    path: path.clone(),
                    why: "it is a symbolic link".into(),
                }),
                ExitCode::Permission,
            ),
            (
                Error::Request(RequestError::UnknownSet {
                    name: set(),
                    known: vec![],
                }),
                ExitCode::Usage,
            ),
            (
                Error::Open(OpenError::ConfigMismatch {
                    path: path.clone(),
                    differences: vec![],
                    remedy: String::new(),
                }),
                ExitCode::Declaration,
            ),
            (
                Error::Open(OpenError::InUse {
                    path,
                    processes: vec![],
                }),
                ExitCode::Problem,
            ),
        ] {
            assert_eq!(code_of(&error), code, "{error}");
        }
    }

    #[test]
    fn what_the_system_refuses_to_create_cannot_be_created_unless_permission_lacks() {
        let code = |kind| Failure::while_creating(io_error(kind)).code;
        assert_eq!(code(io::ErrorKind::NotFound), ExitCode::CannotCreate);
        assert_eq!(code(io::ErrorKind::ReadOnlyFilesystem), ExitCode::CannotCreate);
        assert_eq!(code(io::ErrorKind::PermissionDenied), ExitCode::Permission);
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
