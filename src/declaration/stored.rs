//! The sets of a segment as their definition texts have them: what was declared, in which version, and who changed it.

use std::path::Path;
use std::sync::Arc;

use super::{Declaration, FleetOptions, SetDeclaration};
use crate::engine::terms::plan::SetPlan;
use crate::error::{DeclarationError, Error, SegmentError};
use crate::shm::file::verified::CreationOptions;

/// A set as its segment defines it.
#[derive(Clone, Debug)]
pub(crate) struct StoredSet {
    set: SetDeclaration,
    fleet: Option<Arc<FleetOptions>>,
    version: Option<u64>,
    is_edited: bool,
}

impl StoredSet {
    /// A set as defined by a declaration of that version.
    pub(crate) fn declared(set: SetDeclaration, version: Option<u64>) -> Self {
        Self {
            set,
            fleet: None,
            version,
            is_edited: false,
        }
    }

    /// Sets the fleet of the segment.
    pub(crate) fn of_fleet(self, fleet: Option<&FleetOptions>) -> Self {
        Self {
            fleet: fleet.cloned().map(Arc::new),
            ..self
        }
    }

    /// A set as defined by an operator.
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
    /// [`SegmentError::Damaged`].
    pub(crate) fn read(text: &str, path: &Path) -> Result<Self, Error> {
        Self::from_text(text).map_err(|why| {
            Error::Segment(SegmentError::Damaged {
                path: path.to_owned(),
                what: format!("a set's definition cannot be read: {why}"),
            })
        })
    }

    /// Reads a definition text, or says what is wrong with it.
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
            fleet: declaration.fleet.map(Arc::new),
            version,
            is_edited,
        })
    }

    /// The definition text. It is canonical, so equal definitions have equal texts.
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

    /// The fleet of the segment.
    pub(crate) fn fleet(&self) -> Option<&FleetOptions> {
        self.fleet.as_deref()
    }

    /// The version of the declaration that it comes from, if any.
    pub(crate) fn version(&self) -> Option<u64> {
        self.version
    }

    /// Whether it was last changed by an operator.
    pub(crate) fn is_edited(&self) -> bool {
        self.is_edited
    }

    /// The plan for the engine.
    pub(crate) fn compile(&self) -> Result<SetPlan, DeclarationError> {
        Ok(SetPlan {
            version: self.version,
            is_edited: self.is_edited,
            ..self.set.compile(self.fleet.as_deref())?
        })
    }

    /// A declaration of this set alone.
    pub(crate) fn to_declaration(&self) -> Declaration {
        Declaration::new()
            .of_fleet(self.fleet.as_deref().cloned())
            .add_set(self.set.clone())
    }
}

/// The definitions that a segment holds.
#[derive(Clone, Debug)]
pub(crate) struct StoredDeclaration {
    options: CreationOptions,
    sets: Vec<StoredSet>,
}

impl StoredDeclaration {
    pub(crate) fn new(options: CreationOptions, sets: Vec<StoredSet>) -> Self {
        Self { options, sets }
    }

    /// The definitions of a declaration that nothing has changed yet.
    pub(crate) fn of(declaration: &Declaration) -> Self {
        let version = declaration.segment.version;
        let stored = |set: &SetDeclaration| {
            StoredSet::declared(set.clone(), version).of_fleet(declaration.fleet.as_ref())
        };
        let sets = declaration.sets.iter().map(stored).collect();
        Self::new(declaration.segment.creation_options(), sets)
    }

    /// Reads the definition texts of the segment at `path`.
    ///
    /// # Errors
    ///
    /// [`SegmentError::Damaged`].
    pub(crate) fn read<'a>(
        options: CreationOptions,
        texts: impl Iterator<Item = &'a str>,
        path: &Path,
    ) -> Result<Self, Error> {
        let sets = texts
            .map(|text| StoredSet::read(text, path))
            .collect::<Result<_, _>>()?;
        Ok(Self::new(options, sets))
    }

    /// The sets, in the order of the directory.
    pub(crate) fn sets(&self) -> &[StoredSet] {
        &self.sets
    }

    /// Everything in one declaration. It has a version only if all sets have that version; while another is being put
    /// into force, set by set, it has none.
    pub(crate) fn to_declaration(&self) -> Declaration {
        let mut declaration = Declaration::new().created_with(self.options);
        declaration.sets = self.sets.iter().map(|stored| stored.set.clone()).collect();
        declaration.fleet = self
            .sets
            .iter()
            .find_map(|stored| stored.fleet.as_deref().cloned());
        let version = self.sets.first().and_then(StoredSet::version);
        if self.sets.iter().all(|stored| stored.version == version) {
            declaration.segment.version = version;
        }
        declaration
    }
}
