//! What HTTP responses say about limits.

use std::collections::HashMap;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use shmlimit::headers::{Advertise, Fields, Problem};

use crate::answers::check::{Checked, CheckedMethods};
use crate::answers::permit::{Permit, PermitMethods};
use crate::answers::refusal::{Refusal, RefusalMethods};
use crate::interpreter::error::chosen;
use crate::segments::set::SetHandle;

/// The header fields and problem details of responses to requests that a set of limits decides on.
///
/// An answer in place of the application's consists of a status, a body of type `application/problem+json`, and the
/// other header fields.
#[pyclass(frozen, module = "shmlimit._native")]
pub struct PolicyHeaders {
    headers: shmlimit::headers::PolicyHeaders,
    advertise: Advertise,
}

/// An admitted request.
#[derive(FromPyObject)]
enum Admitted<'py> {
    Permit(Bound<'py, PermitMethods>),
    Checked(Bound<'py, CheckedMethods>),
}

/// A refused request.
#[derive(FromPyObject)]
enum Refused<'py> {
    Refusal(Bound<'py, RefusalMethods>),
    Checked(Bound<'py, CheckedMethods>),
}

type HeaderFields = Vec<(&'static str, String)>;
type Answer<'py> = (u16, Bound<'py, PyBytes>, HeaderFields);

fn header_fields(fields: &Fields) -> HeaderFields {
    fields
        .iter()
        .map(|(name, value)| (name, value.into_owned()))
        .collect()
}

fn answer<'py>(py: Python<'py>, problem: &Problem) -> Answer<'py> {
    let body = PyBytes::new(py, problem.body.as_bytes());
    (problem.status, body, header_fields(&problem.fields))
}

#[pymethods]
impl PolicyHeaders {
    /// Describes the limits of a set.
    ///
    /// Args:
    ///     limits: The set.
    ///     advertise: Which responses report the state of the limits: `"always"`, `"when_refused"` or `"never"`.
    ///     quota_units: For each rate limit or budget, the unit in which it is described. Those without a unit are left
    ///         out.
    ///     prefix: A prefix for the names of limits.
    #[new]
    #[pyo3(signature = (limits, *, advertise="always", quota_units=None, prefix=""))]
    fn new(
        limits: &Bound<'_, SetHandle>,
        advertise: &str,
        quota_units: Option<HashMap<String, String>>,
        prefix: &str,
    ) -> PyResult<Self> {
        let advertise: Advertise = chosen("advertise", advertise)?;
        let headers = shmlimit::headers::PolicyHeaders::new(&limits.get().of_set().set).policy_prefix(prefix);
        let units = quota_units.into_iter().flatten();
        let headers = units.fold(headers, |headers, (limit, unit)| headers.quota_unit(limit, unit));
        Ok(Self { headers, advertise })
    }

    /// The header fields of the response to an admitted request.
    fn admission(&self, admitted: Admitted<'_>) -> PyResult<HeaderFields> {
        let fields = match admitted {
            Admitted::Permit(permit) => {
                let permit = Permit::of_object(&permit)?;
                self.headers.admission(permit.verdicts(), self.advertise)
            }
            Admitted::Checked(checked) => {
                let checked = Checked::of_object(&checked)?;
                if !checked.is_admitted() {
                    return Err(PyValueError::new_err("it was refused"));
                }
                self.headers.admission(checked.verdicts(), self.advertise)
            }
        };
        Ok(header_fields(&fields))
    }

    /// The answer to a refused request.
    fn refusal<'py>(&self, py: Python<'py>, refused: Refused<'py>) -> PyResult<Answer<'py>> {
        let problem = match refused {
            Refused::Refusal(refusal) => self
                .headers
                .refusal(Refusal::of_object(&refusal)?, self.advertise),
            Refused::Checked(checked) => {
                let refusal = Checked::of_object(&checked)?.refusal();
                let refusal = refusal.ok_or_else(|| PyValueError::new_err("it was admitted"))?;
                self.headers.refusal(&refusal, self.advertise)
            }
        };
        Ok(answer(py, &problem))
    }

    /// The answer to a request that takes more than a limit can ever admit.
    fn never_admissible<'py>(&self, py: Python<'py>, limit: &str) -> Answer<'py> {
        answer(py, &self.headers.never_admissible(limit, self.advertise))
    }

    /// The answer to a request without a key.
    #[staticmethod]
    fn without_a_key(py: Python<'_>) -> Answer<'_> {
        answer(py, &Problem::without_a_key())
    }

    /// The answer if the limits could not be asked.
    #[staticmethod]
    fn failed(py: Python<'_>) -> Answer<'_> {
        answer(py, &Problem::failed())
    }
}
