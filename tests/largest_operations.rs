//! The operations that change the most words find room in the journal: none answers with an internal error.

use std::time::Duration;

use shmlimit::{Algorithm, Declaration, Limit, OnDeath, Segment, SetDeclaration};

const MINUTE: Duration = Duration::from_secs(60);
const MOST_LIMITS: usize = 16;

/// A set of as many limits as there may be, each of the kind that changes the most words, all of them held.
fn widest_set(algorithm: Algorithm, held: usize) -> SetDeclaration {
    (0..MOST_LIMITS).fold(SetDeclaration::new("wide"), |set, index| {
        let name = format!("limit {index}");
        set.limit(if index < held {
            Limit::rate(name, 1_000, MINUTE)
                .algorithm(Algorithm::TokenBucket)
                .on_death(OnDeath::Refund)
        } else {
            Limit::rate(name, 1_000, MINUTE).algorithm(algorithm)
        })
    })
}

#[test]
fn the_widest_sets_fit_the_journal() {
    for (algorithm, held) in [
        (Algorithm::SlidingWindow, 1),
        (Algorithm::SlidingWindow, 0),
        (Algorithm::SlidingWindowCounter, 1),
        (Algorithm::TokenBucket, MOST_LIMITS),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let declaration = Declaration::new().set(widest_set(algorithm, held));
        let segment = Segment::create(folder.path().join("limits"), &declaration).expect("a segment");
        let wide = segment.set("wide").expect("declared");
        let names: Vec<String> = wide.limits().map(str::to_owned).collect();
        let mut request = wide.request();
        for name in &names {
            request.set(name, 10).expect("declared");
        }
        // Settled to less and to more than was reserved.
        for used in [3, 2_000] {
            let mut permit = wide
                .try_acquire(&request)
                .expect("room in the journal")
                .permit()
                .expect("room in the limits");
            permit
                .settle(names.iter().map(|name| (name, used)))
                .expect("room in the journal");
            permit.release().expect("room in the journal");
        }
        // Refused by all of them at once.
        let refused = !wide
            .try_acquire(&request)
            .expect("room in the journal")
            .is_admitted();
        assert!(refused);
    }
}
