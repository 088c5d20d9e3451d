//! The program `limitctl`, for the console script of the package.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Does what the arguments say, the first of which is the program's name; answers the exit code.
#[pyfunction]
pub fn limitctl(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| ::limitctl::run(arguments))
}
