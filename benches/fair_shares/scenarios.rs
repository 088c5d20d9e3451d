//! What is measured for each discipline.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use super::contest::{Ask, Contest, Discipline, LARGEST, RATE, Served};

/// How many queued requests each key that always waits has.
const BACKLOG: usize = 3;

/// A scenario, and what it aims at.
pub struct Scenario {
    pub name: &'static str,
    pub aim: &'static str,
    /// Returns `None` where the discipline has no such thing.
    pub measure: fn(&Path, Discipline, u64) -> Option<String>,
}

pub const SCENARIOS: [Scenario; 6] = [
    Scenario {
        name: "two keys that always wait: difference of what they got, in largest requests",
        aim: "at most 2",
        measure: two_keys,
    },
    Scenario {
        name: "a light key's wait behind 40 busy keys, in fair rounds: mean, longest",
        aim: "0.2, 1",
        measure: light_key,
    },
    Scenario {
        name: "weights 1 and 10: what the second got of ten times the first",
        aim: "98 to 102 %",
        measure: weights,
    },
    Scenario {
        name: "flood of keys with one request at 1.2 times the rate: a busy key's longest wait, in fair rounds",
        aim: "about 1",
        measure: flood,
    },
    Scenario {
        name: "a key that reserves 16 times what it uses: its part of what it and another used",
        aim: "at least 45 %",
        measure: reserves_too_much,
    },
    Scenario {
        name: "used of the rate while anybody waits",
        aim: "at least 99 %",
        measure: used_rate,
    },
];

/// Mostly small costs and some large ones: a Pareto distribution, cut off.
fn heavy_tailed(random: &mut fastrand::Rng) -> u64 {
    ((5.0 / random.f64().max(1e-9).powf(0.8)) as u64).clamp(1, LARGEST)
}

fn light(_: u64) -> &'static str {
    "light"
}

/// Runs a contest in which the keys of a range always wait, with requests from `cost`.
fn always_waiting(
    contest: &mut Contest,
    keys: std::ops::Range<u64>,
    end: Duration,
    mut cost: impl FnMut(u64) -> Ask,
) {
    for key in keys.clone() {
        for _ in 0..BACKLOG {
            contest.add(Duration::ZERO, cost(key));
        }
    }
    contest.run(end, |contest, served| {
        if keys.contains(&served.ask.key) {
            let next = cost(served.ask.key);
            contest.add(contest.now(), next);
        }
    });
}

/// The total that a key was served.
fn total(served: &[Served], key: u64) -> u64 {
    served
        .iter()
        .filter(|served| served.ask.key == key)
        .map(|served| served.ask.used)
        .sum()
}

fn two_keys(directory: &Path, discipline: Discipline, length: u64) -> Option<String> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut contest = Contest::new(directory, discipline, light);
    always_waiting(&mut contest, 0..2, Duration::from_secs(length), |key| {
        // One key has requests of all sizes, the other of only one size.
        Ask::of(key, if key == 0 { heavy_tailed(&mut random) } else { 10 })
    });
    let (mut lead, mut least, mut most) = (0_i64, 0, 0);
    for served in after_the_burst(&contest) {
        let cost = served.ask.used as i64;
        lead += if served.ask.key == 0 { cost } else { -cost };
        (least, most) = (lead.min(least), lead.max(most));
    }
    Some(format!("{:.2}", (most - least) as f64 / LARGEST as f64))
}

/// What was served once the burst was used up, so that everybody waited.
fn after_the_burst(contest: &Contest) -> impl Iterator<Item = &Served> {
    contest
        .served
        .iter()
        .filter(|served| served.at > Duration::from_secs(1))
}

fn light_key(directory: &Path, discipline: Discipline, length: u64) -> Option<String> {
    const BUSY: u64 = 40;
    let mut random = fastrand::Rng::with_seed(2);
    let mut contest = Contest::new(directory, discipline, light);
    let mut arrivals = fastrand::Rng::with_seed(3);
    let mut at = Duration::from_secs(5);
    while at < Duration::from_secs(length) {
        contest.add(at, Ask::of(BUSY, 10));
        at += Duration::from_millis(arrivals.u64(1_000..9_000));
    }
    let end = Duration::from_secs(length);
    always_waiting(&mut contest, 0..BUSY, end, |key| {
        Ask::of(key, heavy_tailed(&mut random))
    });
    let served = after_the_burst(&contest);
    let busy: Vec<&Served> = served.filter(|served| served.ask.key < BUSY).collect();
    let mean_cost = busy.iter().map(|served| served.ask.used).sum::<u64>() as f64 / busy.len() as f64;
    let round = BUSY as f64 * mean_cost / RATE as f64;
    let waits: Vec<f64> = contest
        .served
        .iter()
        .filter(|served| served.ask.key == BUSY)
        .map(|served| (served.at - served.asked_at).as_secs_f64() / round)
        .collect();
    let mean = waits.iter().sum::<f64>() / waits.len() as f64;
    Some(format!(
        "{mean:.2}, {:.2}",
        waits.iter().copied().fold(0.0, f64::max)
    ))
}

fn weights(directory: &Path, discipline: Discipline, _: u64) -> Option<String> {
    if discipline != Discipline::Fair {
        return None;
    }
    let tier_of = |key| if key == 1 { "heavy" } else { "light" };
    let mut contest = Contest::new(directory, discipline, tier_of);
    // Long enough for a hundred of the largest requests of the light key, and a thousand of the other.
    let end = Duration::from_secs(1_100 * LARGEST / RATE);
    always_waiting(&mut contest, 0..2, end, |key| Ask::of(key, LARGEST));
    let served: Vec<Served> = after_the_burst(&contest).copied().collect();
    let (one, ten) = (total(&served, 0), total(&served, 1));
    Some(format!("{:.1} %", 10.0 * ten as f64 / one as f64))
}

fn flood(directory: &Path, discipline: Discipline, length: u64) -> Option<String> {
    const BUSY: u64 = 10;
    const COST: u64 = 50;
    let mut contest = Contest::new(directory, discipline, light);
    let flood = 12 * RATE / 10 / COST;
    for number in 0..flood * length {
        let at = Duration::from_secs(5) + Duration::from_secs(1) * number as u32 / flood as u32;
        let patience = Duration::from_secs(10);
        contest.add(
            at,
            Ask {
                patience,
                ..Ask::of(BUSY + number, COST)
            },
        );
    }
    for key in 0..BUSY {
        for _ in 0..BACKLOG {
            contest.add(Duration::ZERO, Ask::of(key, COST));
        }
    }
    let end = Duration::from_secs(length);
    let mut last: HashMap<u64, Duration> = HashMap::new();
    let (mut longest, mut keys) = (Duration::ZERO, 0);
    contest.run(end, |contest, served| {
        keys = keys.max(contest.waiting_keys());
        if served.ask.key < BUSY {
            let before = last.insert(served.ask.key, served.at).unwrap_or(served.at);
            longest = longest.max(served.at - before);
            contest.add(contest.now(), Ask::of(served.ask.key, COST));
        }
    });
    let unserved = (0..BUSY)
        .map(|key| end - last.get(&key).copied().unwrap_or_default())
        .max();
    let longest = longest.max(unserved.unwrap_or_default());
    let round = keys as f64 * COST as f64 / RATE as f64;
    Some(format!("{:.2}", longest.as_secs_f64() / round))
}

fn reserves_too_much(directory: &Path, discipline: Discipline, length: u64) -> Option<String> {
    if discipline == Discipline::Semaphore {
        return None;
    }
    let mut contest = Contest::new(directory, discipline, light);
    always_waiting(&mut contest, 0..2, Duration::from_secs(length), |key| Ask {
        reserved: if key == 0 { 16 * 5 } else { 5 },
        hold: Duration::from_millis(200),
        ..Ask::of(key, 5)
    });
    let (one, other) = (total(&contest.served, 0), total(&contest.served, 1));
    Some(format!("{:.1} %", 100.0 * one as f64 / (one + other) as f64))
}

fn used_rate(directory: &Path, discipline: Discipline, length: u64) -> Option<String> {
    let mut random = fastrand::Rng::with_seed(4);
    let mut contest = Contest::new(directory, discipline, light);
    let end = Duration::from_secs(length);
    always_waiting(&mut contest, 0..20, end, |key| {
        Ask::of(key, heavy_tailed(&mut random))
    });
    let served: Vec<&Served> = after_the_burst(&contest).collect();
    let first = served.first()?.at;
    let used: u64 = served.iter().map(|served| served.ask.used).sum();
    Some(format!(
        "{:.1} %",
        100.0 * used as f64 / (RATE as f64 * (end - first).as_secs_f64())
    ))
}
