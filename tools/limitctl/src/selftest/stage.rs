//! The checks, each on its own segment in the directory under test.

use std::path::Path;
use std::time::{Duration, Instant};

use shmlimit::snapshot::ClockCheck;
use shmlimit::{Error, OpenError, Segment};
use tempfile::TempDir;

use super::act::{Act, declaration};
use super::check::{Check, Seen};
use super::child::wrong;
use super::{deaths, wakes};
use crate::exit::Failure;
use crate::text::human;
use crate::uninterrupted::Uninterrupted;

/// How long the clocks are compared.
const CLOCKS: Duration = Duration::from_millis(100);

/// A check on a segment.
type TryOut = fn(&Act) -> Result<Seen, Failure>;

/// A directory within the one under test, removed at the end.
#[derive(Debug)]
pub struct Stage {
    directory: TempDir,
    /// Must last until everything is removed, so it is dropped after the directory.
    _uninterrupted: Uninterrupted,
}

impl Stage {
    pub fn new(directory: &Path) -> Result<Self, Failure> {
        let uninterrupted = Uninterrupted::begin()?;
        let made = tempfile::Builder::new()
            .prefix("limitctl-selftest-")
            .tempdir_in(directory);
        let made = made.map_err(|source| {
            Failure::while_creating(Error::Open(OpenError::Io {
                action: "create a directory in",
                path: directory.to_owned(),
                source,
            }))
        })?;
        Ok(Self {
            directory: made,
            _uninterrupted: uninterrupted,
        })
    }

    /// Runs all checks one after another, each on a new segment.
    ///
    /// # Errors
    ///
    /// Fails if no segment can be created here.
    pub fn perform(&self) -> Result<Vec<Check>, Failure> {
        let locks = self.locks()?;
        if !locks.passed {
            // Nothing else can be checked here.
            return Ok(vec![locks]);
        }
        let mut checks = vec![locks, Check::of("create", Ok(self.create()?))];
        let on_a_segment: [(&'static str, TryOut); 6] = [
            ("recovery", deaths::recovery),
            ("liveness", deaths::liveness),
            ("exec", deaths::exec),
            ("fork", deaths::fork),
            ("wake", wakes::wake),
            ("hand_over", wakes::hand_over),
        ];
        for (name, check) in on_a_segment {
            let outcome = Act::new(self.directory.path().join(name)).and_then(|act| check(&act));
            checks.push(Check::of(name, outcome));
        }
        checks.push(Check::of("clock", clock()));
        Ok(checks)
    }

    /// Checks that the lock by which a process shows that it is alive lasts as long as the process. Segments need a
    /// file system on which it does.
    fn locks(&self) -> Result<Check, Failure> {
        let outcome = match Segment::create(self.directory.path().join("locks"), &declaration()) {
            Ok(_) => Ok(Seen::new(
                "the lock by which a process shows that it lives needs no descriptor to last",
            )),
            Err(error @ Error::Open(OpenError::LocksNotKept { .. })) => Err(error.into()),
            Err(error) => return Err(Failure::while_creating(error)),
        };
        Ok(Check::of("locks", outcome))
    }

    fn create(&self) -> Result<Seen, Failure> {
        let begun = Instant::now();
        let act = Act::new(self.directory.path().join("create"))?;
        let took = begun.elapsed();
        let size = act.reader()?.snapshot()?.size;
        let what = format!(
            "a segment of {} in {}, with all its space reserved",
            human::bytes(size),
            human::duration(took)
        );
        Ok(Seen::new(what).figure("bytes", size as f64).time("took", took))
    }

    /// Removes everything that was made, and unblocks signals.
    pub fn close(self) -> Result<(), Failure> {
        let path = self.directory.path().to_owned();
        let removed = self.directory.close();
        removed.map_err(|error| Failure::of_system(&error, format_args!("cannot remove {}", path.display())))
    }
}

fn clock() -> Result<Seen, Failure> {
    let check = ClockCheck::run(CLOCKS);
    if !check.is_sound() {
        return Err(wrong(format!(
            "the counter was ahead of the system's clock by up to {} ns, and behind by up to {} ns; {} ns are allowed: declare \
             [segment] clock = \"system\"",
            check.max_ahead_nanos, check.max_behind_nanos, check.bound_nanos
        )));
    }
    let what = if check.reads_counter {
        format!(
            "the processor's counter is read in {:.0} ns, and was at most {} ns behind the system's clock, which takes {:.0} ns",
            check.reading_nanos, check.max_behind_nanos, check.system_reading_nanos
        )
    } else {
        format!(
            "the system's clock is read, in {:.0} ns: the kernel's clock source is not the processor's counter",
            check.system_reading_nanos
        )
    };
    Ok(Seen::new(what)
        .figure("reads_counter", f64::from(u8::from(check.reads_counter)))
        .figure("reading", check.reading_nanos / 1e9)
        .figure("system_reading", check.system_reading_nanos / 1e9)
        .figure("furthest_behind", check.max_behind_nanos as f64 / 1e9))
}
