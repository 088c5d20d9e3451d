//! The native part of the Python package `shmlimit`. Its public face is in `../shmlimit`.
//!
//! Every operation holds the GIL except waiting in the queue: a decision takes less time than releasing the GIL and
//! taking it again.
//!
//! Only these files contain unsafe code:
//!
//! - `interpreter/call.rs` lets the interpreter call the methods of every decision without pyo3's wrappers.
//! - `handle/mod.rs` keeps a borrower of a set beside the set, because Python callers have no lifetimes.
//! - `interpreter/interruption.rs` releases the GIL in the middle of a wait.
//! - `interpreter/object.rs` makes the objects of every decision, and reuses their memory.

mod answers;
mod arguments;
mod command_line;
mod handle;
mod interpreter;
mod segments;

use pyo3::prelude::*;

// In a free-threaded interpreter, importing this enables the GIL: much here relies on it.
#[pymodule(gil_used = true)]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let py = module.py();
        crate::interpreter::only::require(py)?;
        crate::segments::acquiring::add_to_class(py)?;
        module.add(
            "Checked",
            crate::interpreter::object::class::<crate::answers::check::Checked>(py)?,
        )?;
        module.add(
            "Permit",
            crate::interpreter::object::class::<crate::answers::permit::Permit>(py)?,
        )?;
        module.add(
            "Refusal",
            crate::interpreter::object::class::<crate::answers::refusal::Refusal>(py)?,
        )?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }

    #[pymodule_export]
    use crate::answers::check::Forecast;
    #[pymodule_export]
    use crate::answers::reservation::Reservation;
    #[pymodule_export]
    use crate::answers::settlement::Settlement;
    #[pymodule_export]
    use crate::answers::verdict::Verdict;
    #[pymodule_export]
    use crate::arguments::declaration::{Declaration, bound, time_zone};
    #[pymodule_export]
    use crate::command_line::limitctl;
    #[pymodule_export]
    use crate::handle::fleet_thread::start_fleet_threads_after_fork;
    #[pymodule_export]
    use crate::interpreter::ready::Ready;
    #[pymodule_export]
    use crate::segments::clock::VirtualClock;
    #[pymodule_export]
    use crate::segments::policy_headers::PolicyHeaders;
    #[pymodule_export]
    use crate::segments::pool::Pool;
    #[pymodule_export]
    use crate::segments::segment::{Segment, remove};
    #[pymodule_export]
    use crate::segments::set::SetHandle;
    #[pymodule_export]
    use crate::segments::waiting::Waiting;
    #[pymodule_export]
    use crate::segments::wake_event::WakeEvent;
}
