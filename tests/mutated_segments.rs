//! Damages segments, a few hundred thousand in an optimised build and a few thousand otherwise, and uses them: there is
//! not one signal, panic, hang or forbidden store.
//!
//! The damage is done in child processes, so that a signal or a hang can be reported and the case named. A child writes
//! the number of its current case into a mapped file. To run a single case: `SHMLIMIT_MUTATION_CASE=NUMBER cargo test
//! --test mutated_segments`. `SHMLIMIT_MUTATION_CASES=NUMBER` runs more of the random ones, or fewer.
#![allow(unsafe_code, reason = "shares a word with its children")]

#[allow(dead_code)]
mod mutation;

use std::fs::OpenOptions;
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use std::{env, thread};

use memmap2::MmapRaw;
use mutation::image::{Image, SetShard};
use mutation::specimen::Specimen;
use mutation::{Change, Damage, Mutation};

const TEST: &str = "no_damage_brings_a_process_down";
const CHILD_RANGE: &str = "SHMLIMIT_MUTATION_RANGE";
const CHILD_PROGRESS: &str = "SHMLIMIT_MUTATION_PROGRESS";
const SINGLE_CASE: &str = "SHMLIMIT_MUTATION_CASE";
const RANDOM_CASES: &str = "SHMLIMIT_MUTATION_CASES";

/// Without optimisation, each change takes about ten times as long, so only one change in 19 is made, and not the same
/// ones for a word as for the next. With optimisation, all are made: `cargo test --release --test mutated_segments`.
const STEP: u64 = if cfg!(debug_assertions) { 19 } else { 1 };

const DEFAULT_RANDOM_CASES: u64 = if cfg!(debug_assertions) { 1_500 } else { 300_000 };

/// A child that stays at the same case for this long hangs: nothing in a case waits for longer than a fraction of a
/// second, and no case takes more than a few milliseconds of processor time, however busy the machine is.
const TIMEOUT: Duration = Duration::from_secs(300);

#[test]
fn no_damage_brings_a_process_down() {
    if let (Ok(range), Some(progress)) = (env::var(CHILD_RANGE), env::var_os(CHILD_PROGRESS)) {
        nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL).expect("known to every Linux");
        let (start, end) = range.split_once("..").expect("a range");
        let range = start.parse().expect("a number")..end.parse().expect("a number");
        return endure(range, Path::new(&progress));
    }
    let directory = tempfile::tempdir().expect("a directory");
    if let Ok(case) = env::var(SINGLE_CASE) {
        let case = case.parse().expect("the number of a case");
        return endure(case..case + 1, &directory.path().join("progress"));
    }
    let cases = Systematic::of(&Specimen::attached(directory.path())).cases() + random_cases();
    let begin = Instant::now();
    let words = AtomicU64::new(0);
    let children = thread::available_parallelism().map_or(1, |processors| processors.get().min(8)) as u64;
    let share = cases.div_ceil(children);
    thread::scope(|scope| {
        for number in 0..children {
            let progress = directory.path().join(number.to_string());
            let range = number * share..cases.min((number + 1) * share);
            let words = &words;
            scope.spawn(move || words.fetch_add(supervise(range, &progress), Ordering::Relaxed));
        }
    });
    let rate = cases as f64 / begin.elapsed().as_secs_f64();
    let words = words.into_inner();
    println!(
        "{cases} damaged segments, {words} words changed, {rate:.0} segments a second, {children} processes"
    );
}

fn random_cases() -> u64 {
    env::var(RANDOM_CASES).map_or(DEFAULT_RANDOM_CASES, |number| number.parse().expect("a number"))
}

/// Runs a child over a range of cases. Returns how many words it changed, or how it ended.
fn supervise(range: Range<u64>, progress: &Path) -> u64 {
    let case = Progress::create(progress, range.start);
    let mut child = Command::new(env::current_exe().expect("this program"))
        .args(["--exact", TEST, "--nocapture"])
        .env(CHILD_RANGE, format!("{}..{}", range.start, range.end))
        .env(CHILD_PROGRESS, progress)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let end = end_of_output(&mut child);
    let mut seen = None;
    while end.recv_timeout(TIMEOUT) == Err(RecvTimeoutError::Timeout) {
        let now = Some(case.get());
        if now == seen {
            child.kill().expect("a child of this process");
            child.wait().expect("a child of this process");
            panic!("case {} hangs: see {SINGLE_CASE}", case.get());
        }
        seen = now;
    }
    let status = child.wait().expect("a child of this process");
    assert!(
        status.success(),
        "case {} ends with {status}: see {SINGLE_CASE}",
        case.get()
    );
    assert_eq!(case.get(), range.end, "the child did not come to its end");
    case.words().load(Ordering::Relaxed)
}

/// Returns a channel that is disconnected when the child closes its output, which it does when it ends.
fn end_of_output(child: &mut Child) -> Receiver<()> {
    let mut output = child.stdout.take().expect("piped");
    let (sender, receiver) = channel();
    thread::spawn(move || {
        // What it prints does not matter; what went wrong is on the other stream.
        let _ = std::io::copy(&mut output, &mut std::io::sink());
        drop(sender);
    });
    receiver
}

/// The number of the case that a child is at, and how many words it has changed. Its parent can read both whatever
/// happens to the child.
struct Progress(MmapRaw);

impl Progress {
    fn create(path: &Path, case: u64) -> Self {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .expect("a file");
        file.set_len(16).expect("two words");
        let progress = Self(MmapRaw::map_raw(&file).expect("a mapping"));
        progress.set(case);
        progress
    }

    fn both(&self) -> &[AtomicU64; 2] {
        // SAFETY: the mapping is a whole page, aligned, and the other process that maps the file uses atomics on it as
        // well.
        unsafe { &*self.0.as_ptr().cast() }
    }

    fn words(&self) -> &AtomicU64 {
        &self.both()[1]
    }

    fn get(&self) -> u64 {
        self.both()[0].load(Ordering::Relaxed)
    }

    fn set(&self, case: u64) {
        self.both()[0].store(case, Ordering::Relaxed);
    }
}

/// Survives every case of the range.
fn endure(range: Range<u64>, progress: &Path) {
    let progress = Progress::create(progress, range.start);
    let directory = tempfile::tempdir().expect("a directory");
    let attached = Specimen::attached(directory.path());
    let abandoned = Specimen::abandoned(directory.path());
    let systematic = Systematic::of(&attached);
    for case in range.clone() {
        progress.set(case);
        let (is_abandoned, attach, damage) = systematic.case(case).unwrap_or_else(|| {
            let mut random = Random::of(case);
            // Attaching costs ten times as much as operating.
            let (is_abandoned, attach) = (random.one_in(16), random.one_in(16));
            let specimen = if is_abandoned { &abandoned } else { &attached };
            (is_abandoned, attach, random.damage(specimen.image()))
        });
        let specimen = if is_abandoned { &abandoned } else { &attached };
        progress
            .words()
            .fetch_add(damage.mutations.len() as u64, Ordering::Relaxed);
        specimen.endure(&damage, attach);
    }
    progress.set(range.end);
}

/// Every word of a segment, with every value that is likely to be misinterpreted.
struct Systematic {
    /// The words, by their numbers among those that may be damaged.
    places: Vec<u32>,
    /// How many of them lie before the sets: only attaching reads those.
    tables: u64,
}

impl Systematic {
    const CHANGES: [Change; 20] = [
        Change::Set(0),
        Change::Set(1),
        Change::Set(2),
        Change::Set(32),
        Change::Set(160),
        Change::Set(161),
        Change::Set(254),
        Change::Set(255),
        Change::Set(u32::MAX as u64),
        Change::Set(1 << 40),
        Change::Set(i64::MAX as u64),
        Change::Set(i64::MIN as u64),
        Change::Set(u64::MAX - 1),
        Change::Set(u64::MAX),
        Change::Add(1),
        Change::Add(u64::MAX),
        Change::Add(1 << 32),
        Change::Flip(1 << 63),
        Change::Flip(1 << 31),
        Change::Flip(0xff),
    ];

    fn of(specimen: &Specimen) -> Self {
        let image = specimen.image();
        Self {
            // While the journal is idle, the values of its entries make no difference, so a few of them are enough.
            places: (0..image.places() as u32)
                .filter(|number| {
                    let place = image.place(*number);
                    let journals = image.shards().iter().map(|shard| &shard.entries);
                    let mut rest = journals.map(|entries| entries.start + 8..entries.end);
                    !rest.any(|leftovers| leftovers.contains(&place))
                })
                .collect(),
            tables: u64::from(image.tables()),
        }
    }

    /// How many cases there are: each change of each word with the original checksums and, if only attaching reads the
    /// word, twice more on a segment to which no process is attached, first with the original checksums, then with
    /// matching ones.
    fn cases(&self) -> u64 {
        self.all_cases().div_ceil(STEP)
    }

    fn all_cases(&self) -> u64 {
        (self.places.len() as u64 + 2 * self.tables) * Self::CHANGES.len() as u64
    }

    fn case(&self, number: u64) -> Option<(bool, bool, Damage)> {
        let number = number
            .checked_mul(STEP)
            .filter(|number| *number < self.all_cases())?;
        let changes = Self::CHANGES.len() as u64;
        let (place, pass) = match (number / changes).checked_sub(self.places.len() as u64) {
            None => (number / changes, 0),
            Some(more) => (more % self.tables, 1 + more / self.tables),
        };
        let damage = Damage {
            mutations: vec![Mutation {
                word: *self.places.get(place as usize)?,
                change: Self::CHANGES[(number % changes) as usize],
            }],
            resealed: pass == 2,
        };
        Some((pass > 0, place < self.tables, damage))
    }
}

/// Random damage, given by the number of its case. The generator is splitmix64: the same everywhere and for ever.
struct Random(u64);

impl Random {
    fn of(case: u64) -> Self {
        Self(case.wrapping_mul(0xd134_2543_de82_ef95))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    fn damage(&mut self, image: &Image) -> Damage {
        let resealed = self.one_in(2);
        let mutations = match self.below(8) {
            0 | 1 => self.journal(image),
            2 => (0..1 + self.below(200)).map(|_| self.mutation(image)).collect(),
            _ => (0..1 + self.below(6)).map(|_| self.mutation(image)).collect(),
        };
        Damage { mutations, resealed }
    }

    fn mutation(&mut self, image: &Image) -> Mutation {
        // The definition and the journal are most of a segment: chosen evenly, the rest would be hit too seldom.
        let word = match self.below(4) {
            0 => self.next() as u32,
            1 => image.number_of(self.word_behind_journal(image)),
            2 => image.number_of(self.control_word(image)),
            _ => self.below(u64::from(image.tables())) as u32,
        };
        Mutation {
            word,
            change: self.change(),
        }
    }

    fn change(&mut self) -> Change {
        let any = self.next();
        match self.below(8) {
            0 => Change::Set(any),
            1 => Change::Set(any >> self.below(64)),
            2 => Change::Set(self.below(20)),
            3 => Change::Flip(1 << self.below(64)),
            4 => Change::Flip((any & 0xff) << (8 * self.below(8))),
            5 => Change::Add(self.below(5).wrapping_sub(2)),
            6 => Change::CopyOf(any as u32),
            _ => Systematic::CHANGES[self.below(Systematic::CHANGES.len() as u64) as usize],
        }
    }

    fn shard<'a>(&mut self, image: &'a Image) -> &'a SetShard {
        &image.shards()[self.below(image.shards().len() as u64) as usize]
    }

    fn control_word(&mut self, image: &Image) -> usize {
        let shard = self.shard(image);
        shard.journal + self.below((shard.entries.start - shard.journal) as u64) as usize
    }

    fn word_behind_journal(&mut self, image: &Image) -> usize {
        let shard = self.shard(image);
        shard.entries.end + self.below((shard.extent.end - shard.entries.end) as u64) as usize
    }

    /// A journal that says that an operation was begun, with entries that may name any word at all.
    fn journal(&mut self, image: &Image) -> Vec<Mutation> {
        let shard = self.shard(image);
        // Every count occurs, but small ones more often, because they are cheap to make.
        let count = 1 + (self.below(255) >> self.below(6));
        let mut mutations = vec![Mutation {
            word: image.number_of(shard.journal),
            change: Change::Set((self.next() << 8) | count),
        }];
        let length = shard.extent.len() as u64;
        let nearly_sound = self.one_in(2);
        for entry in shard.entries.clone().step_by(2).take(count as usize) {
            let index = match self.below(if nearly_sound { 4 } else { 8 }) {
                0 => {
                    (shard.journal - shard.extent.start) as u64
                        + self.below((shard.entries.start - shard.journal) as u64)
                }
                1..=3 => {
                    (shard.entries.end - shard.extent.start) as u64
                        + self.below((shard.extent.end - shard.entries.end) as u64)
                }
                4 => (shard.lock.start - shard.extent.start) as u64 + self.below(shard.lock.len() as u64),
                5 => length.wrapping_add(self.below(3)).wrapping_sub(1),
                6 => self.below(length),
                _ => self.next() >> self.below(64),
            };
            mutations.push(Mutation {
                word: image.number_of(entry),
                change: Change::Set(index),
            });
            mutations.push(Mutation {
                word: image.number_of(entry + 1),
                change: self.change(),
            });
        }
        mutations
    }
}
