//! The demonstration: sends real requests, kills one worker while it holds permits, and looks at the result.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{PipeReader, Read, Write, pipe};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde::Serialize;
use serde::de::DeserializeOwned;
use shmlimit::Segment;
use shmlimit::declare::Kind;
use shmlimit::snapshot::SetSnapshot;

use crate::Failure;
use crate::client::{self, Tally};
use crate::crew::{Crew, Replaced, Worker, fork_child, wait_for_signal};
use crate::keys::{self, KeyTally};
use crate::options::Options;
use crate::rules::{AllRules, Rules};

/// The time between two looks at the segment while nothing special happens.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The time between two looks for the killed worker's permits.
const LOOK_CLOSELY_EVERY: Duration = Duration::from_micros(50);

/// How long to look for the killed worker's permits.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// A request that is refused for want of a place this long after the kill should have got one of the dead worker's.
const SOON: Duration = Duration::from_millis(100);

/// What the parent found.
#[derive(Clone, Debug)]
pub struct Findings {
    pub tally: Tally,
    pub looks: Looks,
    pub killed: Option<Killed>,
    /// The results of requests that named a key, if the server has limits for them.
    pub keys: Option<KeyTally>,
    /// All workers, in the order in which they started.
    pub workers: Vec<Worker>,
    /// The set after the last answer.
    pub end: SetSnapshot,
}

/// What snapshots of the segment showed, taken without a lock while it was in use.
#[derive(Clone, Debug, Default)]
pub struct Looks {
    pub count: u64,
    /// The most units held at once, by limit.
    pub max_held: BTreeMap<String, u64>,
}

/// A worker that was killed.
#[derive(Clone, Debug)]
pub struct Killed {
    pub worker: Worker,
    /// The time since the client started.
    pub after: Duration,
    /// The permits that it held when it died, by their serial numbers, including those granted to its waiting requests,
    /// which had not been notified yet.
    pub held: BTreeSet<u64>,
    /// The time from the kill until no process held them any more.
    pub freed_after: Option<Duration>,
    /// Requests that were refused although they should have got what the dead worker held.
    pub refused_in_vain: u64,
    pub replacement: Option<(Worker, Duration)>,
}

/// A running server, and its options.
#[derive(Clone, Copy)]
pub struct Running<'a> {
    pub segment: &'a Segment,
    pub rules: &'a AllRules,
    pub server: SocketAddr,
    pub options: &'a Options,
    pub signals: &'a SigSet,
}

/// What the parent watches and acts on while the client runs.
struct Watch<'a, 'b> {
    segment: &'a Segment,
    rules: &'a Rules,
    crew: &'a mut Crew<'b>,
    looks: Looks,
}

/// Runs the client against the workers, and kills one worker on the way. Returns `None` if interrupted.
pub fn run(running: &Running<'_>, crew: &mut Crew<'_>) -> Result<Option<Findings>, Failure> {
    let Running {
        segment,
        rules,
        server,
        options,
        signals,
    } = *running;
    let mut workers = crew.workers().to_vec();
    let everyone = &rules.everyone;
    let mut client =
        ClientProcess::start(|| client::drive(server, options.connections, options.duration(), everyone))?;
    let mut watch = Watch {
        segment,
        rules: everyone,
        crew,
        looks: Looks::default(),
    };
    let started = Instant::now();
    let mut killed = None;
    let tally = loop {
        if let Some(Signal::SIGINT | Signal::SIGTERM) = wait_for_signal(signals, LOOK_EVERY)? {
            return Ok(None);
        }
        if let Some(tally) = client.finished()? {
            break tally;
        }
        if let Some(Replaced { old, status, .. }) = watch.crew.replace_ended()?.first() {
            return Err(format!("worker {} ended by itself: {status:?}", old.pid).into());
        }
        watch.look()?;
        if killed.is_none() && started.elapsed() >= options.duration() * 2 / 5 {
            killed = watch.kill_one_that_holds(started)?;
            workers.extend(
                killed
                    .as_ref()
                    .and_then(|killed| killed.replacement)
                    .map(|(new, _)| new),
            );
        }
    };
    // A process takes back the permits of the dead when it needs them. If none did so far, this does it.
    segment.recover()?;
    let keys = match &rules.each_key {
        Some(rules) if options.keys > 0 => {
            let mut client = ClientProcess::start(|| keys::drive(server, options.keys, rules))?;
            loop {
                if let Some(Signal::SIGINT | Signal::SIGTERM) = wait_for_signal(signals, LOOK_EVERY)? {
                    return Ok(None);
                }
                if let Some(tally) = client.finished()? {
                    break Some(tally);
                }
            }
        }
        _ => None,
    };
    let end = watch.look()?;
    let looks = watch.looks;
    Ok(Some(Findings {
        tally,
        looks,
        killed,
        keys,
        workers,
        end,
    }))
}

impl Watch<'_, '_> {
    fn look(&mut self) -> Result<SetSnapshot, Failure> {
        let snapshot = self.segment.snapshot()?;
        let set = snapshot
            .sets
            .into_iter()
            .find(|set| set.name == self.rules.set)
            .ok_or("the set is gone")?;
        if !set.torn {
            self.looks.count += 1;
            for limit in self.rules.of_kind(Kind::Concurrency) {
                let held: u64 = set
                    .holds
                    .iter()
                    .filter_map(|hold| hold.amounts.get(&limit.name))
                    .sum();
                let max = self.looks.max_held.entry(limit.name.clone()).or_default();
                *max = held.max(*max);
            }
        }
        Ok(set)
    }

    /// Kills the worker that holds the most permits. Returns `None` if no worker holds any just now.
    fn kill_one_that_holds(&mut self, started: Instant) -> Result<Option<Killed>, Failure> {
        let set = self.look()?;
        let workers = self.crew.workers().iter();
        let Some(worker) = workers
            .max_by_key(|worker| held_by(&set, worker.pid).len())
            .copied()
        else {
            return Ok(None);
        };
        // Stop it first, so that what it holds cannot change between the look and the kill.
        kill(worker.pid, Signal::SIGSTOP)?;
        match waitpid(worker.pid, Some(WaitPidFlag::WUNTRACED))? {
            WaitStatus::Stopped(..) => {}
            status => return Err(format!("worker {} ended by itself: {status:?}", worker.pid).into()),
        }
        let set = self.look()?;
        let held = held_by(&set, worker.pid);
        // In the middle of an operation, it is not decided yet whether the permit is held: recovery undoes or finishes
        // the operation.
        if set.torn || held.is_empty() || set.lock.holder_pid == u32::try_from(worker.pid.as_raw()).ok() {
            kill(worker.pid, Signal::SIGCONT)?;
            return Ok(None);
        }

        let kill_time = Instant::now();
        kill(worker.pid, Signal::SIGKILL)?;
        let mut killed = Killed {
            worker,
            after: kill_time - started,
            held,
            freed_after: None,
            refused_in_vain: 0,
            replacement: None,
        };
        let mut refused_soon = None;
        while kill_time.elapsed() < LONGEST_WAIT
            && (killed.freed_after.is_none() || killed.replacement.is_none())
        {
            let set = self.look()?;
            let is_held = set.holds.iter().any(|hold| killed.held.contains(&hold.serial));
            if killed.freed_after.is_none() && !set.torn && !is_held {
                killed.freed_after = Some(kill_time.elapsed());
            }
            if killed.freed_after.is_none() && kill_time.elapsed() > SOON {
                let refused = set.counts.refused_concurrency;
                killed.refused_in_vain = refused - *refused_soon.get_or_insert(refused);
            }
            if killed.replacement.is_none()
                && let Some(replaced) = self.crew.replace_if_ended(worker)?
            {
                killed.replacement = Some((replaced.new, kill_time.elapsed()));
            }
            thread::sleep(LOOK_CLOSELY_EVERY);
        }
        Ok(Some(killed))
    }
}

/// The serial numbers of the permits that a process holds.
fn held_by(set: &SetSnapshot, pid: Pid) -> BTreeSet<u64> {
    let pid = u64::try_from(pid.as_raw()).ok();
    let holds = set.holds.iter().filter(|hold| hold.owner_pid == pid);
    holds.map(|hold| hold.serial).collect()
}

/// The client, in its own process: the parent must stay free of threads and runtimes to be able to fork.
pub struct ClientProcess<T> {
    pid: Pid,
    is_running: bool,
    tally: PipeReader,
    what: PhantomData<T>,
}

impl<T: Serialize + DeserializeOwned> ClientProcess<T> {
    pub fn start(drive: impl FnOnce() -> Result<T, Failure>) -> Result<Self, Failure> {
        let (reader, mut writer) = pipe()?;
        let pid = fork_child(|| {
            // These are a few bytes for each worker or key, far less than a pipe holds, so this cannot block on the
            // parent.
            writer.write_all(&serde_json::to_vec(&drive()?)?)?;
            Ok(())
        })?;
        Ok(Self {
            pid,
            is_running: true,
            tally: reader,
            what: PhantomData,
        })
    }

    /// Its result, once it has ended.
    pub fn finished(&mut self) -> Result<Option<T>, Failure> {
        match waitpid(self.pid, Some(WaitPidFlag::WNOHANG))? {
            WaitStatus::StillAlive => Ok(None),
            WaitStatus::Exited(_, 0) => {
                self.is_running = false;
                let mut tally = Vec::new();
                self.tally.read_to_end(&mut tally)?;
                Ok(Some(serde_json::from_slice(&tally)?))
            }
            status => {
                self.is_running = false;
                Err(format!("the client failed: {status:?}").into())
            }
        }
    }
}

impl<T> Drop for ClientProcess<T> {
    fn drop(&mut self) {
        if self.is_running {
            // It has not been waited for, so no other process can have its id.
            let _ = kill(self.pid, Signal::SIGKILL);
            let _ = waitpid(self.pid, None);
        }
    }
}
