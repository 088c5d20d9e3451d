//! The sets of a segment as their definition texts have them: what was declared, in which version, who changed it,
//! and of a copy that is made on demand, for which name.

use std::path::Path;
use std::sync::Arc;

use super::place::check_name;
use super::{Declaration, FleetOptions, SetDeclaration};
use crate::engine::definition::plan::{OnDemand, SetPlan};
use crate::error::{DeclarationError, Error, SegmentError};
use crate::shm::file::verified::CreationOptions;

/// A set as its segment defines it.
#[derive(Clone, Debug)]
pub(crate) struct StoredSet {
    set: SetDeclaration,
    fleet: Option<Arc<FleetOptions>>,
    version: Option<u64>,
    is_edited: bool,
    on_demand: Option<OnDemand>,
}

impl StoredSet {
    /// A set as defined by a declaration of that version.
    pub(crate) fn declared(set: SetDeclaration, version: Option<u64>) -> Self {
        Self {
            set,
            fleet: None,
            version,
            is_edited: false,
            on_demand: None,
        }
    }

    /// Sets the fleet of the segment.
    pub(crate) fn of_fleet(self, fleet: Option<&FleetOptions>) -> Self {
        Self {
            fleet: fleet.cloned().map(Arc::new),
            ..self
        }
    }

    /// A copy of that set, for the process that asks for it first.
    pub(crate) fn spare(self) -> Self {
        Self {
            on_demand: Some(OnDemand::default()),
            ..self
        }
    }

    /// The set as declared, without the marks that a segment adds.
    pub(crate) fn unmarked(&self) -> Self {
        Self::declared(self.set.clone(), self.version).of_fleet(self.fleet.as_deref())
    }

    /// The copy, for the set of that name; none where it is no copy, or another's already.
    pub(crate) fn given_to(&self, name: &str) -> Option<Self> {
        match &self.on_demand {
            Some(OnDemand { name: None }) => Some(Self {
                on_demand: Some(OnDemand {
                    name: Some(name.to_owned()),
                }),
                ..self.clone()
            }),
            _ => None,
        }
    }

    /// With the name that `former` was given, if it is a copy: no change of a definition takes it away.
    pub(crate) fn in_place_of(self, former: &Self) -> Self {
        Self {
            on_demand: former.on_demand.clone(),
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
        let on_demand = declaration.segment.on_demand.take().map(|name| OnDemand {
            name: Some(name).filter(|name| !name.is_empty()),
        });
        if let Some(OnDemand { name: Some(name) }) = &on_demand {
            check_name(|| "segment / on_demand".to_owned(), name).map_err(|error| error.to_string())?;
        }
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
            on_demand,
        })
    }

    /// The definition text. It is canonical, so equal definitions have equal texts.
    pub(crate) fn to_text(&self) -> Result<String, DeclarationError> {
        let mut declaration = self.to_declaration();
        declaration.segment.version = self.version;
        declaration.validate()?;
        declaration.segment.edited = self.is_edited.then_some(true);
        let copy = self.on_demand.as_ref();
        declaration.segment.on_demand = copy.map(|copy| copy.name.clone().unwrap_or_default());
        declaration.canonical_toml()
    }

    pub(crate) fn set(&self) -> &SetDeclaration {
        &self.set
    }

    /// The version of the declaration that it comes from, if any.
    pub(crate) fn version(&self) -> Option<u64> {
        self.version
    }

    /// Whether it was last changed by an operator.
    pub(crate) fn is_edited(&self) -> bool {
        self.is_edited
    }

    /// Whether it is a copy of a declared set, which speaks for all of them.
    pub(crate) fn is_on_demand(&self) -> bool {
        self.on_demand.is_some()
    }

    /// The plan for the engine.
    pub(crate) fn compile(&self) -> Result<SetPlan, DeclarationError> {
        Ok(SetPlan {
            version: self.version,
            is_edited: self.is_edited,
            on_demand: self.on_demand.clone(),
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
    /// Those that are copied on demand, and then their copies.
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
        let mut sets: Vec<StoredSet> = declaration.sets.iter().map(stored).collect();
        if let Some((template, copies)) = declaration.template() {
            sets.extend((0..copies).map(|_| stored(template).spare()));
        }
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
        let (copies, declared): (Vec<_>, Vec<_>) =
            self.sets.iter().partition(|stored| stored.on_demand.is_some());
        declaration.sets = declared.iter().map(|stored| stored.set.clone()).collect();
        if let Some(copy) = copies.first() {
            declaration = declaration.sets_on_demand(copy.set.name(), copies.len() as u32);
        }
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
