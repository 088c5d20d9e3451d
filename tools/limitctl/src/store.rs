//! The store of a fleet, asked by this program's process for as long as it runs.

use shmlimit::Segment;
use shmlimit_fleet::Refresher;

use crate::output;

/// Takes part in asking the store of a segment until the process ends; does nothing where it has none. That this process
/// cannot ask is said and is no failure: another process may, and what is leased already can be taken in any case.
pub fn ask_while_running(segment: &Segment) {
    if matches!(segment.fleet().options(), Ok(None)) {
        return;
    }
    match Refresher::start(segment) {
        Ok(refresher) => refresher.detach(),
        Err(error) => output::complain(&format!("this process asks for no leases: {error}")),
    }
}
