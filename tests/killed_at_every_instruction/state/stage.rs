//! Where an operation is performed: a segment to which victims attach, and one in which copies of it are recovered.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

use shmlimit::SetDeclaration;

use crate::beside::bystanders::{Line, MAX_WAITERS, SHARED_WORDS, TIMEOUT, pause_for_a_moment};
use crate::beside::clock;
use crate::beside::room::{declaring, with_room};
use crate::operations::{Operation, Recoverer, Victim, admitted, everything};
use crate::state::image::{Image, Layout, RawFile};
use crate::state::survivor::Survivor;
use crate::stepping::tracee::{Tracee, live_and_die, mark};

/// The witness, a recoverer, a victim, a process that died before it, a server of the queue, one to spare, the crew,
/// and the waiters.
pub const PARTICIPANTS: u32 = 11 + MAX_WAITERS as u32;

pub struct Stage {
    operation: Operation,
    path: PathBuf,
    pub file: RawFile,
    pub layout: Layout,
    /// The segment before any victim comes.
    base: Image,
    /// Recovers copies.
    pub copyist: Survivor,
    /// Attached to the segment in which victims are killed.
    pub witness: Survivor,
    pub recoverer: Option<Tracee>,
    pub victim_slot: usize,
    /// When the waiters were served.
    admitted_at: RawFile,
    _directory: tempfile::TempDir,
}

/// What the waiters beside the victim do while it performs its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// Nothing, so that only the victim changes the segment.
    Stopped,
    Running,
}

/// A victim that is about to perform its operation, and the others. All of them die when this is dropped.
pub struct Scene<'a> {
    pub victim: Tracee,
    pub line: Line<'a>,
}

/// The recoverer's slot: it attaches right after the witness.
pub const RECOVERER_SLOT: usize = 1;

impl Stage {
    pub fn new(operation: Operation, recoverer: Option<Recoverer>) -> Self {
        Self::with_set(operation, operation.set(), recoverer)
    }

    /// A stage with room for a crew beside the victim.
    pub fn with_room(operation: Operation) -> Self {
        Self::with_set(operation, with_room(operation.set()), None)
    }

    fn with_set(operation: Operation, set: SetDeclaration, recoverer: Option<Recoverer>) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let declaration = declaring(set).participants(PARTICIPANTS);
        let path = directory.path().join("victims");
        let copies = directory.path().join("copies");
        let admitted_at = directory.path().join("admitted_at");
        clock::stand_still(operation.stands_still);
        let (options, _) = clock::options();
        drop(options.create(&path, &declaration).expect("a segment"));
        drop(options.create(&copies, &declaration).expect("a segment"));
        std::fs::write(&admitted_at, [0; 8 * SHARED_WORDS]).expect("a small file");
        // Makes the same keys fall into the same rows in both segments, and in every run.
        for segment in [&path, &copies] {
            RawFile::open(segment).set_hash_key();
        }
        let witness = Survivor::attach(&path);
        let copyist = Survivor::attach_to_copies(&copies, PARTICIPANTS);
        let file = RawFile::open(&path);
        let layout = Layout::of(&file);
        let victim_slot = if recoverer.is_some() {
            RECOVERER_SLOT + 1
        } else {
            RECOVERER_SLOT
        };
        let recoverer = recoverer.map(|recoverer| {
            let mut tracee = Tracee::start(|| (recoverer.run)(&Victim::attach(&path)));
            tracee.run_to_mark();
            tracee
        });
        let base = file.copy();
        Self {
            operation,
            path,
            file,
            layout,
            base,
            copyist,
            witness,
            recoverer,
            victim_slot,
            admitted_at: RawFile::open(&admitted_at),
            _directory: directory,
        }
    }

    pub fn operation(&self) -> Operation {
        self.operation
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A fresh process that is about to perform the operation, and the processes beside it.
    pub fn set_scene(&self, others: Others) -> Scene<'_> {
        self.clear();
        self.let_victim_come(others, Victim::attach)
    }

    /// Makes the segment what it was before any process came.
    pub fn clear(&self) {
        self.file.become_copy_of(&self.base);
    }

    /// As [`set_scene`](Self::set_scene), with the segment as it is.
    pub fn let_victim_come(&self, others: Others, attach: fn(&Path) -> Victim) -> Scene<'_> {
        let operation = self.operation;
        let mut victim = Tracee::start(|| {
            let victim = attach(&self.path);
            mark();
            operation.perform(&victim);
            // The victim has given everything back, and is still attached.
            mark();
        });
        victim.run_to_mark();
        if operation.after_a_death {
            live_and_die(|| {
                let segment = clock::options().0.open(&self.path).expect("the segment");
                let set = segment.set(crate::operations::SET).expect("declared");
                std::mem::forget(admitted(&set, &everything(&set, 1)));
                // This process dies while it is attached.
                std::mem::forget((segment, set));
            });
        }
        let mut line = Line::new(&self.admitted_at);
        if operation.has_company() {
            // If the victim holds what they wait for, it has it now.
            victim.run_to_mark();
            if operation.is_served {
                let before = self.witness.snapshot().sets[0].holds.len();
                line.start_server(&self.path, victim.pid(), operation.waiters + 1);
                self.wait_until("everything is held", |_, holds| {
                    holds > before + operation.waiters
                });
            }
            self.let_others_come(&mut line, others);
        }
        if operation.dying > 0 {
            victim.run_to_mark();
            line.lose(operation.dying);
        }
        victim.run_to_mark();
        if operation.applies {
            // Before that, the definition is read, which is most of what the operation does and changes nothing.
            if self.layout.has_slot_lock() {
                let free = || self.file.lock_word(&self.layout).store(0, Ordering::Relaxed);
                victim.run_to_slot_lock(&self.path, self.layout.lock_offset(), free);
            } else {
                victim.run_to_lock();
            }
        }
        if operation.has_leases_run_out {
            self.layout.let_leases_run_out(&self.file);
        }
        if others == Others::Stopped {
            victim.freeze_other_threads();
        }
        Scene { victim, line }
    }

    /// Starts the waiters, one after the other, and stops those that are to do nothing more.
    fn let_others_come(&self, line: &mut Line<'_>, others: Others) {
        let before = self.witness.snapshot().sets[0].tickets.len();
        let operation = self.operation;
        for number in 1..=operation.waiters {
            line.join(&self.path, |set| operation.subject_of_another(set, number));
            self.wait_until("another waits", |tickets, _| tickets == before + number);
            let this = number - 1..number;
            if others == Others::Running && number > operation.dying.max(operation.silent) {
                continue;
            }
            line.stop(this.clone());
            // It must not be stopped while it has the lock, which it had a moment ago.
            while self.file.lock_word(&self.layout).load(Ordering::Relaxed) != 0 {
                line.go_on(this.clone());
                pause_for_a_moment();
                line.stop(this.clone());
            }
        }
    }

    fn wait_until(&self, what: &str, condition: impl Fn(usize, usize) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let snapshot = self.witness.snapshot();
            let set = &snapshot.sets[0];
            if condition(set.tickets.len(), set.holds.len()) {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{}: it never came to be that {what}",
                self.operation.name
            );
            pause_for_a_moment();
        }
    }

    /// Compares the harness's idea of the layout with the library's, once something has been counted.
    pub fn check_layout(&self) {
        let scene = self.set_scene(Others::Stopped);
        self.layout
            .assert_agrees_with(&self.file, &self.witness.snapshot());
        scene.victim.kill();
    }
}
