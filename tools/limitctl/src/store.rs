//! Takes part in asking a fleet's store while this program runs.

use shmlimit::Segment;
use shmlimit_fleet::Refresher;

use crate::output;

/// Takes part in asking a segment's store until the process ends. Does nothing if there is no store. If this process
/// cannot ask, that is reported but is no failure: another process may ask, and what is already leased can be taken
/// anyway.
pub fn ask_while_running(segment: &Segment) {
    if segment
        .declaration_in_force()
        .is_ok_and(|it| it.fleet_options().is_none())
    {
        return;
    }
    match Refresher::start(segment) {
        Ok(refresher) => refresher.detach(),
        Err(error) => output::complain(&format!("this process asks for no leases: {error}")),
    }
}
