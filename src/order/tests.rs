//! The order against a model that scans all keys, and what it promises: shares by weight, and nobody starved.

use std::collections::{BTreeMap, VecDeque};

use super::*;

const KEYS: u64 = 48;

/// An order in plain memory.
#[derive(Clone, Debug)]
struct PlainOrder {
    words: [u64; 7],
    keys: Vec<[u64; 4]>,
    entries: Vec<[u64; 2]>,
}

impl PlainOrder {
    fn new() -> Self {
        Self {
            words: [0; 7],
            keys: vec![[0; 4]; KEYS as usize],
            entries: vec![[0; 2]; KEYS as usize],
        }
    }

    fn tag(&self, row: u64) -> u64 {
        self.load_key(row, KeyWord::Tag)
    }

    /// Serves the first key, which then goes on waiting or does not, and returns it.
    fn serve(&mut self, cost: u64, weight: u64, waits: bool) -> u64 {
        let row = first(self).expect("sound").expect("somebody waits");
        charge(self, row, cost, weight).expect("sound");
        replace(self, row, weight, waits).expect("sound");
        row
    }
}

impl Order for PlainOrder {
    fn capacity(&self) -> u64 {
        self.entries.len() as u64
    }

    fn rows(&self) -> u64 {
        self.keys.len() as u64
    }

    fn load(&self, word: OrderWord) -> u64 {
        self.words[word as usize]
    }

    fn load_key(&self, row: u64, word: KeyWord) -> u64 {
        self.keys
            .get(row as usize)
            .map_or(0, |words| words[word as usize])
    }

    fn load_entry(&self, index: u64) -> [u64; 2] {
        self.entries.get(index as usize).copied().unwrap_or_default()
    }
}

impl OrderMut for PlainOrder {
    fn store(&mut self, word: OrderWord, value: u64) {
        self.words[word as usize] = value;
    }

    fn store_key(&mut self, row: u64, word: KeyWord, value: u64) {
        self.keys[row as usize][word as usize] = value;
    }

    fn store_entry(&mut self, index: u64, entry: [u64; 2]) {
        self.entries[index as usize] = entry;
    }
}

/// A key in the model.
#[derive(Clone, Copy, Debug, Default)]
struct ModelKey {
    tag: i128,
    floor: i128,
    /// If it is ordered: whether as a newcomer, since when, and by which weight.
    ordered: Option<(bool, u64, i128)>,
}

/// The rules, written down as they are stated, in numbers that do not wrap. It scans all keys for each question.
#[derive(Clone, Debug, Default)]
struct Model {
    now: i128,
    latest: i128,
    was_newcomer: bool,
    arrivals: u64,
    keys: BTreeMap<u64, ModelKey>,
}

impl Model {
    fn key(&mut self, row: u64) -> &mut ModelKey {
        self.keys.entry(row).or_default()
    }

    fn of(&self, newcomers: bool) -> impl Iterator<Item = (u64, ModelKey, u64)> {
        self.keys.iter().filter_map(move |(row, key)| {
            let (is_newcomer, arrival, _) = key.ordered?;
            (is_newcomer == newcomers).then_some((*row, *key, arrival))
        })
    }

    fn smallest(&self) -> Option<(u64, i128)> {
        let smallest = self.of(false).min_by_key(|(_, key, arrival)| (key.tag, *arrival));
        smallest.map(|(row, key, _)| (row, key.tag))
    }

    fn first(&self) -> Option<u64> {
        let newcomer = self
            .of(true)
            .min_by_key(|(_, _, arrival)| *arrival)
            .map(|(row, _, _)| row);
        match (newcomer, self.smallest()) {
            (None, smallest) => smallest.map(|(row, _)| row),
            (newcomer, None) => newcomer,
            (Some(newcomer), Some((row, tag))) => Some(if self.now >= tag && self.was_newcomer {
                row
            } else {
                newcomer
            }),
        }
    }

    fn weight(&self) -> i128 {
        self.keys
            .values()
            .filter_map(|key| key.ordered)
            .map(|(_, _, weight)| weight)
            .sum()
    }

    fn insert(&mut self, row: u64, weight: i128) {
        self.arrivals += 1;
        let (arrival, now) = (self.arrivals, self.now);
        let key = self.key(row);
        key.ordered = Some((key.tag <= now, arrival, weight));
    }

    fn join(&mut self, row: u64, weight: i128) {
        self.was_newcomer &= self.weight() > 0;
        let now = self.now;
        let key = self.key(row);
        key.floor = now;
        key.tag = key.tag.max(now);
        self.insert(row, weight);
    }

    fn leave(&mut self, row: u64) {
        if self.key(row).ordered.take().is_some() && self.weight() == 0 {
            self.now = self.now.max(self.latest);
        }
    }

    fn charge(&mut self, row: u64, cost: i128, weight: i128) {
        let (now, all) = (self.now, self.weight());
        let smallest = self.smallest().map(|(_, tag)| tag);
        let key = self.key(row);
        let (is_newcomer, ..) = key.ordered.expect("ordered");
        if is_newcomer {
            key.floor = now;
            key.tag = now + cost / weight;
            let moved = now + cost / all;
            self.now = smallest.map_or(moved, |tag| moved.min(tag.max(now)));
        } else {
            let tag = key.tag;
            key.tag += cost / weight;
            self.now = now.max(tag);
        }
        self.was_newcomer = is_newcomer;
        self.limit(row, cost / weight);
    }

    fn limit(&mut self, row: u64, least: i128) {
        let most = self.now + i128::from(MAX_LEAD).max(least);
        let key = self.key(row);
        key.tag = key.tag.min(most);
        let tag = key.tag;
        self.latest = self.latest.max(tag);
    }

    fn replace(&mut self, row: u64, weight: i128, waits: bool) {
        if self.key(row).ordered.is_none() {
            return;
        }
        if waits {
            let now = self.now;
            self.arrivals += 1;
            let arrival = self.arrivals;
            let key = self.key(row);
            let was_newcomer = key.ordered.is_some_and(|(newcomer, ..)| newcomer);
            key.ordered = Some((was_newcomer && key.tag <= now, arrival, weight));
        } else {
            self.leave(row);
        }
    }

    fn correct(&mut self, row: u64, charged: i128, used: i128, weight: i128, charged_here: bool) {
        if self.weight() == 0 {
            return;
        }
        let now = self.now;
        let change = used / weight - charged / weight;
        let key = self.key(row);
        let is_newcomer = key.ordered.map(|(newcomer, ..)| newcomer);
        if change >= 0 {
            let credit_begins = if is_newcomer == Some(false) { key.tag } else { now };
            key.tag = key.tag.max(credit_begins) + change;
            self.limit(row, 0);
        } else if charged_here {
            key.tag = (key.tag + change).max(key.floor);
        }
        if is_newcomer == Some(false) || self.key(row).tag > now {
            self.replace(row, weight, true);
        }
    }
}

fn compare(order: &PlainOrder, model: &Model) {
    assert!(is_consistent(order), "{order:?}");
    assert_eq!(first(order), Ok(model.first()), "{model:?}");
    assert_eq!(order.load(OrderWord::VirtualTime), model.now as u64);
    assert_eq!(order.load(OrderWord::Weight), model.weight() as u64);
    for (row, key) in &model.keys {
        assert_eq!(
            place(order, *row) != Place::Nowhere,
            key.ordered.is_some(),
            "{row}"
        );
        if key.ordered.is_some() {
            assert_eq!(order.tag(*row), key.tag as u64, "{row}: {model:?}");
        }
    }
}

/// What happens next, by dice.
fn step(dice: &mut fastrand::Rng, order: &mut PlainOrder, model: &mut Model, weights: &mut [u64], most: u64) {
    let row = dice.u64(..KEYS);
    let cost = dice.u64(..=most);
    let weight = weights[row as usize];
    match dice.u8(..16) {
        0..6 if place(order, row) == Place::Nowhere => {
            join(order, row, weight, 1).expect("sound");
            model.join(row, i128::from(weight));
        }
        0 => {
            leave(order, row).expect("sound");
            model.leave(row);
        }
        1 => {
            weights[row as usize] = dice.u64(1..=1_000);
            replace(order, row, weights[row as usize], true).expect("sound");
            model.replace(row, i128::from(weights[row as usize]), true);
        }
        2..5 => {
            let (charged, here) = (dice.u64(..=most), dice.bool());
            correct(order, row, charged, cost, weight, u64::from(here)).expect("sound");
            model.correct(
                row,
                i128::from(charged),
                i128::from(cost),
                i128::from(weight),
                here,
            );
        }
        _ => {
            if let Some(row) = first(order).expect("sound") {
                let (weight, waits) = (weights[row as usize], dice.u8(..4) > 0);
                assert_eq!(order.serve(cost, weight, waits), row);
                model.charge(row, i128::from(cost), i128::from(weight));
                model.replace(row, i128::from(weight), waits);
            }
        }
    }
}

#[test]
fn it_is_what_a_scan_of_all_keys_says() {
    for seed in 0..48 {
        let mut dice = fastrand::Rng::with_seed(seed);
        let (mut order, mut model) = (PlainOrder::new(), Model::default());
        let mut weights: Vec<u64> = (0..KEYS).map(|_| dice.u64(1..=1_000)).collect();
        // Costs that make many tags equal, ordinary ones, and some beyond the largest lead.
        let most = [3, 1 << 20, 1 << 40, MAX_LEAD * 3][seed as usize % 4];
        for _ in 0..3_000 {
            step(&mut dice, &mut order, &mut model, &mut weights, most);
            compare(&order, &model);
        }
    }
}

#[test]
fn tags_that_wrap_around_are_compared_all_the_same() {
    let mut order = PlainOrder::new();
    for word in [OrderWord::VirtualTime, OrderWord::LatestTag] {
        order.store(word, u64::MAX - 5);
    }
    for row in 0..4 {
        order.store_key(row, KeyWord::Tag, u64::MAX - 5);
        join(&mut order, row, 1, 1).expect("sound");
    }
    let served: Vec<u64> = (0..12).map(|_| order.serve(4, 1, true)).collect();
    assert_eq!(served[..4], [0, 1, 2, 3]);
    for row in 0..4 {
        assert_eq!(
            served.iter().filter(|other| **other == row).count(),
            3,
            "{served:?}"
        );
    }
}

#[test]
fn a_key_that_reserves_too_much_gets_its_share_of_what_is_used_however_late_that_is_known() {
    const RESERVED: [u64; 2] = [16 * PER_NANO, PER_NANO];
    let mut order = PlainOrder::new();
    for row in 0..2 {
        join(&mut order, row, 1, 1).expect("sound");
    }
    let mut served = [0_u32; 2];
    // Requests that have been served but have not yet said what they used.
    let mut under_way = VecDeque::new();
    for _ in 0..10_000 {
        let row = first(&order).expect("sound").expect("both wait");
        order.serve(RESERVED[row as usize], 1, true);
        served[row as usize] += 1;
        under_way.push_back(row);
        if under_way.len() > 50 {
            let row = under_way.pop_front().expect("there are fifty");
            correct(&mut order, row, RESERVED[row as usize], PER_NANO, 1, 1).expect("sound");
        }
    }
    assert!(served[0].abs_diff(served[1]) < 1_000, "{served:?}");
}

#[test]
fn a_key_is_restored_once_even_if_a_damaged_queue_has_two_heads() {
    let mut order = PlainOrder::new();
    for row in 0..2 {
        join(&mut order, row, 1, 1).expect("sound");
    }
    clear(&mut order, 0..KEYS);
    restore(&mut order, 0, 1, Place::Newcomer).expect("sound");
    assert_eq!(restore(&mut order, 0, 1, Place::Newcomer), Err(Damaged));
    restore(&mut order, 1, 1, Place::Nowhere).expect("sound");
    assert!(is_consistent(&order));
}

/// Loses who is ordered and determines it anew, as after a death. The keys `waiting` wait, the first of them for
/// longest.
fn lose_and_restore(order: &mut PlainOrder, weights: &[u64], waiting: &[u64]) {
    let places: Vec<Place> = waiting.iter().map(|row| place(order, *row)).collect();
    let newcomers: Vec<u64> = newcomers(order).collect();
    clear(order, 0..KEYS);
    let newcomers = newcomers.into_iter().map(|row| (row, Place::Newcomer));
    for (row, before) in newcomers.chain(waiting.iter().copied().zip(places)) {
        let _ = restore(order, row, weights[row as usize], before);
    }
    end_if_empty(order);
}

#[test]
fn keys_that_are_restored_are_served_as_if_nothing_had_been_lost() {
    for seed in 0..48 {
        let mut dice = fastrand::Rng::with_seed(seed);
        let (mut order, mut model) = (PlainOrder::new(), Model::default());
        let mut weights: Vec<u64> = (0..KEYS).map(|_| dice.u64(1..=1_000)).collect();
        for _ in 0..300 {
            step(&mut dice, &mut order, &mut model, &mut weights, 1 << 20);
            let mut lost = order.clone();
            let mut waiting: Vec<u64> = (0..KEYS)
                .filter(|row| place(&order, *row) != Place::Nowhere)
                .collect();
            dice.shuffle(&mut waiting);
            lose_and_restore(&mut lost, &weights, &waiting);
            assert!(is_consistent(&lost));
            // Of equal tags, the one that has waited longest comes first, whichever was first before.
            let tag_of = |order: &PlainOrder, row: u64| match place(order, row) {
                Place::Heap(_) => Ok(order.tag(row)),
                _ => Err(row),
            };
            let mut before = order.clone();
            while let Some(row) = first(&before).expect("sound") {
                let same = first(&lost).expect("sound").expect("it waits as well");
                assert_eq!(tag_of(&before, row), tag_of(&lost, same));
                leave(&mut before, row).expect("sound");
                leave(&mut lost, same).expect("sound");
            }
            assert!(is_empty(&lost));
        }
    }
}

#[test]
fn a_key_that_only_waits_for_something_of_its_own_is_owed_nothing_when_the_order_is_made_anew() {
    let mut order = PlainOrder::new();
    join(&mut order, 0, 1, 1).expect("sound");
    for _ in 0..10 {
        order.serve(1_000, 1, true);
    }
    lose_and_restore(&mut order, &[1; KEYS as usize], &[7, 0]);
    let now = order.load(OrderWord::VirtualTime);
    assert_eq!(
        [KeyWord::Tag, KeyWord::Floor].map(|word| order.load_key(7, word)),
        [now; 2]
    );
}

#[test]
fn a_newcomer_whose_earlier_request_is_corrected_keeps_its_turn() {
    let mut order = PlainOrder::new();
    for row in 0..3 {
        join(&mut order, row, 1, 1).expect("sound");
    }
    correct(&mut order, 0, 16, 1, 1, 1).expect("sound");
    assert_eq!(first(&order), Ok(Some(0)));
    // It used more than it was charged for, and so has a lead now.
    correct(&mut order, 0, 1, 16, 1, 1).expect("sound");
    assert_eq!(first(&order), Ok(Some(1)));
}

#[test]
fn shares_are_as_weights_to_within_a_request_of_each() {
    let mut order = PlainOrder::new();
    let weights = [1, 2, 3, 10];
    let mut dice = fastrand::Rng::with_seed(7);
    let mut served = [0_u64; 4];
    for row in 0..4 {
        join(&mut order, row, weights[row as usize], 1).expect("sound");
    }
    let largest = 64 * PER_NANO;
    for _ in 0..20_000 {
        let row = first(&order).expect("sound").expect("all wait") as usize;
        let cost = dice.u64(1..=largest);
        assert_eq!(order.serve(cost, weights[row], true), row as u64);
        served[row] += cost;
        for (one, other) in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)] {
            let [by_one, by_other] = [one, other].map(|row| served[row] / weights[row]);
            let bound = largest / weights[one] + largest / weights[other] + 2;
            // Quotients are rounded down with each request, to a unit of 2^-10 ns.
            assert!(by_one.abs_diff(by_other) <= bound + 20_000, "{served:?}");
        }
    }
}

#[test]
fn a_key_that_comes_is_served_before_those_with_a_lead_and_has_no_credit() {
    let mut order = PlainOrder::new();
    for row in 0..8 {
        join(&mut order, row, 1, 1).expect("sound");
    }
    for _ in 0..100 {
        order.serve(1_000, 1, true);
    }
    join(&mut order, 20, 1, 1).expect("sound");
    assert_eq!(order.serve(1_000, 1, true), 20);
    // It came late: it is not served twice as often as the others from now on.
    let served: Vec<u64> = (0..90).map(|_| order.serve(1_000, 1, true)).collect();
    let of_newcomer = served.iter().filter(|row| **row == 20).count();
    assert!((9..=11).contains(&of_newcomer), "{served:?}");
}

#[test]
fn a_flood_of_newcomers_does_not_stop_those_that_wait_on() {
    let mut order = PlainOrder::new();
    for row in 0..4 {
        join(&mut order, row, 1, 1).expect("sound");
    }
    for _ in 0..40 {
        order.serve(1_000, 1, true);
    }
    let mut served = [0; 4];
    let mut next = 4;
    for _ in 0..4_000 {
        // More come than are served.
        for _ in 0..2 {
            if place(&order, next) == Place::Nowhere {
                order.store_key(next, KeyWord::Tag, 0);
                join(&mut order, next, 1, 1).expect("sound");
            }
            next = if next + 1 == KEYS { 4 } else { next + 1 };
        }
        let row = first(&order).expect("sound").expect("they wait");
        order.serve(1_000, 1, row < 4);
        if row < 4 {
            served[row as usize] += 1;
        }
    }
    // One fair round is as many requests as keys wait.
    let fair = 4_000 / KEYS;
    assert!(served.iter().all(|count| *count >= fair * 8 / 10), "{served:?}");
}

#[test]
fn leads_end_when_nobody_waits_any_more() {
    let mut order = PlainOrder::new();
    join(&mut order, 0, 1, 1).expect("sound");
    order.serve(50 * PER_NANO, 1, false);
    assert!(is_empty(&order));
    assert_eq!((lead(&order, 0), contended_since(&order)), (0, None));
    join(&mut order, 1, 1, 1).expect("sound");
    join(&mut order, 0, 1, 1).expect("sound");
    assert_eq!(order.serve(1, 1, true), 1);
    assert_eq!(order.serve(1, 1, true), 0);
}

#[test]
fn a_key_that_reserves_more_than_it_uses_is_served_by_what_it_uses() {
    let mut order = PlainOrder::new();
    for row in 0..2 {
        join(&mut order, row, 1, 1).expect("sound");
    }
    let mut used = [0_u64; 2];
    let mut pending: Option<(u64, u64)> = None;
    for _ in 0..10_000 {
        if let Some((row, charged)) = pending.take() {
            correct(&mut order, row, charged, 1_000, 1, 1).expect("sound");
        }
        let row = first(&order).expect("sound").expect("both wait");
        let charged = if row == 0 { 16_000 } else { 1_000 };
        order.serve(charged, 1, true);
        used[row as usize] += 1_000;
        pending = Some((row, charged));
    }
    let least = used[0].min(used[1]);
    assert!(least * 100 >= (used[0] + used[1]) * 45, "{used:?}");
}

#[test]
fn no_key_is_owed_more_than_it_reserves_at_once_so_that_one_that_comes_is_behind_by_no_more() {
    const LARGEST: u64 = 1 << 30;
    for seed in 0..24 {
        let mut dice = fastrand::Rng::with_seed(seed);
        let mut order = PlainOrder::new();
        let weights: Vec<u64> = (0..KEYS).map(|_| dice.u64(1..=20)).collect();
        let mut unsettled: Vec<Option<(u64, u64)>> = vec![None; KEYS as usize];
        let mut most_owed = 0;
        for _ in 0..4_000 {
            let row = dice.u64(..KEYS);
            let first = first(&order).expect("sound");
            match dice.u8(..4) {
                0 if place(&order, row) == Place::Nowhere => {
                    join(&mut order, row, weights[row as usize], 1).expect("sound");
                }
                // Each has one request at a time that is not settled yet.
                1 | 2 if first.is_some_and(|row| unsettled[row as usize].is_none()) => {
                    let row = first.expect("checked");
                    let reserved = dice.u64(1..=LARGEST);
                    order.serve(reserved, weights[row as usize], dice.u8(..8) > 0);
                    unsettled[row as usize] = Some((reserved, dice.u64(..=reserved / 16)));
                }
                _ => {
                    let row = first.filter(|_| dice.bool()).unwrap_or(row);
                    if let Some((charged, used)) = unsettled[row as usize].take() {
                        let weight = weights[row as usize];
                        correct(&mut order, row, charged, used, weight, 1).expect("sound");
                    }
                }
            }
            let now = order.load(OrderWord::VirtualTime);
            for row in (0..KEYS).filter(|row| matches!(place(&order, *row), Place::Heap(_))) {
                let owed = (now.wrapping_sub(order.tag(row)) as i64).max(0) as u64;
                assert!(owed <= LARGEST / weights[row as usize], "{row} is owed {owed}");
                most_owed = most_owed.max(owed * weights[row as usize]);
            }
        }
        assert!(
            most_owed > LARGEST / 2,
            "the bound is never come near: {most_owed}"
        );
    }
}

#[test]
fn keys_that_hold_for_long_and_keys_that_hold_briefly_share_by_time() {
    let mut order = PlainOrder::new();
    for row in 0..2 {
        join(&mut order, row, 1, 1).expect("sound");
    }
    let second = 1_000_000_000 * PER_NANO;
    let mut held = [0_u64; 2];
    for _ in 0..2_000 {
        let row = first(&order).expect("sound").expect("both wait");
        // How long it will be held is not known when it is granted.
        order.serve(second, 1, true);
        let used = if row == 0 { 20 * second } else { second };
        correct(&mut order, row, second, used, 1, 1).expect("sound");
        held[row as usize] += used / second;
    }
    assert!(held[0].abs_diff(held[1]) <= 21, "{held:?}");
}

#[test]
fn damage_is_noticed_and_everything_can_be_cleared() {
    let mut dice = fastrand::Rng::with_seed(11);
    for _ in 0..2_000 {
        let mut order = PlainOrder::new();
        for row in 0..KEYS / 2 {
            join(&mut order, row, 1, 1).expect("sound");
        }
        for _ in 0..KEYS {
            order.serve(dice.u64(..100), 1, dice.bool());
            if is_empty(&order) {
                break;
            }
        }
        for _ in 0..3 {
            let value = [dice.u64(..), dice.u64(..100), u64::MAX][dice.usize(..3)];
            match dice.u8(..3) {
                0 => order.words[dice.usize(..7)] = value,
                1 => order.keys[dice.usize(..KEYS as usize)][dice.usize(..4)] = value,
                _ => order.entries[dice.usize(..KEYS as usize)][dice.usize(..2)] = value,
            }
        }
        // None of these panics, or goes on for ever.
        for _ in 0..KEYS * 2 {
            let row = dice.u64(..KEYS);
            let outcome = match dice.u8(..4) {
                0 => join(&mut order, row, 1, 1),
                1 => leave(&mut order, row),
                2 => charge(&mut order, row, dice.u64(..), 1),
                _ => replace(&mut order, row, 1, dice.bool()),
            };
            let found = first(&order);
            rank(&order, row, 4);
            lead(&order, row);
            if outcome.is_err() || found.is_err() || !is_consistent(&order) {
                clear(&mut order, 0..KEYS);
                assert!(is_consistent(&order) && is_empty(&order));
            }
        }
    }
}
