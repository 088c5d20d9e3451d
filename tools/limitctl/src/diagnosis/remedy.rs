//! The commands that fix what was found, as typed into a shell.

use std::fmt;
use std::path::Path;

/// The commands for one segment.
#[derive(Clone, Debug)]
pub struct Remedies {
    path: String,
}

impl Remedies {
    pub fn of(path: &Path) -> Self {
        Self { path: quoted(path) }
    }

    pub fn recover(&self) -> String {
        format!("limitctl recover {}", self.path)
    }

    pub fn reset(&self, set: &str) -> String {
        format!("limitctl reset {} {}", self.path, quoted(Path::new(set)))
    }

    pub fn remove(&self) -> String {
        format!("limitctl remove {}", self.path)
    }

    pub fn remove_by_force(&self) -> String {
        format!("limitctl remove --force {}", self.path)
    }

    /// A command that ends in the path.
    pub fn with_path(&self, command: impl fmt::Display) -> String {
        format!("{command} {}", self.path)
    }
}

/// Makes a stopped process continue.
pub fn go_on(pid: u64) -> String {
    format!("kill -CONT {pid}")
}

/// Ends processes, if there are any.
pub fn end<T: ToString>(pids: &[T]) -> Option<String> {
    let words: Vec<String> = pids.iter().map(T::to_string).collect();
    (!words.is_empty()).then(|| format!("kill {}", words.join(" ")))
}

/// A shell word, quoted if necessary.
pub fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%,=".contains(c);
    if !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_quoted_where_a_shell_would_make_something_else_of_it() {
        for (path, word) in [
            ("/dev/shm/api.limits", "/dev/shm/api.limits"),
            ("/tmp/my limits", "'/tmp/my limits'"),
            ("it's", r"'it'\''s'"),
            ("-rf", "'-rf'"),
            ("$HOME", "'$HOME'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(Path::new(path)), word);
        }
    }
}
