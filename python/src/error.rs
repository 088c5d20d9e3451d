//! Errors of the library as exceptions of the package, which are declared in `shmlimit/_errors.py`.

use std::io;
use std::path::Path;

use nix::errno::Errno;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyModule;
use shmlimit::{DeclarationError, Difference, Error, RemovalCause};

use crate::log;

/// The exception for an error of the library.
pub fn raised(py: Python<'_>, error: &Error) -> PyErr {
    raised_saying(py, error, message(error))
}

/// As [`raised`], with a message of its own.
pub fn raised_saying(py: Python<'_>, error: &Error, message: String) -> PyErr {
    let class = class_name(error);
    let exception = exception(py, class, message);
    let details = || -> PyResult<()> {
        let value = exception.value(py);
        if let Some(errno) = errno(error) {
            value.setattr("errno", errno)?;
        }
        if let Some(path) = path(error) {
            value.setattr("path", path.as_os_str())?;
        }
        match error {
            Error::ConfigMismatch {
                differences, remedy, ..
            } => {
                value.setattr("differences", in_words(differences))?;
                value.setattr("remedy", remedy.as_str())?;
            }
            Error::CannotApply { differences, .. } => value.setattr("differences", in_words(differences))?,
            Error::InUse { pids, .. } => value.setattr("pids", pids.clone())?,
            Error::Removed { path, cause: why } => {
                value.setattr("cause", cause(*why))?;
                log::removal(py, path, error)?;
            }
            Error::NeverAdmissible { limit, .. } => value.setattr("limit", limit.as_str())?,
            Error::LockStuck { pid, .. } => value.setattr("pid", *pid)?,
            _ => {}
        }
        Ok(())
    };
    // The exception says what happened either way.
    let _ = details();
    exception
}

/// By what name the package knows why a segment was removed.
pub fn cause(cause: RemovalCause) -> &'static str {
    match cause {
        RemovalCause::Deleted => "deleted",
        RemovalCause::Replaced => "replaced",
        _ => "retired",
    }
}

/// The exception for what is wrong with a declaration.
pub fn raised_by_declaration(py: Python<'_>, error: &DeclarationError) -> PyErr {
    let mut message = error.to_string();
    if let Some(source) = std::error::Error::source(error) {
        message = format!("{message}: {source}");
    }
    exception(py, "DeclarationError", message)
}

/// An exception of that class of the package.
pub fn exception(py: Python<'_>, class: &str, message: String) -> PyErr {
    exception_of(py, class, message)
}

/// An exception of that class of the package, made of its one argument.
pub fn exception_of<'py>(py: Python<'py>, class: &str, argument: impl IntoPyObject<'py>) -> PyErr {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || py.import("shmlimit._errors").map(Bound::unbind));
    match module.and_then(|module| module.bind(py).getattr(class)?.call1((argument,))) {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// What the error says, in the words of this package where the library names a function of its own.
fn message(error: &Error) -> String {
    match error {
        Error::NotFound { path } => format!(
            "there is no segment at {}: create it with `limitctl create`, or give `open` a `config`",
            path.display()
        ),
        _ => error.to_string(),
    }
}

/// What the system's number for an error is.
fn in_words(differences: &[Difference]) -> Vec<String> {
    differences.iter().map(ToString::to_string).collect()
}

fn errno(error: &Error) -> Option<i32> {
    let errno = match error {
        Error::Io { source, .. } | Error::Denied { source, .. } | Error::Unsupported { source, .. } => {
            return source.raw_os_error();
        }
        Error::NotFound { .. } => Errno::ENOENT,
        Error::AlreadyExists { .. } => Errno::EEXIST,
        Error::NoSpace { .. } => Errno::ENOSPC,
        Error::Untrusted { .. } => Errno::EACCES,
        _ => return None,
    };
    Some(errno as i32)
}

/// The file that an error is about.
fn path(error: &Error) -> Option<&Path> {
    match error {
        Error::Io { path, .. }
        | Error::Denied { path, .. }
        | Error::NotFound { path }
        | Error::AlreadyExists { path }
        | Error::NoSpace { path, .. }
        | Error::NotASegment { path, .. }
        | Error::Incompatible { path, .. }
        | Error::ForeignNamespace { path, .. }
        | Error::ForeignBoot { path }
        | Error::WrongSize { path, .. }
        | Error::Sparse { path }
        | Error::Damaged { path, .. }
        | Error::Untrusted { path, .. }
        | Error::UnsupportedFileSystem { path, .. }
        | Error::TooManyParticipants { path, .. }
        | Error::InUse { path, .. }
        | Error::AttachStuck { path }
        | Error::ConfigMismatch { path, .. }
        | Error::CannotApply { path, .. }
        | Error::Removed { path, .. } => Some(path),
        _ => None,
    }
}

/// By what name the package knows an error.
fn class_name(error: &Error) -> &'static str {
    match error {
        Error::NotFound { .. } => "NotFound",
        Error::AlreadyExists { .. } => "AlreadyExists",
        Error::NoSpace { .. } => "NoSpace",
        Error::NotASegment { .. } => "NotASegment",
        Error::Incompatible { .. } => "Incompatible",
        Error::ForeignNamespace { .. } | Error::ForeignBoot { .. } => "ForeignNamespace",
        Error::WrongSize { .. } | Error::Sparse { .. } | Error::Damaged { .. } => "Damaged",
        Error::Untrusted { .. } => "Untrusted",
        Error::InUse { .. } => "InUse",
        Error::ConfigMismatch { .. } => "ConfigMismatch",
        Error::CannotApply { .. } => "CannotApply",
        Error::Removed { .. } => "Removed",
        Error::LockStuck { .. } | Error::AttachStuck { .. } => "LockStuck",
        Error::LockLost { .. } | Error::Poisoned { .. } => "Poisoned",
        Error::TooManyParticipants { .. } => "TooManyParticipants",
        Error::UnknownSet { .. } => "UnknownSet",
        Error::UnknownLimit { .. } => "UnknownLimit",
        Error::UnknownTier { .. } => "UnknownTier",
        Error::CostRequired { .. } => "CostRequired",
        Error::NeverAdmissible { .. } => "NeverAdmissible",
        Error::InvalidAmount { .. } => "InvalidAmount",
        Error::KeyRequired { .. } | Error::AddressRequired { .. } => "KeyRequired",
        Error::NotKeyed { .. } | Error::NoPrefixes { .. } => "NotKeyed",
        Error::InvalidKey { .. } => "InvalidKey",
        Error::MustBeHeld { .. } => "MustBeHeld",
        Error::NotABudget { .. } => "NotABudget",
        Error::NotReservable { .. }
        | Error::ForeignRequest { .. }
        | Error::NoLocalCredit { .. }
        | Error::InvalidBatch { .. }
        | Error::CannotOverride { .. }
        | Error::TableFull { .. }
        | Error::EmptyPool => "RequestError",
        Error::AlreadySettled { .. } => "AlreadySettled",
        Error::AlreadyReleased { .. } => "AlreadyReleased",
        Error::Reclaimed { .. } => "Reclaimed",
        Error::InheritedPermit { .. } => "InheritedPermit",
        Error::Declaration { .. } => "DeclarationError",
        Error::Denied { .. } => "PermissionDenied",
        Error::Io { source, .. } => match source.kind() {
            io::ErrorKind::NotFound => "NotFound",
            io::ErrorKind::PermissionDenied => "PermissionDenied",
            _ => "SegmentError",
        },
        _ => "SegmentError",
    }
}

/// What the library answered, or its error as an exception.
pub trait OrRaise<T> {
    /// Raises the error.
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for Result<T, Error> {
    #[inline]
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| raised(py, &error))
    }
}

impl<T> OrRaise<T> for Result<T, DeclarationError> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| raised_by_declaration(py, &error))
    }
}
