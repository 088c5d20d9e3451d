//! Converts the library's errors to the package's exceptions, declared in `shmlimit/_errors.py`.

use std::io;
use std::path::Path;
use std::str::FromStr;

use nix::errno::Errno;
use once_cell::race::OnceBox;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyModule;
use shmlimit::declare::{Difference, ParseError};
use shmlimit::{ChangeError, DeclarationError, Error, OpenError, PermitError, RequestError, SegmentError};

use crate::interpreter::log;
use crate::interpreter::once::once;

/// The exception for an error of the library.
pub fn raised(py: Python<'_>, error: &Error) -> PyErr {
    raised_saying(py, error, message(error))
}

/// The exception for an error of the library, with another message.
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
            Error::Open(OpenError::ConfigMismatch {
                differences, remedy, ..
            }) => {
                value.setattr("differences", in_words(differences))?;
                value.setattr("remedy", remedy.as_str())?;
            }
            Error::Change(ChangeError::CannotApply { differences, .. }) => {
                value.setattr("differences", in_words(differences))?
            }
            Error::Open(OpenError::InUse { processes, .. }) => {
                let pids: Vec<u64> = processes.iter().map(|process| process.pid).collect();
                let namespaces: Vec<Option<u64>> =
                    processes.iter().map(|process| process.namespace).collect();
                value.setattr("pids", pids)?;
                value.setattr("pid_namespaces", namespaces)?;
            }
            Error::Segment(SegmentError::Removed { path, cause }) => {
                value.setattr("cause", cause.as_str())?;
                log::removal(py, path, error)?;
            }
            Error::Request(RequestError::NeverAdmissible { limit, .. }) => {
                value.setattr("limit", limit.as_str())?
            }
            Error::Open(OpenError::AttachStuck { processes, .. }) if processes.len() == 1 => {
                value.setattr("pid", processes.first().map(|process| process.pid))?;
            }
            Error::Segment(SegmentError::LockStuck {
                process: Some(process),
                ..
            }) => {
                value.setattr("pid", process.pid)?;
                value.setattr("pid_namespace", process.namespace)?;
            }
            _ => {}
        }
        Ok(())
    };
    // Without the attributes, the exception still says what happened.
    let _ = details();
    exception
}

/// Parses the word that was given for an argument, or raises `ValueError`.
pub fn chosen<T: FromStr<Err = ParseError>>(argument: &str, word: &str) -> PyResult<T> {
    word.parse()
        .map_err(|error| PyValueError::new_err(format!("{argument}: {error}")))
}

/// The exception for an invalid declaration.
pub fn raised_by_declaration(py: Python<'_>, error: &DeclarationError) -> PyErr {
    let mut message = error.to_string();
    if let Some(source) = std::error::Error::source(error) {
        message = format!("{message}: {source}");
    }
    exception(py, "DeclarationError", message)
}

/// An exception of one of the package's classes.
pub fn exception(py: Python<'_>, class: &str, message: String) -> PyErr {
    exception_of(py, class, message)
}

/// An exception of one of the package's classes, made from its one argument.
pub fn exception_of<'py>(py: Python<'py>, class: &str, argument: impl IntoPyObject<'py>) -> PyErr {
    static MODULE: OnceBox<Py<PyModule>> = OnceBox::new();
    let module = once(&MODULE, py, || py.import("shmlimit._errors").map(Bound::unbind));
    match module.and_then(|module| module.getattr(class)?.call1((argument,))) {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// The error's message, with Python's names where the library would name its own functions.
fn message(error: &Error) -> String {
    match error {
        Error::Open(OpenError::NotFound { path }) => format!(
            "there is no segment at {}: create it with `limitctl create`, or give `open` a `config`",
            path.display()
        ),
        _ => error.to_string(),
    }
}

fn in_words(differences: &[Difference]) -> Vec<String> {
    differences.iter().map(ToString::to_string).collect()
}

/// The system's number for an error.
fn errno(error: &Error) -> Option<i32> {
    let errno = match error {
        Error::Open(
            OpenError::Io { source, .. }
            | OpenError::Denied { source, .. }
            | OpenError::NoPlace { source, .. }
            | OpenError::Unsupported { source, .. },
        ) => {
            return source.raw_os_error();
        }
        Error::Open(OpenError::NotFound { .. }) => Errno::ENOENT,
        Error::Open(OpenError::AlreadyExists { .. }) => Errno::EEXIST,
        Error::Open(OpenError::NotADirectory { .. }) => Errno::ENOTDIR,
        Error::Open(OpenError::NoSpace { .. }) => Errno::ENOSPC,
        Error::Open(OpenError::Untrusted { .. }) => Errno::EACCES,
        _ => return None,
    };
    Some(errno as i32)
}

/// The file that an error is about.
fn path(error: &Error) -> Option<&Path> {
    match error {
        Error::Open(
            OpenError::Io { path, .. }
            | OpenError::Denied { path, .. }
            | OpenError::NotFound { path }
            | OpenError::AlreadyExists { path }
            | OpenError::NotADirectory { path }
            | OpenError::Misplaced { path, .. }
            | OpenError::NoSpace { path, .. }
            | OpenError::NotASegment { path, .. }
            | OpenError::NotACheckpoint { path, .. }
            | OpenError::Incompatible { path, .. }
            | OpenError::ForeignNamespace { path, .. }
            | OpenError::Anonymous { path, .. }
            | OpenError::ForeignBoot { path }
            | OpenError::Moved { path, .. }
            | OpenError::WrongSize { path, .. }
            | OpenError::Sparse { path }
            | OpenError::Untrusted { path, .. }
            | OpenError::UnsupportedFileSystem { path, .. }
            | OpenError::LocksNotKept { path, .. }
            | OpenError::LockedByReader { path, .. }
            | OpenError::TooManyParticipants { path, .. }
            | OpenError::InUse { path, .. }
            | OpenError::AttachStuck { path, .. }
            | OpenError::NoPlace { path, .. }
            | OpenError::ConfigMismatch { path, .. },
        )
        | Error::Change(ChangeError::CannotApply { path, .. })
        | Error::Segment(SegmentError::Damaged { path, .. } | SegmentError::Removed { path, .. }) => {
            Some(path)
        }
        _ => None,
    }
}

/// The name of the package's class for an error.
fn class_name(error: &Error) -> &'static str {
    match error {
        Error::Open(OpenError::NotFound { .. }) => "NotFound",
        Error::Open(OpenError::NoSpace { .. }) => "NoSpace",
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
        ) => "InvalidSegment",
        Error::Open(OpenError::Denied { .. } | OpenError::Untrusted { .. }) => "PermissionDenied",
        Error::Open(OpenError::InUse { .. }) => "InUse",
        Error::Open(OpenError::ConfigMismatch { .. }) | Error::Change(ChangeError::CannotApply { .. }) => {
            "ConfigMismatch"
        }
        Error::Segment(SegmentError::Removed { .. }) => "Removed",
        Error::Segment(SegmentError::LockStuck { .. })
        | Error::Open(OpenError::AttachStuck { .. } | OpenError::LockedByReader { .. }) => "LockStuck",
        Error::Open(OpenError::Io { source, .. } | OpenError::NoPlace { source, .. }) => {
            match source.kind() {
                io::ErrorKind::NotFound => "NotFound",
                io::ErrorKind::PermissionDenied => "PermissionDenied",
                _ => "SegmentError",
            }
        }
        Error::Request(RequestError::UnknownSet { .. } | RequestError::UnknownTier { .. }) => "UnknownName",
        Error::Request(RequestError::UnknownLimit { .. }) => "UnknownLimit",
        Error::Request(RequestError::CostRequired { .. }) => "CostRequired",
        Error::Request(RequestError::NeverAdmissible { .. }) => "NeverAdmissible",
        Error::Request(RequestError::InvalidAmount { .. }) => "InvalidAmount",
        Error::Request(
            RequestError::KeyRequired { .. }
            | RequestError::AddressRequired { .. }
            | RequestError::NotKeyed { .. }
            | RequestError::NoPrefixes { .. }
            | RequestError::InvalidKey { .. },
        ) => "InvalidKey",
        Error::Request(_) | Error::Change(_) => "RequestError",
        Error::Permit(PermitError::AlreadySettled { .. }) => "AlreadySettled",
        Error::Permit(PermitError::AlreadyReleased { .. }) => "AlreadyReleased",
        Error::Permit(PermitError::Reclaimed { .. }) => "Reclaimed",
        Error::Permit(_) => "PermitError",
        Error::Declaration { .. } => "DeclarationError",
        _ => "SegmentError",
    }
}

/// Turns the library's errors into exceptions.
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
