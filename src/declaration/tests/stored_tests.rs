//! Definition texts, which a segment stores for each set.

use proptest::prelude::*;

use super::random_tests::declarations;
use crate::declaration::stored::StoredSet;
use crate::declaration::tests::*;

proptest! {
    #[test]
    fn what_is_stored_is_read_back_with_its_version_and_its_mark(
        declaration in declarations(),
        version in proptest::option::of(1..=u64::MAX >> 1),
        is_edited in any::<bool>(),
    ) {
        let make = if is_edited { StoredSet::edited } else { StoredSet::declared };
        for set in declaration.sets() {
            let stored = make(set.clone(), version);
            let text = stored.to_text().expect("valid");
            let read = match StoredSet::from_text(&text) {
                Ok(read) => read,
                Err(error) => return Err(TestCaseError::fail(format!("{error}\n{text}"))),
            };
            prop_assert_eq!(read.to_text().expect("valid"), text);
            prop_assert_eq!((read.version(), read.is_edited()), (version, is_edited));
            let plan = read.compile().expect("valid");
            prop_assert_eq!((plan.version, plan.is_edited), (version, is_edited));
        }
    }

    #[test]
    fn no_definition_text_panics(text in "\\PC*", field in "(version|edited|mode) = \\PC{0,20}") {
        let _ = StoredSet::from_text(&text);
        let _ = StoredSet::from_text(&format!("[segment]\n{field}\n{}", limit_toml("kind = \"concurrency\", capacity = 1")));
    }
}

#[test]
fn a_text_without_version_and_mark_is_that_of_the_declaration() {
    let declaration =
        Declaration::new().add_set(SetDeclaration::new("s").add_limit(Limit::concurrency("l", 3)));
    let stored = StoredSet::declared(declaration.sets()[0].clone(), None);
    assert_eq!(
        stored.to_text().expect("valid"),
        declaration.to_toml().expect("valid")
    );
}

#[test]
fn a_text_of_two_sets_or_of_none_is_no_definition() {
    let declaring = |names: &[&str]| {
        let set = |name: &&str| SetDeclaration::new(*name).add_limit(Limit::concurrency("l", 3));
        names
            .iter()
            .map(set)
            .fold(Declaration::new(), Declaration::add_set)
    };
    let two = declaring(&["a", "b"]).to_toml().expect("valid");
    assert!(StoredSet::from_text(&two).is_err());
    assert!(StoredSet::from_text("").is_err());
}
