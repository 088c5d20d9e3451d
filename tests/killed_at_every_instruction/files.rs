//! Attaching, creating, detaching and removing, killed for real: before and after every system call, and at every
//! instruction between two of them that changes a file.
//!
//! What these operations leave behind is in the file system and in the table of participants, so the survivor is asked
//! for other things than elsewhere: that there is a whole segment or none, that the dead process's slot can be taken
//! again, and that nothing is left lying about.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use shmlimit::declare::OnMismatch;
use shmlimit::snapshot::SegmentReader;
use shmlimit::{Declaration, Error, Limit, OpenError, OpenOptions, Removal, Segment, SetDeclaration};

use crate::copies::note;
use crate::operations::SET;
use crate::report::Tally;
use crate::sample::Sample;
use crate::state::image::{Image, RawFile};
use crate::state::survivor::Judgement;
use crate::stepping::tracee::{Stop, Tracee, live_and_die, mark};
use crate::words::{header, participant};

/// After this many instructions, a stretch that is known to change a file is taken to have ended.
const LONGEST_STRETCH: u64 = 200_000;

/// After this many instructions without another change, a stretch is taken to have made all its changes.
const QUIET: u64 = 2_000;

/// In a stretch that changes a file, one in this many instructions is killed at, in addition to those that change it.
const SPREAD: usize = 500;

/// How often an operation is begun again if it takes another path than before.
const ATTEMPTS: usize = 20;

/// An operation on a segment as a whole.
#[derive(Clone, Copy, Debug)]
pub struct FileOperation {
    pub name: &'static str,
    /// What the segment is declared as before, if there is one.
    former: Option<fn() -> Declaration>,
    run: fn(&Path),
}

pub const FILE_OPERATIONS: &[FileOperation] = &[
    FileOperation {
        name: "attach",
        former: Some(declaration),
        run: attach,
    },
    FileOperation {
        name: "detach",
        former: Some(declaration),
        run: detach,
    },
    FileOperation {
        name: "detach with a permit out",
        former: Some(declaration),
        run: detach_with_a_permit_out,
    },
    FileOperation {
        name: "open_or_create, finding it",
        former: Some(declaration),
        run: open_or_create,
    },
    FileOperation {
        name: "open_or_create, creating it",
        former: None,
        run: open_or_create,
    },
    FileOperation {
        name: "open_or_create, recreating it",
        former: Some(former_declaration),
        run: open_or_create,
    },
    FileOperation {
        name: "remove",
        former: Some(declaration),
        run: remove,
    },
];

/// Two processes can be attached: one too few if a dead process's slot is lost.
fn declaration() -> Declaration {
    crate::beside::room::declaration().participants(2).add_set(
        SetDeclaration::new(SET)
            .add_limit(Limit::calls(
                "requests",
                1_000_000,
                std::time::Duration::from_secs(3600),
            ))
            .add_limit(Limit::concurrency("in_flight", 1)),
    )
}

/// Another declaration. No live segment can be changed from it to the first.
fn former_declaration() -> Declaration {
    let requests = Limit::calls("requests", 1, std::time::Duration::from_secs(60));
    crate::beside::room::declaration().add_set(SetDeclaration::new(SET).add_limit(requests))
}

/// A segment of another declaration is replaced, since no other process is attached.
fn options() -> OpenOptions {
    OpenOptions::new().on_mismatch(OnMismatch::RecreateIfUnused)
}

fn attach(path: &Path) {
    mark();
    let segment = Segment::open(path);
    mark();
    std::mem::forget(segment.expect("the segment"));
}

fn detach(path: &Path) {
    let segment = Segment::open(path).expect("the segment");
    let set = segment.set(SET).expect("declared");
    mark();
    drop(set);
    drop(segment);
    mark();
}

fn detach_with_a_permit_out(path: &Path) {
    let segment = Segment::open(path).expect("the segment");
    let set = segment.set(SET).expect("declared");
    std::mem::forget(
        set.request()
            .try_acquire()
            .expect("works")
            .into_result()
            .expect("admitted"),
    );
    mark();
    drop(set);
    drop(segment);
    mark();
}

fn open_or_create(path: &Path) {
    let declaration = declaration();
    mark();
    let segment = options().open_or_create(path, &declaration);
    mark();
    std::mem::forget(segment.expect("a segment"));
}

fn remove(path: &Path) {
    mark();
    let removed = OpenOptions::new().remove(path, Removal::Unused);
    mark();
    removed.expect("no process uses it");
}

/// A place in an operation: after this many stops at system calls (each has one before and one after it), and then this
/// many instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Point {
    stops: u32,
    instructions: u64,
}

/// A directory with a segment in it, or without one.
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().expect("a directory"),
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("segment")
    }

    fn prepare(&self, operation: FileOperation) {
        for name in self.names() {
            fs::remove_file(self.directory.path().join(name)).expect("removed");
        }
        if let Some(former) = operation.former {
            drop(Segment::create(self.path(), &former()).expect("a segment"));
        }
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.directory.path())
            .expect("the directory")
            .map(|entry| {
                entry
                    .expect("an entry")
                    .file_name()
                    .into_string()
                    .expect("plain names")
            })
            .collect();
        names.sort();
        names
    }

    /// Everything here that an operation can change: names and contents. Names lack the part that names a process, so
    /// that two victims can be compared.
    fn contents(&self) -> Vec<(bool, Vec<u8>)> {
        self.names()
            .into_iter()
            .map(|name| {
                (
                    name == "segment",
                    fs::read(self.directory.path().join(name)).expect("readable"),
                )
            })
            .collect()
    }

    /// How crash states differ for the next process. Of a file under construction it reads only the name; of the
    /// segment it reads whether it is retired, which words of the participants' table are not what they were, and the
    /// phase of the participants.
    fn outline(&self, before: &[(bool, Vec<u8>)]) -> Vec<(bool, usize, Vec<u64>)> {
        let of_segment = |bytes: &[u8]| {
            let old = before.iter().find(|(is_segment, _)| *is_segment);
            let old = old.map_or(&[][..], |(_, bytes)| bytes);
            let words = bytes.as_chunks::<8>().0.iter().zip(old.as_chunks::<8>().0);
            let retired = bytes.as_chunks::<8>().0.get(header::RETIRED).copied();
            let participants = words
                .skip(header::SIZE)
                .enumerate()
                .map(|(index, (new, old))| match index % participant::SIZE {
                    participant::STATE => u64::from_ne_bytes(*new),
                    _ => u64::from(new != old),
                })
                .take(participant::SIZE * 2);
            let retired = retired.map(u64::from_ne_bytes);
            retired.into_iter().chain(participants).collect()
        };
        self.contents()
            .into_iter()
            .map(|(is_segment, bytes)| {
                let words = if is_segment {
                    of_segment(&bytes)
                } else {
                    Vec::new()
                };
                (is_segment, bytes.len(), words)
            })
            .collect()
    }

    fn start(&self, operation: FileOperation) -> Tracee {
        let path = self.path();
        let mut tracee = Tracee::start(|| (operation.run)(&path));
        tracee.run_to_mark();
        tracee
    }

    /// The places to kill at: before and after every system call and, within the stretches between them that change a
    /// file, behind each `every`-th change and at one in `between` of the instructions.
    ///
    /// What the operation finds depends on whether the kernel has already released everything of a process that died
    /// just before. So now and then the operation takes another path than usual, perhaps in the very run that is
    /// recorded.
    fn points(
        &self,
        operation: FileOperation,
        prepare: impl Fn(&Self),
        every: usize,
        between: Option<usize>,
    ) -> BTreeSet<Point> {
        (0..ATTEMPTS)
            .find_map(|_| self.record(operation, &prepare, every, between))
            .expect("the operation takes another way each time")
    }

    /// One attempt at [`points`](Self::points); `None` if later runs do not take the path of the recorded one.
    fn record(
        &self,
        operation: FileOperation,
        prepare: &impl Fn(&Self),
        every: usize,
        between: Option<usize>,
    ) -> Option<BTreeSet<Point>> {
        let mut points = BTreeSet::new();
        let mut stretches_with_changes = Vec::new();
        prepare(self);
        let mut tracee = self.start(operation);
        let mut stops = 0;
        let mut before = self.contents();
        loop {
            points.insert(Point {
                stops,
                instructions: 0,
            });
            let stop = tracee.run_to_system_call();
            let now = self.contents();
            // After an even number of stops, the program runs; after an odd number, the kernel does.
            if now != before && stops % 2 == 0 {
                stretches_with_changes.push(stops);
            }
            if stop == Stop::Mark {
                break;
            }
            before = now;
            stops += 1;
        }
        drop(tracee);
        for stops in stretches_with_changes {
            let start = Point {
                stops,
                instructions: 0,
            };
            let mut tracee = self.started_until(operation, start, prepare)?;
            let mut instructions = 0;
            let mut changes = Vec::new();
            // Names change only in the kernel, so here it is enough to watch the bytes.
            let mut files: Vec<(RawFile, Image)> = self
                .names()
                .iter()
                .map(|name| RawFile::open(&self.directory.path().join(name)))
                .map(|file| {
                    let image = file.copy();
                    (file, image)
                })
                .collect();
            while instructions < changes.last().map_or(LONGEST_STRETCH, |last| last + QUIET)
                && tracee.step() == Stop::Moved
            {
                instructions += 1;
                // All images are brought up to date, so that no change is seen twice.
                let changed_words: usize = files
                    .iter_mut()
                    .map(|(file, image)| file.take_changes(image).len())
                    .sum();
                if changed_words > 0 {
                    changes.push(instructions);
                }
            }
            let last = changes.last().copied().unwrap_or(0);
            let evenly = between.map(|between| (1..=last).step_by(between));
            let behind_changes = changes.into_iter().step_by(every);
            points.extend(
                behind_changes
                    .chain(evenly.into_iter().flatten())
                    .map(|instructions| Point { stops, instructions }),
            );
        }
        Some(points)
    }

    /// The operation, prepared and then performed up to `point`; `None` if it never gets there.
    fn started_until(
        &self,
        operation: FileOperation,
        point: Point,
        prepare: &impl Fn(&Self),
    ) -> Option<Tracee> {
        (0..ATTEMPTS).find_map(|_| {
            prepare(self);
            let mut tracee = self.start(operation);
            advance(&mut tracee, point).then_some(tracee)
        })
    }

    /// Performs the operation up to `point`, and kills it.
    fn kill_at(&self, operation: FileOperation, point: Point) {
        let mut tracee = self.start(operation);
        advance(&mut tracee, point);
        tracee.kill();
    }

    /// What the next process finds.
    fn judge(&self) -> Judgement {
        self.look_and_use()
            .map_or_else(Judgement::Torn, |()| Judgement::Sound(Vec::new()))
    }

    fn look_and_use(&self) -> Result<(), String> {
        let path = self.path();
        let explain = |what: &'static str| move |error: Error| format!("{what}: {error}");
        if path.exists() {
            let reader = SegmentReader::open(&path).map_err(explain("half a segment"))?;
            reader.snapshot().map_err(explain("half a segment"))?;
        }
        let segment = options()
            .open_or_create(&path, &declaration())
            .map_err(explain("open_or_create"))?;
        let set = segment.set(SET).map_err(explain("the set"))?;
        let outcome = set.request().try_acquire().map_err(explain("try_acquire"))?;
        if !outcome.is_admitted() {
            return Err("what the dead process held is not given back".to_owned());
        }
        drop(outcome);
        // A process takes one slot.
        live_and_die(|| {
            let _second = Segment::open(&path).expect("the dead process's place");
            live_and_die(|| match Segment::open(&path) {
                Err(Error::Open(OpenError::TooManyParticipants { .. })) => {}
                other => panic!("three of two participants: {other:?}"),
            });
        });
        let report = segment.recover().map_err(explain("recover"))?;
        if report.freed_participants != 1 || report.sets.iter().any(|set| set.problem.is_some()) {
            return Err(format!("there was more to recover: {report:?}"));
        }
        let snapshot = segment.snapshot().map_err(explain("snapshot"))?;
        let own = u64::from(std::process::id());
        if snapshot.participants.len() != 1 || snapshot.participants.iter().any(|it| it.pid != own) {
            return Err(format!("unknown participants: {:?}", snapshot.participants));
        }
        if snapshot.cold_starts != 0 || snapshot.sets[0].active != 0 {
            return Err("the segment was started again, or permits are out".to_owned());
        }
        match &self.names()[..] {
            [name] if name == "segment" => Ok(()),
            names => Err(format!("left behind: {names:?}")),
        }
    }
}

/// Lets a child run to a point; returns whether it got there.
fn advance(tracee: &mut Tracee, point: Point) -> bool {
    (0..point.stops).all(|_| tracee.run_to_system_call() == Stop::Moved)
        && (0..point.instructions).all(|_| tracee.step() == Stop::Moved)
}

/// Depth one. Leaves out `every - 1` of `every` changes.
pub fn kill_once(operation: FileOperation, every: usize, sample: Sample) -> Tally {
    let place = Place::new();
    let prepare = |place: &Place| place.prepare(operation);
    let mut tally = Tally::default();
    let points = place.points(operation, prepare, every, Some(every * SPREAD));
    for point in sample.of(points.len(), points) {
        place.prepare(operation);
        place.kill_at(operation, point);
        tally.instructions += point.instructions;
        note(
            &mut tally,
            || format!("{}, killed at {point:?}", operation.name),
            &place.judge(),
        );
    }
    tally
}

/// Depth two: the process that opens or creates next is killed as well.
pub fn kill_twice(operation: FileOperation, every: usize, sample: Sample) -> Tally {
    let place = Place::new();
    let next = FileOperation {
        name: "open_or_create",
        former: operation.former,
        run: open_or_create,
    };
    let mut tally = Tally::default();
    let mut seen = BTreeSet::new();
    // Between two changes, the next process finds what it would find right after the first of them.
    let mut first_deaths = place.points(operation, |place| place.prepare(operation), 1, None);
    first_deaths.retain(|first| {
        place.prepare(operation);
        let before = place.contents();
        place.kill_at(operation, *first);
        seen.insert(place.outline(&before))
    });
    for first in sample.of(first_deaths.len(), first_deaths) {
        let kill_first = |place: &Place| {
            place.prepare(operation);
            place.kill_at(operation, first);
        };
        let points = place.points(next, kill_first, every, Some(every * SPREAD));
        for second in sample.of(points.len(), points) {
            kill_first(&place);
            place.kill_at(next, second);
            tally.instructions += second.instructions;
            let what = || format!("{}, killed at {first:?}, then at {second:?}", operation.name);
            note(&mut tally, what, &place.judge());
        }
    }
    tally
}
