//! Sets that are made when they are asked for: copies of a declared one.

use crate::api::declaration::place::{check_name, check_range};
use crate::api::declaration::{Declaration, MAX_SETS, SegmentOptions, SetDeclaration};
use crate::error::DeclarationError;

const SETS_ON_DEMAND: u32 = 64;

impl SegmentOptions {
    /// The set that names which are not declared get a copy of.
    pub fn sets_on_demand(&self) -> Option<&str> {
        self.sets_on_demand.as_deref()
    }

    /// How many copies of it there may be; 0 where no set is copied.
    pub fn max_sets_on_demand(&self) -> u32 {
        let count = self.max_sets_on_demand.unwrap_or(SETS_ON_DEMAND);
        if self.sets_on_demand.is_some() { count } else { 0 }
    }
}

impl Declaration {
    /// Whether a set may be called so.
    pub(crate) fn check_set_name(name: &str) -> Result<(), DeclarationError> {
        check_name(|| "set on demand".to_owned(), name)
    }

    /// How many copies of a set there is room for; none where no set is copied.
    pub(in crate::api::declaration) fn sets_on_demand_count(&self) -> Option<u32> {
        let options = &self.segment;
        options
            .sets_on_demand
            .is_some()
            .then(|| options.max_sets_on_demand())
    }

    /// The set that is copied, and how often it can be.
    pub(crate) fn template(&self) -> Option<(&SetDeclaration, u32)> {
        let name = self.segment.sets_on_demand.as_deref()?;
        let set = self.sets.iter().find(|set| set.name == name)?;
        Some((set, self.sets_on_demand_count()?))
    }

    pub(in crate::api::declaration) fn check_sets_on_demand(&self) -> Result<(), DeclarationError> {
        let options = &self.segment;
        let Some(template) = &options.sets_on_demand else {
            return match options.max_sets_on_demand {
                None => Ok(()),
                Some(given) => Err(DeclarationError::Misplaced {
                    place: "segment / max_sets_on_demand".to_owned(),
                    given: given.to_string(),
                    advice: "no set is copied; remove it, or name the set to copy in sets_on_demand"
                        .to_owned(),
                }),
            };
        };
        let Some((_, copies)) = self.template() else {
            return Err(DeclarationError::Value {
                place: "segment / sets_on_demand".to_owned(),
                given: format!("{template:?}"),
                problem: "is no declared set: declare the set that is to be copied".to_owned(),
            });
        };
        let room = MAX_SETS.saturating_sub(self.sets.len() as u64);
        check_range(
            || "segment / max_sets_on_demand".to_owned(),
            copies.into(),
            1,
            room,
        )
    }
}
