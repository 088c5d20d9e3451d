//! What a host grants itself under the policy `Safe` while the store is out, and once it is back.

use proptest::prelude::*;

use crate::choices::Outage;
use crate::limit::{Answer, Budget, FixedWindow, LEASE_WORDS, LeaseWord, Rule};

use super::lease_store::{Host, LEASE, MILLISECOND, SECOND, answered, backlog, leased};

const STEP: u64 = 10 * MILLISECOND;
const WINDOW: u64 = 60 * SECOND;

fn window(capacity: u64) -> FixedWindow {
    FixedWindow::utc(capacity, WINDOW).expect("valid")
}

/// How much the host has granted itself.
fn ungranted(host: &Host) -> u64 {
    let words = &host.limit.words;
    words[words.len() - LEASE_WORDS + LeaseWord::Ungranted as usize]
}

proptest! {
    /// The store is out, and then grants as much as it pleases, as often as it is asked. `per_step` are wanted in each step.
    #[test]
    fn a_host_grants_itself_no_more_in_its_time_than_its_number(
        which in 0..3_usize,
        capacity in 60..2_000_u64,
        out_for in 1..5 * SECOND,
        granted in proptest::collection::vec(0..4_u64, 1..40),
        per_step in 1..30_u64,
    ) {
        let (local, units, time) = match which {
            // What comes back in one lease.
            0 => (backlog(capacity, capacity), (capacity * LEASE).div_ceil(WINDOW), LEASE),
            1 => (Rule::FixedWindow(window(capacity)), capacity, WINDOW),
            _ => (Rule::Budget(Budget::new(window(capacity)).expect("valid")), capacity, WINDOW),
        };
        let mut host = Host::new(leased(&local, Outage::Safe), 1000);
        let begun = 3600 * SECOND;
        let mut grants = granted.iter().cycle().zip(1..);
        let mut now = begun;
        prop_assert!(!host.take(now, 1), "nothing is leased yet");
        while now < begun + out_for + 2 * LEASE {
            while let Some(ask) = host.ask(now) {
                if now < begun + out_for {
                    host.fail(now, ask.sequence);
                    break;
                }
                let (granted, number) = grants.next().expect("endless");
                let answer = answered(ask, *granted, number);
                let remaining = answer.remaining.min(begun + WINDOW - now);
                host.install(now, now, Answer { remaining, ..answer });
            }
            for _ in 0..per_step {
                host.take(now, 1);
            }
            now += STEP;
        }
        let most = units * ((now - begun) / time + 1);
        let ungranted = ungranted(&host);
        prop_assert!(ungranted > 0, "it goes on by policy");
        prop_assert!(ungranted <= most, "{ungranted} by policy, at most {most}");
    }
}
