//! The sets of a segment as their definition texts have them: what was declared, in which version, and by whom it was
//! changed.

use std::path::Path;

use super::{Declaration, SetDeclaration};
use crate::engine::plan::SetPlan;
use crate::error::{DeclarationError, Error};

/// A set as the segment defines it.
#[derive(Clone, Debug)]
pub(crate) struct StoredSet {
    set: SetDeclaration,
    version: Option<u64>,
    is_edited: bool,
}

impl StoredSet {
    /// As a declaration of that version defines the set.
    pub(crate) fn declared(set: SetDeclaration, version: Option<u64>) -> Self {
        Self {
            set,
            version,
            is_edited: false,
        }
    }

    /// As an operator defines the set.
    pub(crate) fn edited(set: SetDeclaration, version: Option<u64>) -> Self {
        Self {
            is_edited: true,
            ..Self::declared(set, version)
        }
    }

    /// Reads a definition text of the segment at `path`.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`].
    pub(crate) fn read(text: &str, path: &Path) -> Result<Self, Error> {
        Self::from_text(text).map_err(|why| Error::Damaged {
            path: path.to_owned(),
            what: format!("a set's definition cannot be read: {why}"),
        })
    }

    /// Reads a definition text; answers what is wrong with it otherwise.
    pub(crate) fn from_text(text: &str) -> Result<Self, String> {
        let mut declaration: Declaration = toml::from_str(text).map_err(|error| error.to_string())?;
        let is_edited = declaration.segment.edited.take().unwrap_or_default();
        declaration.validate().map_err(|error| error.to_string())?;
        let version = declaration.segment.version;
        let Ok([set]) = <[_; 1]>::try_from(declaration.sets) else {
            return Err("it does not define one set".to_owned());
        };
        Ok(Self {
            set,
            version,
            is_edited,
        })
    }

    /// The definition text: canonical, so that equal definitions are equal texts.
    pub(crate) fn to_text(&self) -> Result<String, DeclarationError> {
        let mut declaration = self.to_declaration();
        declaration.segment.version = self.version;
        declaration.validate()?;
        declaration.segment.edited = self.is_edited.then_some(true);
        declaration.canonical_toml()
    }

    pub(crate) fn set(&self) -> &SetDeclaration {
        &self.set
    }

    /// The version of the declaration that it comes from, if that has one.
    pub(crate) fn version(&self) -> Option<u64> {
        self.version
    }

    /// Whether an operator made it what it is.
    pub(crate) fn is_edited(&self) -> bool {
        self.is_edited
    }

    /// The plan that the engine decides by.
    pub(crate) fn compile(&self) -> Result<SetPlan, DeclarationError> {
        Ok(SetPlan {
            version: self.version,
            is_edited: self.is_edited,
            ..self.set.compile()?
        })
    }

    /// A declaration of this set alone.
    pub(crate) fn to_declaration(&self) -> Declaration {
        Declaration::new().set(self.set.clone())
    }
}

/// What a segment holds.
#[derive(Clone, Debug)]
pub(crate) struct StoredDeclaration {
    participants: u32,
    sets: Vec<StoredSet>,
}

impl StoredDeclaration {
    pub(crate) fn new(participants: u32, sets: Vec<StoredSet>) -> Self {
        Self { participants, sets }
    }

    /// Reads the definition texts of the segment at `path`.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`].
    pub(crate) fn read<'a>(
        participants: u32,
        texts: impl Iterator<Item = &'a str>,
        path: &Path,
    ) -> Result<Self, Error> {
        let sets = texts
            .map(|text| StoredSet::read(text, path))
            .collect::<Result<_, _>>()?;
        Ok(Self::new(participants, sets))
    }

    /// Each set in the order of the directory.
    pub(crate) fn sets(&self) -> &[StoredSet] {
        &self.sets
    }

    /// All of it in one declaration. It has a version where all sets are of that version: while another is brought into
    /// force, set by set, there is none.
    pub(crate) fn to_declaration(&self) -> Declaration {
        let mut declaration = Declaration::new().participants(self.participants);
        declaration.sets = self.sets.iter().map(|stored| stored.set.clone()).collect();
        let version = self.sets.first().and_then(StoredSet::version);
        if self.sets.iter().all(|stored| stored.version == version) {
            declaration.segment.version = version;
        }
        declaration
    }
}
