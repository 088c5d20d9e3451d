//! Reservations in Python.

use pyo3::prelude::*;
use shmlimit::ReserveOutcome;

use crate::answers::permit::Permit;
use crate::answers::refusal::Refusal;
use crate::handle::WithHandle;
use crate::interpreter::error::{OrRaise, exception};
use crate::interpreter::object;
use crate::interpreter::seconds::seconds;

/// Units that are charged now and may be used after a delay. They stay charged if this is garbage-collected.
#[pyclass(module = "shmlimit._native")]
pub struct Reservation {
    reservation: Option<WithHandle<shmlimit::Reservation<'static>>>,
}

/// Turns an outcome into an object: a reservation or a refusal.
pub fn answer<'py>(
    py: Python<'py>,
    outcome: WithHandle<ReserveOutcome<'static>>,
) -> PyResult<Bound<'py, PyAny>> {
    match outcome.separate(ReserveOutcome::into_result) {
        Ok(reservation) => {
            let reservation = Some(reservation);
            Ok(Bound::new(py, Reservation { reservation })?.into_any())
        }
        Err(refusal) => object::make(py, Refusal::new(refusal)),
    }
}

impl Reservation {
    fn kept(&mut self, py: Python<'_>) -> PyResult<&mut WithHandle<shmlimit::Reservation<'static>>> {
        self.reservation.as_mut().ok_or_else(|| is_gone(py))
    }
}

fn is_gone(py: Python<'_>) -> PyErr {
    let message = "the reservation was cancelled, or made a permit";
    exception(py, "AlreadyReleased", message.to_owned())
}

#[pymethods]
impl Reservation {
    /// Seconds to wait, counted from the reservation.
    #[getter]
    fn delay(&mut self, py: Python<'_>) -> PyResult<f64> {
        Ok(seconds(self.kept(py)?.get().delay()))
    }

    /// Seconds left of the delay.
    #[getter]
    fn remaining_delay(&mut self, py: Python<'_>) -> PyResult<f64> {
        Ok(seconds(self.kept(py)?.get().remaining_delay()))
    }

    /// Gives back what was reserved, as far as the algorithms refund, unless the delay is already over.
    ///
    /// Returns:
    ///     Whether it was in time.
    fn cancel(&mut self, py: Python<'_>) -> PyResult<bool> {
        let in_time = self.kept(py)?.get_mut().cancel().or_raise(py)?;
        if in_time {
            self.reservation = None;
        }
        Ok(in_time)
    }

    /// Turns it into a permit, to settle the actual usage.
    ///
    /// Returns:
    ///     The permit.
    #[pyo3(name = "into_permit")]
    fn permit<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let kept = self.reservation.take().ok_or_else(|| is_gone(py))?;
        object::make(py, Permit::new(kept.map(shmlimit::Reservation::into_permit)))
    }

    fn __bool__(&self) -> bool {
        true
    }
}
