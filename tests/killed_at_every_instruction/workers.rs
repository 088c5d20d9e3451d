//! Two or more processes that share the work. Each has one thread, so that it may fork, and one processor, which it
//! shares with the child that it steps.
#![allow(unsafe_code, reason = "forks")]

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, pipe};

use crate::report::{Delays, Tally};

/// Words of a result: the number of the job and the counts, and then the delays.
const COUNTS: usize = 7;
const WORDS: usize = COUNTS + Delays::WORDS;

const _: () = assert!(8 * WORDS <= nix::libc::PIPE_BUF);

/// Does all jobs and hands their results to `done`, by number. Panics if a worker fails, or if no job ends for
/// `timeout`.
pub fn work(
    jobs: usize,
    perform: impl Fn(usize) -> Tally,
    timeout: Duration,
    mut done: impl FnMut(usize, Tally),
) {
    let (queue, feeder) = pipe().expect("a pipe");
    let (results, reporter) = pipe().expect("a pipe");
    let numbers: Vec<u8> = (0..jobs)
        .flat_map(|job| u16::try_from(job).expect("few jobs").to_ne_bytes())
        .collect();
    // The numbers fit into the pipe, so no process needs to read yet.
    std::fs::File::from(feeder).write_all(&numbers).expect("room");
    let workers: Vec<Pid> = processors()
        .into_iter()
        // SAFETY: this process has one thread.
        .map(|processor| match unsafe { fork() }.expect("a worker") {
            ForkResult::Child => {
                let served = catch_unwind(AssertUnwindSafe(|| serve(processor, &queue, &reporter, &perform)));
                // SAFETY: ends the process at once, without the parent's destructors.
                unsafe { libc::_exit(if served.is_ok() { 0 } else { 101 }) }
            }
            ForkResult::Parent { child } => child,
        })
        .collect();
    drop((queue, reporter));
    let mut results = std::fs::File::from(results);
    while let Some(result) = next_result(&mut results, timeout).unwrap_or_else(|| {
        for worker in &workers {
            // The processes that the workers trace die with them.
            let _ = kill(*worker, Signal::SIGKILL);
        }
        panic!("no job has come to its end within {timeout:?}");
    }) {
        let [job, instructions, states, torn, stuck, lost, repeated] =
            *result.first_chunk().expect("as many as were sent");
        let tally = Tally {
            instructions,
            states,
            torn,
            stuck,
            lost,
            repeated,
            delays: Delays::from_words(&result[COUNTS..]),
        };
        done(usize::try_from(job).expect("small"), tally);
    }
    for worker in workers {
        assert_eq!(
            waitpid(worker, None),
            Ok(WaitStatus::Exited(worker, 0)),
            "a worker failed"
        );
    }
}

/// The processors to work on.
fn processors() -> Vec<usize> {
    let set = sched_getaffinity(Pid::this()).expect("an affinity");
    (0..CpuSet::count())
        .filter(|processor| set.is_set(*processor) == Ok(true))
        .collect()
}

fn serve(processor: usize, queue: &OwnedFd, reporter: &OwnedFd, perform: impl Fn(usize) -> Tally) {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).expect("bound to the parent");
    let mut own = CpuSet::new();
    own.set(processor).expect("a processor");
    // Stepping is twice as fast if tracer and child need not wake each other's processor.
    sched_setaffinity(Pid::this(), &own).expect("an affinity");
    let mut queue = std::fs::File::from(queue.try_clone().expect("a descriptor"));
    let mut reporter = std::fs::File::from(reporter.try_clone().expect("a descriptor"));
    let mut job = [0; 2];
    while queue.read(&mut job).expect("a job") == job.len() {
        // A pipe gives out pairs of bytes if pairs are written, as long as no process reads an odd number of bytes.
        let number = u16::from_ne_bytes(job);
        let tally = perform(usize::from(number));
        let counts: [u64; COUNTS] = [
            u64::from(number),
            tally.instructions,
            tally.states,
            tally.torn,
            tally.stuck,
            tally.lost,
            tally.repeated,
        ];
        let words = counts.into_iter().chain(tally.delays.to_words());
        // Written in one piece, because it is shorter than PIPE_BUF.
        let bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
        reporter.write_all(&bytes).expect("a reader");
    }
}

/// The next result; `Some(None)` after the last, `None` if none comes in time.
fn next_result(results: &mut std::fs::File, timeout: Duration) -> Option<Option<[u64; WORDS]>> {
    use std::os::fd::AsFd;
    let mut bytes = [[0_u8; 8]; WORDS];
    let timeout = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    let timeout = PollTimeout::try_from(timeout).expect("not negative");
    let mut ready = [PollFd::new(results.as_fd(), PollFlags::POLLIN)];
    if poll(&mut ready, timeout).expect("a poll") == 0 {
        return None;
    }
    match results.read(bytes.as_flattened_mut()).expect("a result") {
        0 => Some(None),
        size => {
            assert_eq!(size, 8 * WORDS, "results are written in one piece");
            Some(Some(bytes.map(u64::from_ne_bytes)))
        }
    }
}
