//! A clock that tests move, by hand or by waiting.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::interpreter::seconds::{duration, seconds};

/// A clock that stands still until it is moved, or until somebody waits.
#[pyclass(subclass, frozen, module = "shmlimit._native")]
pub struct VirtualClock {
    pub clock: shmlimit::VirtualClock,
}

#[pymethods]
impl VirtualClock {
    #[new]
    #[pyo3(signature = (now, *, auto_advance=true))]
    fn new(now: &Bound<'_, PyAny>, auto_advance: bool) -> PyResult<Self> {
        Ok(Self {
            clock: shmlimit::VirtualClock::new(duration(now)?).auto_advance(auto_advance),
        })
    }

    /// The clock's time: seconds since the Unix epoch.
    #[getter]
    fn now(&self) -> f64 {
        seconds(self.clock.now())
    }

    /// Moves the clock forward by this many seconds, which must not be negative.
    fn _advance(&self, seconds: &Bound<'_, PyAny>) -> PyResult<()> {
        let later = self.clock.now().saturating_add(duration(seconds)?);
        self.clock.advance_to(later);
        Ok(())
    }

    /// Moves the clock to an instant, in seconds since the Unix epoch.
    fn _set(&self, now: &Bound<'_, PyAny>) -> PyResult<()> {
        let instant = duration(now)?;
        if instant < self.clock.now() {
            return Err(PyValueError::new_err(format!(
                "{} has passed: the clock stands at {:.9} seconds since the epoch, and only goes forward",
                now.repr()?,
                self.clock.now().as_secs_f64(),
            )));
        }
        self.clock.advance_to(instant);
        Ok(())
    }
}
