//! The networks that a limit counts, as declared.

use serde::{Deserialize, Serialize};

use crate::declaration::location::{Location, check_range};
use crate::engine::terms::plan::PrefixLengths;
use crate::error::DeclarationError;

/// Declared prefix lengths, of any size until they are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::declaration) struct Prefix {
    pub(in crate::declaration) ipv4: u32,
    pub(in crate::declaration) ipv6: u32,
}

impl Prefix {
    pub(in crate::declaration) fn new(ipv4: u8, ipv6: u8) -> Self {
        Self {
            ipv4: ipv4.into(),
            ipv6: ipv6.into(),
        }
    }

    pub(in crate::declaration) fn check(&self, place: &Location<'_>) -> Result<(), DeclarationError> {
        check_range(|| place.field("prefix / ipv4"), self.ipv4.into(), 0, 32)?;
        check_range(|| place.field("prefix / ipv6"), self.ipv6.into(), 0, 128)
    }

    /// The lengths, once checked.
    pub(in crate::declaration) fn lengths(self) -> PrefixLengths {
        PrefixLengths {
            ipv4: self.ipv4 as u8,
            ipv6: self.ipv6 as u8,
        }
    }

    /// Whether the networks of one lie within those of the other, for both address families.
    pub(in crate::declaration) fn nests_with(&self, other: &Self) -> bool {
        let within = |inner: &Self, outer: &Self| inner.ipv4 >= outer.ipv4 && inner.ipv6 >= outer.ipv6;
        within(self, other) || within(other, self)
    }
}
