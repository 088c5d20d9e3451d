//! What happens to a permit whose key was evicted by another.

use std::time::Duration;

use crate::scene;
use crate::scene::expect_permit;
use shmlimit::declare::WhenFull;
use shmlimit::{Algorithm, Keyed, Limit, Segment, SetDeclaration};

const HOUR: Duration = Duration::from_secs(3600);

/// More than the table has rows.
const MANY: usize = 33;

fn segment(directory: &tempfile::TempDir) -> Segment {
    let declaration = scene::declaration().add_set(
        SetDeclaration::new("api")
            .keyed(Keyed::new(20).when_full(WhenFull::EvictOldest))
            .add_limit(Limit::rate("tokens", 1_000_000, HOUR).algorithm(Algorithm::TokenBucket)),
    );
    Segment::create(directory.path().join("limits"), &declaration).expect("a segment")
}

#[test]
fn what_was_reserved_by_pushing_out_another_key_is_refunded() {
    let directory = tempfile::tempdir().expect("a directory");
    let segment = segment(&directory);
    let set = segment.set("api").expect("declared");
    let request = set.request().with("tokens", 500_000).expect("declared");
    for number in 0..MANY {
        let key = format!("tenant {number}");
        let mut permit = expect_permit(request.for_key(key).expect("keyed").try_acquire());
        let settlement = permit.settle([("tokens", 100_000)]).expect("works");
        assert_eq!(settlement.refunded("tokens"), 400_000, "tenant {number}");
    }
    let keys = segment.snapshot().expect("memory").sets[0].keys.expect("keyed");
    assert!(keys.evicted_in_use > 0, "no key was evicted");
}

#[test]
fn a_key_that_was_pushed_out_refunds_nothing_to_the_key_that_has_its_row() {
    let directory = tempfile::tempdir().expect("a directory");
    let segment = segment(&directory);
    let set = segment.set("api").expect("declared");
    let request = set.request().with("tokens", 500_000).expect("declared");
    let mut permit = expect_permit(request.for_key("first").expect("keyed").try_acquire());
    for number in 1..MANY {
        let key = format!("tenant {number}");
        drop(expect_permit(request.for_key(key).expect("keyed").try_acquire()));
    }
    let settlement = permit.settle([("tokens", 0)]).expect("works");
    assert_eq!(settlement.refunded("tokens"), 0);
    for number in 2..MANY {
        let verdicts = request
            .for_key(format!("tenant {number}"))
            .expect("keyed")
            .peek()
            .expect("works");
        assert!(verdicts[0].remaining < 510_000, "tenant {number}: {verdicts:?}");
    }
}
