//! The program `limitctl`, for the console script of the package.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs `limitctl` with these arguments, of which the first is the program's name, and returns the exit code.
#[pyfunction]
pub fn limitctl(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| ::limitctl::run(arguments))
}
