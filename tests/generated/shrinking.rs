//! Reduces a case for as long as it still fails: fewer steps, fewer words in the declaration, smaller numbers.
//!
//! It works on the written form of a case, so it knows nothing of operations and options.

use serde_json::Value as Json;
use shmlimit::Declaration;

use super::alone::Case;

/// A limit on the number of tries, so that a test ends.
const TRIES: usize = 4_000;

/// A smaller case of the same violation.
pub fn shrink(case: Case, violation: &str) -> Case {
    let same = shape(violation);
    let mut best = case;
    let mut tries = 0;
    let mut fails = |case: &Case| {
        tries += 1;
        tries <= TRIES && case.violation().is_some_and(|found| shape(&found) == same)
    };
    loop {
        let before = serde_json::to_string(&best).expect("JSON").len();
        fewer_steps(&mut best, &mut fails);
        simpler_declaration(&mut best, &mut fails);
        smaller_numbers(&mut best, &mut fails);
        if serde_json::to_string(&best).expect("JSON").len() >= before {
            return best;
        }
    }
}

/// The words of a violation, without what is particular to one case.
fn shape(violation: &str) -> String {
    let line = violation.lines().next().unwrap_or_default();
    line.chars().filter(|it| it.is_alphabetic()).take(24).collect()
}

fn fewer_steps(best: &mut Case, fails: &mut impl FnMut(&Case) -> bool) {
    let mut size = best.steps.len().next_power_of_two();
    while size > 0 {
        let mut end = best.steps.len();
        while end > 0 {
            let start = end.saturating_sub(size);
            let mut smaller = best.clone();
            smaller.steps.drain(start..end);
            if fails(&smaller) {
                *best = smaller;
            }
            end = start;
        }
        size /= 2;
    }
}

/// Tries to leave out each word of the declaration if the rest is still valid.
fn simpler_declaration(best: &mut Case, fails: &mut impl FnMut(&Case) -> bool) {
    let table: toml::Table = best.declaration.parse().expect("TOML");
    for path in paths(&toml::Value::Table(table), &mut Vec::new())
        .into_iter()
        .rev()
    {
        let mut value = toml::Value::Table(best.declaration.parse().expect("TOML"));
        if !remove(&mut value, &path) {
            continue;
        }
        let text = toml::to_string(&value).expect("TOML");
        if Declaration::from_toml(&text).is_err() {
            continue;
        }
        let smaller = Case {
            declaration: text,
            ..best.clone()
        };
        if fails(&smaller) {
            *best = smaller;
        }
    }
}

fn paths(value: &toml::Value, at: &mut Vec<String>) -> Vec<Vec<String>> {
    let children: Vec<(String, &toml::Value)> = match value {
        toml::Value::Table(table) => table.iter().map(|(key, value)| (key.clone(), value)).collect(),
        toml::Value::Array(values) => values
            .iter()
            .enumerate()
            .map(|(index, it)| (index.to_string(), it))
            .collect(),
        _ => Vec::new(),
    };
    let mut all = Vec::new();
    for (key, child) in children {
        at.push(key);
        all.push(at.clone());
        all.extend(paths(child, at));
        at.pop();
    }
    all
}

fn remove(value: &mut toml::Value, path: &[String]) -> bool {
    let Some((first, rest)) = path.split_first() else {
        return false;
    };
    match value {
        toml::Value::Table(table) if rest.is_empty() => table.remove(first).is_some(),
        toml::Value::Table(table) => table.get_mut(first).is_some_and(|child| remove(child, rest)),
        toml::Value::Array(values) => {
            let index: usize = first.parse().unwrap_or(usize::MAX);
            match values.get_mut(index) {
                Some(_) if rest.is_empty() => {
                    values.remove(index);
                    true
                }
                Some(child) => remove(child, rest),
                None => false,
            }
        }
        _ => false,
    }
}

fn smaller_numbers(best: &mut Case, fails: &mut impl FnMut(&Case) -> bool) {
    for index in 0..best.steps.len() {
        let step = serde_json::to_value(&best.steps[index]).expect("JSON");
        for place in numbers(&step, &mut String::new()) {
            for smaller in [0, 1] {
                let mut step = serde_json::to_value(&best.steps[index]).expect("JSON");
                let Some(number) = step.pointer_mut(&place) else {
                    continue;
                };
                if number.as_u64().is_none_or(|number| number <= smaller) {
                    continue;
                }
                *number = smaller.into();
                let Ok(step) = serde_json::from_value(step) else {
                    continue;
                };
                let mut simpler = best.clone();
                simpler.steps[index] = step;
                if fails(&simpler) {
                    *best = simpler;
                    break;
                }
            }
        }
    }
}

fn numbers(value: &Json, at: &mut String) -> Vec<String> {
    let children: Vec<(String, &Json)> = match value {
        Json::Number(_) => return vec![at.clone()],
        Json::Array(values) => values
            .iter()
            .enumerate()
            .map(|(index, it)| (index.to_string(), it))
            .collect(),
        Json::Object(fields) => fields.iter().map(|(name, it)| (name.clone(), it)).collect(),
        _ => Vec::new(),
    };
    let mut all = Vec::new();
    for (name, child) in children {
        let length = at.len();
        at.push('/');
        at.push_str(&name);
        all.extend(numbers(child, at));
        at.truncate(length);
    }
    all
}
