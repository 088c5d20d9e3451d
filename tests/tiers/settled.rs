//! Permits that are settled after their key has lost its row, and with it what the key was limited by.

use super::*;

/// The rows of the smallest table.
const ROWS: usize = 32;

/// Settles `used` of a permit that a key took by a request for ten times what is declared, after other keys have taken
/// all rows. Returns how the limit then stands, as declared.
fn stands_after(
    declared: SetDeclaration,
    named: for<'a> fn(shmlimit::Request<'a>) -> shmlimit::Request<'a>,
    used: u64,
) -> (bool, u64, Duration) {
    let limit = Limit::rate("tokens", 60, MINUTE).algorithm(Algorithm::TokenBucket);
    let scene = Scene::new(declared.add_limit(limit));
    let set = scene.set();
    let request = || set.request().with("tokens", 1).expect("declared");
    let mut permit = expect_permit(named(request()).for_key("a").expect("keyed").try_acquire());
    scene.pass(MINUTE * 2);
    for number in 0..ROWS {
        let other = format!("other {number}");
        assert!(is_admitted(&request(), other));
    }
    scene.pass(MINUTE * 2);
    let settled = permit.settle([("tokens", used)]).expect("not settled yet");
    assert_eq!(settled.overdraft("tokens"), used - 1);
    let verdict = &request().for_key("a").expect("keyed").peek().expect("no error")[0];
    let wait = verdict.retry_after.unwrap_or_default();
    (verdict.admitted, verdict.remaining, wait)
}

fn by_capacity() -> SetDeclaration {
    SetDeclaration::new("api").keyed(Keyed::new(1).overrides(true))
}

#[test]
fn usage_above_what_was_reserved_is_priced_as_the_permit_was() {
    fn capacity(request: shmlimit::Request<'_>) -> shmlimit::Request<'_> {
        request.with_override("tokens", 600).expect("a capacity")
    }
    let stands = |used| stands_after(by_capacity(), capacity, used);
    // 301 of 600 leave more than there is by the declaration, and 591 leave ten.
    assert_eq!(stands(301), (true, 60, Duration::ZERO));
    assert_eq!(stands(591), (true, 10, Duration::ZERO));
    assert_eq!(stands(611), (false, 0, Duration::from_secs(11)));
}

#[test]
fn so_it_is_by_the_tier_of_the_permit() {
    fn named(request: shmlimit::Request<'_>) -> shmlimit::Request<'_> {
        request.with_tier("gold").expect("a tier")
    }
    let declared = || keyed(1).add_tier(Tier::new("gold").capacity("tokens", 600));
    let stands = |used| stands_after(declared(), named, used);
    assert_eq!(stands(591), (true, 10, Duration::ZERO));
    assert_eq!(stands(611), (false, 0, Duration::from_secs(11)));
}

#[test]
fn by_the_rules_that_the_key_has_anyhow_it_costs_what_it_is() {
    assert_eq!(
        stands_after(by_capacity(), |request| request, 51),
        (true, 10, Duration::ZERO)
    );
}
