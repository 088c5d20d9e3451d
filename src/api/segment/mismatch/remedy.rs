//! Remedies for a segment with another declaration, with the commands to run.

use std::path::Path;

use crate::declaration::Declaration;
use crate::declaration::stored::StoredDeclaration;
use crate::error::{Difference, Error, OpenError, ProcessId, processes};

/// The most commands to suggest. Beyond that, one command applies the whole declaration.
const MAX_COMMANDS: usize = 3;

/// The error for differences that can be changed in the live segment.
pub(super) fn can_be_applied(path: &Path, differences: &[&Difference]) -> Error {
    let command = commands_of(path, differences).map_or_else(
        || {
            format!(
                "`limitctl apply {} FILE`, where FILE has this declaration in TOML",
                quoted(&path.to_string_lossy())
            )
        },
        |commands| format!("`{}`", commands.join(" && ")),
    );
    Error::Open(OpenError::ConfigMismatch {
        path: path.to_owned(),
        differences: differences.iter().copied().cloned().collect(),
        remedy: format!("change the live segment with {command}, or open it with on_mismatch = apply"),
    })
}

/// The error if only another file can hold what is asked for, because of the differences in `immutable`.
pub(crate) fn needs_another_file(
    path: &Path,
    stored: &StoredDeclaration,
    asked: &Declaration,
    immutable: &[Difference],
) -> Error {
    let mut differences = immutable.to_vec();
    let others = all_differences(stored, asked)
        .into_iter()
        .filter(|difference| !immutable.contains(difference));
    differences
        .extend(others.map(|other| other.with_note("this could change in the live segment".to_owned())));
    Error::Open(OpenError::ConfigMismatch {
        path: path.to_owned(),
        differences,
        remedy: format!(
            "this cannot change in a live segment: {}end the processes that use it and remove it with `limitctl remove \
             {}`, or open it with on_mismatch = recreate_if_unused when they have ended; what was counted is lost then",
            directory_instead(path, immutable)
                .map_or_else(String::new, |remedy| format!("{remedy}; otherwise ")),
            quoted(&path.to_string_lossy())
        ),
    })
}

/// The error if the segment should be recreated but other processes are attached to it.
pub(super) fn is_in_use(
    path: &Path,
    stored: &StoredDeclaration,
    asked: &Declaration,
    users: &[ProcessId],
) -> Error {
    let differences = all_differences(stored, asked);
    let another_path = directory_instead(path, &differences)
        .unwrap_or_else(|| "give this declaration another path".to_owned());
    Error::Open(OpenError::ConfigMismatch {
        path: path.to_owned(),
        differences,
        remedy: format!(
            "it cannot be recreated while it is in use by {}: end that first, or {another_path}",
            processes(users)
        ),
    })
}

/// The remedy that lets sets come and go without ending a process, if sets were added or left out.
fn directory_instead(path: &Path, differences: &[Difference]) -> Option<String> {
    differences.iter().any(Difference::is_of_sets).then(|| {
        format!(
            "give the segment a directory as its path, such as {}, where each set has a file of its own and can come and \
             go without ending a process (counts start over, and processes with the former path count by themselves until \
             they end)",
            quoted(&format!("{}.d/", path.to_string_lossy()))
        )
    })
}

/// The command that changes the mode of the file.
pub(super) fn change_mode(path: &Path, mode: u32) -> String {
    format!("`chmod {mode:04o} {}`", quoted(&path.to_string_lossy()))
}

fn all_differences(stored: &StoredDeclaration, asked: &Declaration) -> Vec<Difference> {
    asked.differences_to_apply(&stored.to_declaration())
}

/// The commands that change single limits; `None` if they would not cover everything or are too many.
fn commands_of(path: &Path, differences: &[&Difference]) -> Option<Vec<String>> {
    let mut limits: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    for difference in differences {
        let assignment = difference.assignment()?;
        let (set, limit) = (assignment.set.as_str(), assignment.limit.as_str());
        match limits.iter_mut().find(|known| (known.0, known.1) == (set, limit)) {
            Some((_, _, assignments)) => assignments.push(&assignment.text),
            None => limits.push((set, limit, vec![&assignment.text])),
        }
    }
    let commands = limits.iter().map(|(set, limit, assignments)| {
        let path = path.to_string_lossy();
        let words = [path.as_ref(), set, limit]
            .into_iter()
            .chain(assignments.iter().copied());
        let words: Vec<String> = words.map(quoted).collect();
        format!("limitctl edit {}", words.join(" "))
    });
    (limits.len() <= MAX_COMMANDS).then(|| commands.collect())
}

/// Quotes a word for the shell, as limitctl quotes what it prints.
fn quoted(word: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "/._-=:+,@%".contains(character);
    if !word.is_empty() && !word.starts_with('-') && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::remedy::*;

    #[test]
    fn a_word_with_signs_of_the_shell_is_quoted() {
        assert_eq!(quoted("/dev/shm/api.limits"), "/dev/shm/api.limits");
        assert_eq!(quoted("capacity=20"), "capacity=20");
        assert_eq!(quoted("my limits"), "'my limits'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("$(ls)"), "'$(ls)'");
        assert_eq!(quoted("-rf"), "'-rf'");
    }
}
