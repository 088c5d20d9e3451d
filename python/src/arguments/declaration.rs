//! Declarations in Python.

use std::path::PathBuf;

use pyo3::prelude::*;
use serde_json::Value;
use serde_path_to_error::{Path, Segment};

use crate::interpreter::error::{OrRaise, exception};
use crate::interpreter::json::json;

/// A validated declaration of what a segment holds.
#[pyclass(frozen, module = "shmlimit._native")]
pub struct Declaration {
    pub declaration: shmlimit::Declaration,
}

#[pymethods]
impl Declaration {
    /// Reads a TOML file.
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
        let mut reader = serde_json::Deserializer::from_str(text);
        let read = serde_path_to_error::deserialize::<_, shmlimit::Declaration>(&mut reader);
        let declaration = read.map_err(|error| {
            // The package wrote the text, so its lines and columns would tell the user nothing.
            let message = error.inner().to_string();
            let what = message.split(" at line ").next().unwrap_or(&message);
            let place = place(error.path(), text).unwrap_or_else(|| "this is not a declaration".to_owned());
            exception(py, "DeclarationError", format!("{place}: {what}"))
        })?;
        declaration.validate().or_raise(py)?;
        Ok(Self { declaration })
    }

    /// The same declaration with another version.
    fn with_version(&self, py: Python<'_>, version: u64) -> PyResult<Self> {
        let declaration = self.declaration.clone().version(version);
        declaration.validate().or_raise(py)?;
        Ok(Self { declaration })
    }

    /// The declaration as TOML, with every default written out.
    fn to_toml(&self, py: Python<'_>) -> PyResult<String> {
        self.declaration.to_toml().or_raise(py)
    }

    /// The declaration as JSON with the fields of the TOML.
    fn to_json(&self, py: Python<'_>) -> PyResult<String> {
        json(py, &self.declaration)
    }

    /// How many bytes a segment takes if it is created from this declaration.
    fn memory(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.declaration.memory().or_raise(py)?.bytes)
    }

    /// What is allowed but worth a second look, in one sentence each.
    fn warnings(&self) -> Vec<String> {
        self.declaration.warnings()
    }

    /// The path of the segment's file, if declared.
    #[getter]
    fn path(&self) -> Option<PathBuf> {
        self.declaration.segment().path().map(PathBuf::from)
    }
}

/// The most that a limit admits in any stretch of time of its window's length, in words; None if it has no such bound
/// or is invalid. The limit is given as JSON with the fields of the TOML.
#[pyfunction]
pub fn bound(limit: &str) -> Option<String> {
    let limit: shmlimit::Limit = serde_json::from_str(limit).ok()?;
    limit.bound().map(|bound| bound.to_string())
}

/// A time zone as JSON with the fields of the TOML. Its changes are those in `file`, which is TZif.
#[pyfunction]
#[pyo3(signature = (name, file, version))]
pub fn time_zone(py: Python<'_>, name: &str, file: &[u8], version: Option<&str>) -> PyResult<String> {
    let zone = shmlimit::declare::TimeZone::from_tzif(name, file, version).or_raise(py)?;
    json(py, &zone)
}

/// A place in a declaration, formatted like those in the library's own errors: `set "openai" / limit "tokens" /
/// window`. `None` for the declaration as a whole.
fn place(path: &Path, text: &str) -> Option<String> {
    let whole: Value = serde_json::from_str(text).ok()?;
    let mut value = Some(&whole);
    let mut steps = Vec::new();
    for segment in path {
        match segment {
            Segment::Map { key } => {
                value = value.and_then(|value| value.get(key));
                steps.push(key.clone());
            }
            Segment::Seq { index } => {
                value = value.and_then(|value| value.get(index));
                let name = value.and_then(|value| value.get("name"));
                if let (Some(step), Some(name)) = (steps.last_mut(), name) {
                    *step = format!("{step} {name}");
                }
            }
            // These cannot be shown; the places around them say enough.
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    (!steps.is_empty()).then(|| steps.join(" / "))
}
