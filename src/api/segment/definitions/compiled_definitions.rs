//! The definitions that a segment holds, compiled for the engine.

use std::path::Path;

use crate::declaration::stored::{StoredDeclaration, StoredSet};
use crate::engine::terms::plan::SetPlan;
use crate::error::{Error, SegmentError};
use crate::shm::file::verified::{CreationOptions, Verified};
use crate::shm::layout::definition_text::Definition;

/// Compiles the definition of a set; `None` if the text does not define exactly one set.
pub(crate) fn compile_one(text: &str) -> Option<SetPlan> {
    StoredSet::from_text(text).ok()?.compile().ok()
}

/// The declaration that the definitions of all sets make up.
pub(crate) fn read_definitions(
    definitions: &[Definition],
    options: CreationOptions,
    path: &Path,
) -> Result<StoredDeclaration, Error> {
    let texts = definitions.iter().map(|definition| definition.text.as_str());
    StoredDeclaration::read(options, texts, path)
}

/// The declaration that a segment holds, and its sets compiled, each with the generation of its definition, after
/// checking them against the directory.
pub(crate) fn compile_definitions(
    verified: &Verified,
    path: &Path,
) -> Result<(StoredDeclaration, Vec<(u64, SetPlan)>), Error> {
    let damaged = |what: String| {
        Error::Segment(SegmentError::Damaged {
            path: path.to_owned(),
            what,
        })
    };
    let stored = read_definitions(&verified.definitions, verified.creation_options, path)?;
    // Compiled as a whole, so that duplicate names of sets are found.
    stored
        .to_declaration()
        .compile()
        .map_err(|error| damaged(format!("the definitions do not fit: {error}")))?;
    let plans: Vec<SetPlan> = stored
        .sets()
        .iter()
        .map(StoredSet::compile)
        .collect::<Result<_, _>>()?;
    for (plan, geometry) in plans.iter().zip(&verified.geometry.sets) {
        if plan.shape(geometry.shape.definition_room) != geometry.shape {
            return Err(damaged(format!(
                "the directory entry of set `{}` does not fit its definition",
                plan.name
            )));
        }
    }
    let generations = verified
        .definitions
        .iter()
        .map(|definition| definition.generation);
    Ok((stored, generations.zip(plans).collect()))
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::time::Duration;

    use super::*;
    use crate::declare::LockKind;
    use crate::engine::{EngineOptions, LockFor, LockWait, SegmentEngine};
    use crate::shm::file::attach::{Admission, attach};
    use crate::shm::file::segment_file::open_for_writing;
    use crate::shm::time::segment_clock::SegmentClock;
    use crate::{Declaration, Limit, Segment, SetDeclaration};

    thread_local! {
        /// Another attachment, through which the locks of the segment are watched.
        static ONLOOKER: RefCell<Option<Segment>> = const { RefCell::new(None) };
        /// How many definitions were compiled, and how many of them under a lock.
        static COMPILED: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
    }

    fn compile_and_look(text: &str) -> Option<SetPlan> {
        let is_locked = ONLOOKER.with_borrow(|onlooker| {
            let engine = &onlooker.as_ref().expect("set before").shared().engine;
            engine.shards().any(|shard| {
                let table = engine.membership.table();
                let lock = table.lock_state(&shard.memory.control().lock, |_| true);
                lock.holder.is_some()
            })
        });
        let (compiled, under_lock) = COMPILED.get();
        COMPILED.set((compiled + 1, under_lock + u32::from(is_locked)));
        compile_one(text)
    }

    fn declared(lock: LockKind, seconds: u64) -> Declaration {
        let limit = Limit::calls("calls", 100_u64, Duration::from_secs(seconds));
        Declaration::new()
            .lock(lock)
            .add_set(SetDeclaration::new("api").add_limit(limit))
    }

    fn locks(engine: &SegmentEngine, purpose: LockFor) -> bool {
        let shard = engine.sets()[0].shard(0);
        engine.lock(shard, purpose, LockWait::Timeout).is_ok()
    }

    #[test]
    fn no_definition_is_compiled_under_the_lock_of_a_shard() {
        for lock in [LockKind::Slot, LockKind::RobustMutex] {
            let directory = tempfile::tempdir().expect("a directory");
            let path = directory.path().join("limits");
            let other = Segment::create(&path, &declared(lock, 1)).expect("a segment");
            ONLOOKER.set(Some(Segment::open(&path).expect("opens")));
            COMPILED.set((0, 0));
            let understand = |verified: &Verified| compile_definitions(verified, &path);
            let file = open_for_writing(&path).expect("a file");
            let (attached, (_, plans)) =
                attach(file, &path, false, &|_| (), understand, |_| Ok(Admission::Join)).expect("attaches");
            let options = EngineOptions {
                lock_timeout: Duration::from_secs(60),
                clock: SegmentClock::System,
                compile: compile_and_look,
            };
            let engine = SegmentEngine::new(&path, attached, plans, options).expect("fits");
            let set = &engine.sets()[0];
            let ways: [fn(&SegmentEngine) -> bool; 7] = [
                |engine| locks(engine, LockFor::Decide),
                |engine| locks(engine, LockFor::Look),
                |engine| locks(engine, LockFor::GiveBack),
                |engine| locks(engine, LockFor::Timeless),
                |engine| locks(engine, LockFor::Repair),
                |engine| {
                    engine
                        .reclaim(engine.sets()[0].shard(0), LockWait::Timeout)
                        .is_ok()
                },
                |engine| engine.repair(engine.sets()[0].shard(0), true).is_ok(),
            ];
            for (seconds, way) in (2..).zip(ways) {
                other.apply(&declared(lock, seconds)).expect("applies");
                assert!(way(&engine), "{lock:?}, {seconds}");
                assert!(locks(&engine, LockFor::Decide));
                assert_eq!(COMPILED.get().1, 0, "{lock:?}, {seconds}");
            }
            let (before, _) = COMPILED.get();
            assert!(before >= 5, "each definition is compiled: {before}");
            let definition = engine.definition(set).expect("sound");
            let applied = engine.apply(set, definition.generation, &definition.text);
            applied.expect("works");
            let (compiled, under_lock) = COMPILED.get();
            assert!(compiled > before, "as is its own");
            assert_eq!(under_lock, 0, "{lock:?}");
            ONLOOKER.set(None);
        }
    }
}
