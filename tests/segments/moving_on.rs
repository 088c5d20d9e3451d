//! What looks like a standstill without the lock.

use shmlimit::snapshot::SegmentReader;
use shmlimit::{Limit, SetDeclaration};

use crate::scene::{self, expect_permit, expect_refusal};

#[test]
fn a_shard_moves_on_with_each_decision_refusals_included() {
    let places = SetDeclaration::new("set").add_limit(Limit::concurrency("places", 1));
    let (_directory, segment, set) = scene::create(places);
    let reader = SegmentReader::open(segment.path()).expect("readable");
    let changes = || reader.diagnose().expect("readable").shards[0].changes;
    let mut seen = vec![changes()];
    assert_eq!(changes(), seen[0], "a look is no operation");
    let permit = expect_permit(set.request().try_acquire());
    seen.push(changes());
    for _ in 0..3 {
        expect_refusal(set.request().try_acquire());
        seen.push(changes());
    }
    drop(permit);
    seen.push(changes());
    assert!(seen.is_sorted_by(|before, after| before < after), "{seen:?}");
}
