//! One thing in which two declarations differ.

use std::fmt;

/// One thing in which a declaration differs from the one in a segment.
///
/// ```
/// use std::time::Duration;
/// use shmlimit::{Declaration, Limit, SetDeclaration};
///
/// let minute = Duration::from_secs(60);
/// let declaring = |capacity: u64| {
///     Declaration::new().add_set(SetDeclaration::new("openai").add_limit(Limit::calls("requests", capacity, minute).burst(5)))
/// };
/// let differences = declaring(5).differences(&declaring(10));
/// assert_eq!(
///     differences[0].to_string(),
///     r#"set "openai" / limit "requests" / capacity: declared 5, in the segment 10"#,
/// );
/// assert_eq!(differences.len(), 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    path: String,
    declared: Option<String>,
    in_segment: Option<String>,
    assignment: Option<Box<Assignment>>,
    is_of_versions: bool,
    is_of_offsets: bool,
    note: Option<String>,
}

/// A field of a limit that `limitctl edit` can change, and its new value: `capacity=20`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Assignment {
    pub(crate) set: String,
    pub(crate) limit: String,
    pub(crate) text: String,
}

impl Difference {
    /// A difference in a field; the values are written as in TOML.
    pub(crate) fn new(path: String, declared: Option<String>, in_segment: Option<String>) -> Self {
        Self {
            path,
            declared,
            in_segment,
            assignment: None,
            is_of_versions: false,
            is_of_offsets: false,
            note: None,
        }
    }

    /// Something that can be declared, but not for the segment in its present state: `note` says why.
    pub(crate) fn of_state(path: String, note: String) -> Self {
        Self::new(path, None, None).with_note(note)
    }

    /// A set that is declared but does not exist.
    pub(crate) fn of_new_set(set: &str) -> Self {
        Self::new(format!("set {set:?}"), Some("present".to_owned()), None)
    }

    /// Whether a whole set is only declared, or only in the segment.
    pub(crate) fn is_of_sets(&self) -> bool {
        self.path.starts_with("set ")
            && !self.path.contains(" / ")
            && self.declared.is_some() != self.in_segment.is_some()
    }

    /// A difference in the version of a set.
    pub(crate) fn of_versions(set: &str, declared: Option<u64>, in_segment: Option<u64>) -> Self {
        Self {
            is_of_versions: true,
            ..Self::new(
                format!("set {set:?} / version"),
                declared.map(|version| version.to_string()),
                in_segment.map(|version| version.to_string()),
            )
        }
    }

    /// A difference in the permissions of the file; `command` sets the declared ones.
    pub(crate) fn of_modes(declared: u32, in_segment: u32, command: &str) -> Self {
        let shown = |mode| Some(format!("\"{mode:04o}\""));
        Self::new("segment / mode".to_owned(), shown(declared), shown(in_segment))
            .with_note(format!("{command}, by its owner, changes it"))
    }

    /// Adds an assignment with which `limitctl edit` can remove the difference.
    pub(crate) fn with_assignment(self, assignment: Option<Assignment>) -> Self {
        Self {
            assignment: assignment.map(Box::new),
            ..self
        }
    }

    /// Adds a note: what follows from the difference, and what to do.
    pub(crate) fn with_note(mut self, note: String) -> Self {
        self.add_note(&note);
        self
    }

    /// Appends to the note.
    pub(crate) fn add_note(&mut self, note: &str) {
        let said = self.note.get_or_insert_default();
        if !said.is_empty() {
            said.push_str("; ");
        }
        said.push_str(note);
    }

    /// A difference between the offsets that two databases give for the same time zone.
    pub(crate) fn of_offsets(path: String, declared: String, in_segment: String) -> Self {
        Self {
            is_of_offsets: true,
            ..Self::new(path, Some(declared), Some(in_segment))
        }
    }

    /// Whether both name the same time zone, and only the offsets that their databases give for it differ.
    pub(crate) fn is_of_offsets(&self) -> bool {
        self.is_of_offsets
    }

    /// Whether only the versions differ.
    pub(crate) fn is_of_versions(&self) -> bool {
        self.is_of_versions
    }

    /// How `limitctl edit` can give the segment the declared value, if it can.
    pub(crate) fn assignment(&self) -> Option<&Assignment> {
        self.assignment.as_deref()
    }

    /// Where they differ, such as `set "openai" / limit "tokens" / capacity`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The declared value as TOML writes it, if there is one. A whole set or limit is `present`.
    pub fn declared(&self) -> Option<&str> {
        self.declared.as_deref()
    }

    /// What follows from the difference and what to do, if there is anything to say: for example, that the log of a
    /// sliding window stays [short](crate::Limit::entries).
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// The segment's value as TOML writes it, if there is one. A whole set or limit is `present`.
    pub fn in_segment(&self) -> Option<&str> {
        self.in_segment.as_deref()
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (None, None, Some(note)) = (&self.declared, &self.in_segment, &self.note) {
            return write!(f, "{}: {note}", self.path);
        }
        let declared = self.declared().unwrap_or("absent");
        let in_segment = self.in_segment().unwrap_or("absent");
        write!(
            f,
            "{}: declared {declared}, in the segment {in_segment}",
            self.path
        )?;
        match &self.note {
            Some(note) => write!(f, " ({note})"),
            None => Ok(()),
        }
    }
}
