//! Keeps the record of a lease and `shm-layout.md` in step.

use super::record::{LEASE_WORDS, LeaseWord};

#[test]
fn every_word_of_a_lease_stands_where_the_document_says() {
    let document = include_str!("../../../shm-layout.md");
    let section = document.split_once("\n## Leases\n").expect("a section").1;
    let section = section.split("\n## ").next().expect("its text");
    let documented: Vec<(usize, &str)> = section
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split_once(" | "))
        .filter_map(|(place, rest)| {
            let name = rest.split(" | ").next()?.strip_prefix('`')?.strip_suffix('`')?;
            Some((place.parse().ok()?, name))
        })
        .collect();
    let actual: Vec<(usize, &str)> = LeaseWord::ALL
        .iter()
        .map(|(word, name)| (*word as usize, *name))
        .collect();
    assert_eq!(documented, actual);
    for text in [
        format!("has {LEASE_WORDS} words more"),
        format!("of {LEASE_WORDS}\nwords, by their place"),
    ] {
        assert!(document.contains(&text), "{text}");
    }
}

#[test]
fn what_is_forgotten_with_a_key_is_documented() {
    let document = include_str!("../../../shm-layout.md");
    let ranges = |text: &str| -> Vec<usize> {
        let mut words = Vec::new();
        for part in text.split(", ").flat_map(|part| part.split(" and ")) {
            let (first, last) = part.split_once(" to ").unwrap_or((part, part));
            let number = |text: &str| text.trim().parse::<usize>().expect("a word's place");
            words.extend(number(first)..=number(last));
        }
        words
    };
    let documented = document
        .split_once("names another key, words ")
        .and_then(|(_, rest)| rest.split_once(" become zero"))
        .map(|(words, _)| ranges(words))
        .expect("a sentence about another key");
    // The key's own word is not zeroed but stored anew.
    let mut forgotten: Vec<usize> = LeaseWord::OF_ONE_KEY
        .iter()
        .filter(|word| **word != LeaseWord::Key)
        .map(|word| *word as usize)
        .collect();
    forgotten.sort_unstable();
    assert_eq!(documented, forgotten);
}
