//! Where a field of a declaration belongs, for those who wrote it in the wrong place.

use serde::Deserialize;
use serde::de::value::Error;
use serde::de::{Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;

use super::limit::Limit;
use super::limit::credit::CreditTable;
use super::limit::fleet_lease::FleetLease;
use super::limit::prefix::Prefix;
use super::options::checkpoint::Checkpoint;
use super::options::fleet::FleetOptions;
use super::set::SetDeclaration;
use super::set::keyed::Keyed;
use super::set::tier::{Tier, TierLimit};
use super::{Declaration, SegmentOptions};

/// The names of fields.
pub(super) type Fields = &'static [&'static str];

/// A field that only the definitions of a segment have.
const INTERNAL: &str = "edited";

/// Says where a field belongs if serde does not know it where it was written, but it is known elsewhere. `message` is
/// serde's error.
pub(super) fn advice(message: &str) -> Option<String> {
    let (field, rest) = message.strip_prefix("unknown field `")?.split_once('`')?;
    // It may be the plural of a field that is known here.
    if field == INTERNAL || rest.contains(&format!("`{}`", field.trim_end_matches('s'))) {
        return None;
    }
    let levels = [
        ("at the top level", fields::<Declaration>()),
        ("under `[segment]`", fields::<SegmentOptions>()),
        ("in `checkpoint` of `[segment]`", fields::<Checkpoint>()),
        ("under `[fleet]`", fields::<FleetOptions>()),
        ("under `[[set]]`", fields::<SetDeclaration>()),
        ("in `keyed` of a set", fields::<Keyed>()),
        ("under `[[set.tier]]`", fields::<Tier>()),
        ("in `limits` of a tier", fields::<TierLimit>()),
        ("under `[[set.limit]]`", fields::<Limit>()),
        ("in `fleet` of a limit", fields::<FleetLease>()),
        ("in `prefix` of a limit", fields::<Prefix>()),
        ("in `credit` of a limit", fields::<CreditTable>()),
    ];
    let places: Vec<&str> = levels
        .into_iter()
        .filter(|(_, fields)| fields.contains(&field))
        .map(|(place, _)| place)
        .collect();
    (!places.is_empty()).then(|| format!("`{field}` belongs {}", places.join(", or ")))
}

/// The names of the fields that serde reads into a type.
pub(super) fn fields<'de, T: Deserialize<'de>>() -> Fields {
    let mut names: Fields = &[];
    // It fails once it has said which fields it asks for.
    let _ = T::deserialize(Asked(&mut names));
    names
}

/// Notes which fields a type asks for, and fails, as it has none of them.
struct Asked<'a>(&'a mut Fields);

impl<'de> Deserializer<'de> for Asked<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("nothing is read"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        *self.0 = fields;
        self.deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error for a field at the top of a declaration.
    fn at_the_top(field: &str) -> String {
        let error = Declaration::from_toml(&format!("{field} = 1\n")).expect_err("it is unknown there");
        error.to_string()
    }

    #[test]
    fn each_field_that_is_known_at_another_level_is_told_where_it_belongs() {
        for (field, place) in [
            ("version", "`version` belongs under `[segment]`"),
            ("participants", "under `[segment]`"),
            ("every", "in `checkpoint` of `[segment]`"),
            ("url", "under `[fleet]`"),
            ("holds", "under `[[set]]`"),
            ("limit", "under `[[set]]`"),
            ("max_keys", "in `keyed` of a set"),
            ("capacity", "in `limits` of a tier, or under `[[set.limit]]`"),
            ("algorithm", "under `[[set.limit]]`"),
            ("outage", "in `fleet` of a limit"),
            ("cold_wait", "in `fleet` of a limit"),
            ("unleased", "in `fleet` of a limit"),
            ("ipv4", "in `prefix` of a limit"),
            ("batch", "in `credit` of a limit"),
        ] {
            let message = at_the_top(field);
            assert!(message.contains(place), "{field}: {message}");
            assert!(message.contains("line 1"), "{message}");
        }
        let inside = Declaration::from_toml("[[set]]\nname = \"a\"\nmax_keys = 5\nsegment = 1\n");
        let message = inside.expect_err("it is unknown there").to_string();
        assert!(
            message.contains("`max_keys` belongs in `keyed` of a set"),
            "{message}"
        );
    }

    #[test]
    fn every_field_of_every_level_is_known() {
        for (fields, least) in [
            (fields::<Declaration>(), 3),
            (fields::<SegmentOptions>(), 7),
            (fields::<Limit>(), 20),
            (fields::<SetDeclaration>(), 9),
            (fields::<TierLimit>(), 5),
        ] {
            assert!(fields.len() >= least, "{fields:?}");
            for field in fields.iter().filter(|field| **field != INTERNAL) {
                let message = format!("unknown field `{field}`, expected something else");
                assert!(advice(&message).is_some(), "{field}");
            }
        }
    }

    #[test]
    fn nothing_is_said_of_what_is_known_nowhere_or_is_a_plural_of_what_is_known_there() {
        assert!(!at_the_top("versions").contains("belongs"));
        assert!(!at_the_top("edited").contains("belongs"));
        let message = Declaration::from_toml("[[set]]\nname = \"a\"\nlimits = []\n")
            .expect_err("it is unknown there")
            .to_string();
        assert!(!message.contains("belongs"), "{message}");
    }
}
