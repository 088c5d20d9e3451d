//! The native part of the Python package `shmlimit`: what Python code meets of it is in `../shmlimit`.
//!
//! Every operation holds the interpreter's lock, but for what waits in the queue: a decision takes less time than
//! giving the lock up and getting it back.
//!
//! Unsafe code is in these files alone:
//!
//! - `call.rs` is called by the interpreter for every decision, without what surrounds other methods.
//! - `handle.rs` keeps what borrows from a set beside the set, for callers that have no lifetimes.
//! - `interruption.rs` releases the interpreter's lock in the middle of a wait.
//! - `object.rs` makes the objects of every decision, and uses their memory again.

mod acquiring;
mod amount;
mod call;
mod check;
mod clock;
mod command_line;
mod declaration;
mod error;
mod fleet_thread;
mod handle;
mod interruption;
mod key;
mod log;
mod object;
mod permit;
mod policy_headers;
mod pool;
mod ready;
mod refusal;
mod request;
mod request_log;
mod reservation;
mod response;
mod seconds;
mod segment;
mod set;
mod settlement;
mod value;
mod verdict;
mod waiting;
mod wake_event;

use pyo3::prelude::*;

// Where the interpreter can run without its lock, importing this turns the lock on: much here relies on it.
#[pymodule(gil_used = true)]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let py = module.py();
        crate::acquiring::add_to_class(py)?;
        module.add("Checked", crate::object::class::<crate::check::Checked>(py)?)?;
        module.add("Permit", crate::object::class::<crate::permit::Permit>(py)?)?;
        module.add("Refusal", crate::object::class::<crate::refusal::Refusal>(py)?)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }

    #[pymodule_export]
    use crate::check::Forecast;
    #[pymodule_export]
    use crate::clock::VirtualClock;
    #[pymodule_export]
    use crate::command_line::limitctl;
    #[pymodule_export]
    use crate::declaration::{Declaration, bound};
    #[pymodule_export]
    use crate::fleet_thread::start_fleet_threads_after_fork;
    #[pymodule_export]
    use crate::policy_headers::PolicyHeaders;
    #[pymodule_export]
    use crate::pool::Pool;
    #[pymodule_export]
    use crate::ready::Ready;
    #[pymodule_export]
    use crate::reservation::Reservation;
    #[pymodule_export]
    use crate::segment::{Segment, remove};
    #[pymodule_export]
    use crate::set::Limits;
    #[pymodule_export]
    use crate::settlement::Settlement;
    #[pymodule_export]
    use crate::verdict::Verdict;
    #[pymodule_export]
    use crate::waiting::Waiting;
    #[pymodule_export]
    use crate::wake_event::WakeEvent;
}
