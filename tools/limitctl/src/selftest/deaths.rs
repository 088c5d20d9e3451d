//! What the death of a process leaves behind, and whether the death is noticed.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::act::{Act, CAPACITY};
use super::check::Seen;
use super::child::{Child, DEADLINE, Part, eventually, now, wrong};
use crate::exit::Failure;
use crate::text::human;

/// A process is killed while it holds a set's lock, in the middle of an operation. The next process takes over the
/// lock, and finds everything in order.
pub fn recovery(act: &Act) -> Result<Seen, Failure> {
    let child = Child::start(|_: &mut Part| {
        loop {
            drop(act.take(1)?);
        }
    })?;
    stop_with_the_lock(act, &child)?;
    let killed = child.kill()?;
    // The kernel hands on the lock when it tears down the process. Until then, this waits for it.
    let permit = act
        .take(1)?
        .ok_or_else(|| wrong("a place that no process holds is not available"))?;
    let took = Duration::from_nanos(now().saturating_sub(killed));
    drop(permit);
    child.end();
    let snapshot = act.segment.snapshot()?;
    let recoveries: u64 = snapshot.sets.iter().map(|set| set.counts.recoveries).sum();
    if recoveries != 1 {
        return Err(wrong(format!(
            "a process died with the lock, and {recoveries} recoveries were counted"
        )));
    }
    drop(act.take_all("after a recovery")?);
    let what = format!(
        "a process killed with the lock: another had it after {}, and all was in order",
        human::duration(took)
    );
    Ok(Seen::new(what).time("took", took))
}

/// Stops a child at an instant when it has the lock.
fn stop_with_the_lock(act: &Act, child: &Child) -> Result<(), Failure> {
    let reader = act.reader()?;
    let deadline = Instant::now() + DEADLINE;
    while Instant::now() < deadline {
        child.stop()?;
        let snapshot = reader.snapshot()?;
        if snapshot.sets.iter().any(|set| set.lock.is_held()) {
            return Ok(());
        }
        child.go_on()?;
    }
    Err(wrong(
        "a process was stopped again and again, and never had the lock",
    ))
}

/// By the lock on its byte of the file, a stopped process counts as alive, and a killed one as dead.
pub fn liveness(act: &Act) -> Result<Seen, Failure> {
    let reader = act.reader()?;
    let holder = act.start_holder()?;
    holder.stop()?;
    if act.is_alive(&reader, &holder)? != Some(true) || act.take(1)?.is_some() {
        return Err(wrong("a process that is stopped was taken for dead"));
    }
    let killed = holder.kill()?;
    eventually("a killed process is seen to be dead", || {
        Ok(act.is_alive(&reader, &holder)? == Some(false))
    })?;
    let took = Duration::from_nanos(now().saturating_sub(killed));
    eventually("what a killed process held is given back", || {
        Ok(act.take(CAPACITY)?.is_some())
    })?;
    let what = format!(
        "a stopped process was taken for alive, and a killed one for dead, after {}",
        human::duration(took)
    );
    Ok(Seen::new(what).time("took", took))
}

/// After a process executes another program, it no longer holds anything, although its id stays.
pub fn exec(act: &Act) -> Result<Seen, Failure> {
    let reader = act.reader()?;
    let mut holder = Child::start(|part: &mut Part| {
        std::mem::forget(act.take_all("in a child")?);
        part.report(0)?;
        part.wait_for_order()?;
        // The shell reads until the parent drops its end of the pipe.
        let error = Command::new("sh")
            .args(["-c", "read line"])
            .stdin(part.orders()?)
            .exec();
        Err(Failure::of_system(&error, "cannot execute sh"))
    })?;
    holder.report()?;
    if act.is_alive(&reader, &holder)? != Some(true) {
        return Err(wrong("a live process was taken for dead"));
    }
    holder.order()?;
    let ordered = now();
    eventually(
        "a process that executes another program gives its place up",
        || Ok(act.is_alive(&reader, &holder)? == Some(false)),
    )?;
    let took = Duration::from_nanos(now().saturating_sub(ordered));
    eventually("what it held is given back", || Ok(act.take(CAPACITY)?.is_some()))?;
    if !holder.executes("sh") {
        return Ok(Seen::new("not tested: there is no sh to execute"));
    }
    let what = format!(
        "what a process held was given back when it executed another program, after {}",
        human::duration(took)
    );
    Ok(Seen::new(what).time("took", took))
}

/// A forked child does not keep its dead parent's slot, nor anything that the parent held.
pub fn fork(act: &Act) -> Result<Seen, Failure> {
    let reader = act.reader()?;
    let mut parent = Child::start(|part: &mut Part| {
        let _held = act.take_all("in a child")?;
        let orphan = part.start_orphan()?;
        part.report(orphan)?;
        loop {
            std::thread::park();
        }
    })?;
    let orphan = parent.report()?;
    parent.kill()?;
    eventually("the parent of a live child is seen to be dead", || {
        Ok(act.is_alive(&reader, &parent)? == Some(false))
    })?;
    eventually("what it held is given back", || Ok(act.take(CAPACITY)?.is_some()))?;
    if !Path::new(&format!("/proc/{orphan}")).exists() {
        return Err(wrong(
            "the child of a killed process ended with it, so nothing was tested",
        ));
    }
    Ok(Seen::new("a live child kept nothing of its killed parent"))
}
