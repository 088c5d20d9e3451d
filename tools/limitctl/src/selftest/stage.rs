//! The test's own segments, in the directory under test, and what the checks do with them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use shmlimit::{
    ClockCheck, Declaration, Error, Limit, LimitSet, OpenError, Permit, Segment, SegmentReader,
    SetDeclaration,
};
use tempfile::TempDir;

use super::check::{Check, Seen};
use super::child::{Child, Part, wrong};
use super::{deaths, wakes};
use crate::exit::Failure;
use crate::text::human;
use crate::uninterrupted::Uninterrupted;

/// The set that the checks use.
const SET: &str = "selftest";
/// The capacity of its only limit.
pub const CAPACITY: u64 = 2;
/// For how long the clocks are compared.
const CLOCKS: Duration = Duration::from_millis(100);

/// A check on a segment.
type TryOut = fn(&Act) -> Result<Seen, Failure>;

/// A directory within the one under test, removed at the end.
#[derive(Debug)]
pub struct Stage {
    directory: TempDir,
    /// Lasts until everything is removed, so it is dropped after the directory.
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

    /// Runs all checks one after the other, each on a new segment.
    ///
    /// # Errors
    ///
    /// If no segment can be created here.
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

    /// Segments need a file system on which the lock that shows that a process is alive lasts as long as the process.
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
            "a segment of {} in {}, no byte of it without a place",
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

fn declaration() -> Declaration {
    let limit = Limit::concurrency("places", CAPACITY);
    let set = SetDeclaration::new(SET).waiters(16).add_limit(limit);
    Declaration::new().participants(16).add_set(set)
}

/// The segment of one check.
pub struct Act {
    path: PathBuf,
    pub segment: Segment,
    pub set: LimitSet,
}

impl Act {
    fn new(path: PathBuf) -> Result<Self, Failure> {
        let segment = Segment::create(&path, &declaration()).map_err(Failure::while_creating)?;
        let set = segment.set(SET)?;
        Ok(Self { path, segment, set })
    }

    pub fn reader(&self) -> Result<SegmentReader, Failure> {
        Ok(SegmentReader::open(&self.path)?)
    }

    /// Takes this many places at once; `None` if they are not available.
    pub fn take(&self, places: u64) -> Result<Option<Permit<'_>>, Failure> {
        let request = self.set.request().with("places", places)?;
        Ok(self.set.try_acquire(&request)?.into_result().ok())
    }

    /// Takes all places, which must be available.
    pub fn take_all(&self, when: &str) -> Result<Permit<'_>, Failure> {
        self.take(CAPACITY)?
            .ok_or_else(|| wrong(format!("not all places are to be had {when}")))
    }

    /// Starts a child that takes all places, reports it, and holds them until it is killed or told to go on.
    pub fn start_holder(&self) -> Result<Child, Failure> {
        let mut holder = Child::start(|part: &mut Part| {
            let held = self.take_all("in a child")?;
            part.report(0)?;
            part.wait_for_order()?;
            drop(held);
            Ok(())
        })?;
        holder.report()?;
        Ok(holder)
    }

    /// Whether the attached process counts as alive; `None` if it is not attached.
    pub fn is_alive(&self, reader: &SegmentReader, child: &Child) -> Result<Option<bool>, Failure> {
        let snapshot = reader.snapshot()?;
        let participant = snapshot.participants.iter().find(|it| it.pid == child.pid());
        Ok(participant.map(|it| it.alive))
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
            "the system's clock is read, in {:.0} ns: the kernel does not go by the processor's counter",
            check.system_reading_nanos
        )
    };
    Ok(Seen::new(what)
        .figure("reads_counter", f64::from(u8::from(check.reads_counter)))
        .figure("reading", check.reading_nanos / 1e9)
        .figure("system_reading", check.system_reading_nanos / 1e9)
        .figure("furthest_behind", check.max_behind_nanos as f64 / 1e9))
}
