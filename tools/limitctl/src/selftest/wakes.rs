//! How long it takes a waiting process to go on.

use std::time::Duration;

use super::act::{Act, CAPACITY};
use super::check::{Seen, Times};
use super::child::{Child, Part, eventually, now};
use crate::exit::Failure;

/// How often each time is measured.
const WAKES: usize = 200;
const DEATHS: usize = 20;
/// A waiter starts to watch for deaths after it has waited for a few milliseconds.
const WATCHES_AFTER: Duration = Duration::from_millis(10);

/// A waiter sleeps until the places that it waits for are released, and is then granted them.
pub fn wake(act: &Act) -> Result<Seen, Failure> {
    let mut waiter = start_waiter(act)?;
    let mut times = Times::default();
    for _ in 0..WAKES {
        let held = act.take_all("between two waits")?;
        queue(act, &mut waiter)?;
        let released = now();
        drop(held);
        times.add(Duration::from_nanos(waiter.report()?.saturating_sub(released)));
        waiter.report()?;
    }
    let what = format!("from a release to the waiter that goes on: {}", times.text());
    Ok(times.add_to(Seen::new(what)))
}

/// A waiter is granted what a killed process held.
pub fn hand_over(act: &Act) -> Result<Seen, Failure> {
    let mut waiter = start_waiter(act)?;
    let mut times = Times::default();
    for _ in 0..DEATHS {
        let holder = act.start_holder()?;
        queue(act, &mut waiter)?;
        std::thread::sleep(WATCHES_AFTER);
        let killed = holder.kill()?;
        times.add(Duration::from_nanos(waiter.report()?.saturating_sub(killed)));
        waiter.report()?;
        holder.end();
    }
    let what = format!(
        "from the death of a holder to the waiter that goes on: {}",
        times.text()
    );
    Ok(times.add_to(Seen::new(what)))
}

/// Starts a child that, at each order, waits for all places, gives them back, reports when it got them, and reports
/// that it is done.
fn start_waiter(act: &Act) -> Result<Child, Failure> {
    Child::start(|part: &mut Part| {
        let request = act.set.request().with("places", CAPACITY)?;
        loop {
            part.wait_for_order()?;
            let outcome = request.acquire(super::child::DEADLINE)?;
            let granted = now();
            drop(outcome);
            part.report(granted)?;
            part.report(0)?;
        }
    })
}

/// Makes the child wait, and returns once it sleeps in the queue.
fn queue(act: &Act, waiter: &mut Child) -> Result<(), Failure> {
    waiter.order()?;
    eventually("a child is in the queue", || {
        let snapshot = act.segment.snapshot()?;
        Ok(snapshot.sets.iter().any(|set| !set.tickets.is_empty()))
    })?;
    waiter.wait_until_it_sleeps()
}
