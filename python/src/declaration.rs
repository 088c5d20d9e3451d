//! Declarations as Python meets them.

use std::path::PathBuf;

use pyo3::prelude::*;

use crate::error::{OrRaise, exception};

/// What a segment is to hold, validated.
#[pyclass(frozen, module = "shmlimit._native")]
pub struct Declaration {
    pub declaration: shmlimit::Declaration,
}

#[pymethods]
impl Declaration {
    /// Reads a file of TOML.
    #[staticmethod]
    fn from_file(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let declaration = shmlimit::Declaration::from_toml_file(path).or_raise(py)?;
        Ok(Self { declaration })
    }

    /// Reads TOML.
    #[staticmethod]
    fn from_toml(py: Python<'_>, text: &str) -> PyResult<Self> {
        let declaration = shmlimit::Declaration::from_toml(text).or_raise(py)?;
        Ok(Self { declaration })
    }

    /// Reads JSON with the fields of the TOML.
    #[staticmethod]
    fn from_json(py: Python<'_>, text: &str) -> PyResult<Self> {
        let declaration: shmlimit::Declaration = serde_json::from_str(text).map_err(|error| {
            // The text is of the package's making: its lines and columns tell the user nothing.
            let message = error.to_string();
            let what = message.split(" at line ").next().unwrap_or(&message).to_owned();
            exception(
                py,
                "DeclarationError",
                format!("this is not a declaration: {what}"),
            )
        })?;
        declaration.validate().or_raise(py)?;
        Ok(Self { declaration })
    }

    /// The same as TOML, with every default written out.
    fn to_toml(&self, py: Python<'_>) -> PyResult<String> {
        self.declaration.to_toml().or_raise(py)
    }

    /// The same as JSON with the fields of the TOML.
    fn to_json(&self, py: Python<'_>) -> PyResult<String> {
        crate::segment::json(py, &self.declaration)
    }

    /// Where the segment's file is to be, where that is declared.
    #[getter]
    fn path(&self) -> Option<PathBuf> {
        self.declaration.segment().path().map(PathBuf::from)
    }
}
