//! Segments without a path.

use std::path::Path;

use super::Segment;
use super::open_options::OpenOptions;
use super::opening::with_blueprint;
use crate::declaration::Declaration;
use crate::error::Error;
#[cfg(doc)]
use crate::error::OpenError;
use crate::shm::file::creation::create::create_anonymous;
use crate::shm::file::memory_file::{NAME, needs_a_path};

impl OpenOptions {
    /// Creates a segment without a path and opens it: see [`Segment::anonymous`].
    ///
    /// # Errors
    ///
    /// [`OpenError::Anonymous`] if the declaration has a [`checkpoint`](crate::declare::Checkpoint), or if `/proc` is
    /// not mounted, and the errors of [`create`](Self::create).
    pub fn anonymous(&self, declaration: &Declaration) -> Result<Segment, Error> {
        declaration.validate()?;
        if declaration.segment().checkpoint().is_some() {
            let why = "it cannot have a checkpoint: declare none, or give the segment a path";
            return Err(needs_a_path(Path::new(NAME), why));
        }
        let (file, path) = with_blueprint(declaration, false, create_anonymous)?;
        self.open_opened(file, &path, None).map(Segment::of)
    }
}

impl Segment {
    /// Creates a segment without a path: [`OpenOptions::anonymous`] with the defaults. For tests, for programs that want
    /// limits among their own threads, and for those that fork their workers.
    ///
    /// This process and the children that it forks use it like any other segment. It is gone, with its counts, when the
    /// last of them is. Nothing is left in `/dev/shm`, and no other program finds it by a name.
    ///
    /// Its [`path`](Self::path) is that of its descriptor, `/proc/PID/fd/N`. Processes of the same user, such as
    /// children that execute another program, can open it by that path as long as this process has it open, and so can
    /// `limitctl`. The descriptor itself is closed on exec. A process that was handed a duplicate of it opens
    /// `/proc/self/fd/N`.
    ///
    /// It can be changed, retired and repaired like any other. It has no checkpoint, no segment takes its place when it
    /// is retired, and [`RecreateIfUnused`](crate::declare::OnMismatch::RecreateIfUnused) cannot recreate it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
    ///
    /// let minute = Duration::from_secs(60);
    /// let segment = Segment::anonymous(
    ///     &Declaration::new().add_set(SetDeclaration::new("mail").add_limit(Limit::calls("sent", 1, minute))),
    /// )?;
    /// let mail = segment.set("mail")?;
    /// assert!(mail.request().check()?.is_admitted());
    /// assert!(!mail.request().check()?.is_admitted());
    /// # Ok::<(), shmlimit::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// See [`OpenOptions::anonymous`].
    pub fn anonymous(declaration: &Declaration) -> Result<Self, Error> {
        OpenOptions::new().anonymous(declaration)
    }
}
