//! Where an operation is performed: a segment that victims attach to, and one where copies of it are recovered.

use std::path::{Path, PathBuf};

use shmlimit::{Declaration, Segment};

use crate::image::{Image, Layout, RawFile};
use crate::operations::{Operation, Recoverer, Victim, admitted, everything};
use crate::survivor::Survivor;
use crate::tracee::{Tracee, live_and_die, mark};

/// The witness, a recoverer, a victim and a process that died before it, and one to spare.
const PARTICIPANTS: u32 = 5;

pub struct Stage {
    operation: Operation,
    path: PathBuf,
    pub file: RawFile,
    pub layout: Layout,
    /// The segment before any victim comes.
    base: Image,
    /// Recovers copies.
    pub copyist: Survivor,
    /// Attached to the segment that victims are killed in.
    pub witness: Survivor,
    pub recoverer: Option<Tracee>,
    pub victim_slot: usize,
    _folder: tempfile::TempDir,
}

/// The recoverer's slot: it attaches right after the witness.
pub const RECOVERER_SLOT: usize = 1;

impl Stage {
    pub fn new(operation: Operation, recoverer: Option<Recoverer>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let declaration = Declaration::new()
            .participants(PARTICIPANTS)
            .set((operation.set)());
        let path = folder.path().join("victims");
        let copies = folder.path().join("copies");
        drop(Segment::create(&path, &declaration).expect("a segment"));
        drop(Segment::create(&copies, &declaration).expect("a segment"));
        let witness = Survivor::attach(&path);
        let copyist = Survivor::attach(&copies);
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
            _folder: folder,
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A fresh process that is about to perform the operation.
    pub fn start_victim(&self) -> Tracee {
        self.file.become_copy_of(&self.base);
        let mut tracee = Tracee::start(|| {
            let victim = Victim::attach(&self.path);
            mark();
            (self.operation.run)(&victim);
        });
        tracee.run_to_mark();
        if self.operation.after_a_death {
            live_and_die(|| {
                let segment = Segment::open(&self.path).expect("the segment");
                let set = segment.set(crate::operations::SET).expect("declared");
                std::mem::forget(admitted(&set, &everything(&set, 1)));
                // It dies attached.
                std::mem::forget((segment, set));
            });
        }
        tracee.run_to_mark();
        tracee
    }

    /// Compares the harness's idea of the layout with the library's, once something has been counted.
    pub fn check_layout(&self) {
        let victim = self.start_victim();
        self.layout
            .assert_agrees_with(&self.file, &self.witness.snapshot());
        victim.kill();
    }
}
