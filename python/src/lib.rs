//! The native part of the Python package `shmlimit`: what Python code meets of it is in `../shmlimit`.
//!
//! Every operation holds the interpreter's lock, but for what waits in the queue: a decision takes less time than
//! giving the lock up and getting it back.
//!
//! Unsafe code is in these files alone:
//!
//! - `handle.rs` keeps what borrows from a set beside the set, for callers that have no lifetimes.
//! - `interruption.rs` releases the interpreter's lock in the middle of a wait.

mod amount;
mod check;
mod clock;
mod command_line;
mod credit;
mod declaration;
mod error;
mod handle;
mod interruption;
mod key;
mod log;
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
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }

    #[pymodule_export]
    use crate::check::{Checked, Forecast};
    #[pymodule_export]
    use crate::clock::VirtualClock;
    #[pymodule_export]
    use crate::command_line::limitctl;
    #[pymodule_export]
    use crate::credit::LocalCredit;
    #[pymodule_export]
    use crate::declaration::{Declaration, bound};
    #[pymodule_export]
    use crate::permit::Permit;
    #[pymodule_export]
    use crate::policy_headers::PolicyHeaders;
    #[pymodule_export]
    use crate::pool::Pool;
    #[pymodule_export]
    use crate::ready::Ready;
    #[pymodule_export]
    use crate::refusal::Refusal;
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
