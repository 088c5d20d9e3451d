//! The report as text for people.

use std::fmt::{self, Display, Formatter};

use shmlimit::declare::Kind;

use crate::client::Answers;
use crate::figures::thousands;
use crate::report::Report;
use crate::rules::{Check, Rule, Rules};

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.write_workers(f)?;
        self.write_keys(f)?;
        self.write_checks(f)?;
        self.write_kill(f)?;
        if let Some(alone) = self.alone.as_ref().filter(|alone| alone.alone > alone.shared) {
            writeln!(
                f,
                "\nHad each worker kept `{}` in its own memory, there would have been room for {} of these requests, not {}.",
                alone.limit,
                thousands(alone.alone),
                thousands(alone.shared)
            )?;
        }
        let exceeded = self.checks.iter().filter(|check| !check.held).count();
        match exceeded {
            0 => writeln!(f, "Every limit held."),
            _ => writeln!(f, "NOT HELD: see {}.", counted(exceeded as u64, "line", "lines")),
        }
    }
}

impl Report {
    fn write_workers(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let headings: Vec<String> = self
            .limits
            .iter()
            .map(|limit| format!("refused by {limit}"))
            .collect();
        write!(f, "{:>10}{:>11}{:>11}", "worker", "requests", "admitted")?;
        for heading in &headings {
            write!(f, "   {heading}")?;
        }
        writeln!(f)?;
        let mut row = |name: &str, answers: &Answers, note: &str| {
            let (requests, admitted) = (thousands(answers.requests()), thousands(answers.admitted));
            write!(f, "{name:>10}{requests:>11}{admitted:>11}")?;
            for (limit, heading) in self.limits.iter().zip(&headings) {
                let width = heading.len() + 3;
                write!(f, "{:>width$}", thousands(answers.refused_by(limit)))?;
            }
            writeln!(f, "{}{note}", if note.is_empty() { "" } else { "   " })
        };
        for worker in &self.workers {
            row(
                &worker.pid.to_string(),
                &worker.answers,
                worker.note.as_deref().unwrap_or_default(),
            )?;
        }
        let note = match self.total.cut_off {
            0 => String::new(),
            cut_off => format!("and {cut_off} cut off by the kill"),
        };
        row("total", &self.total.answers, &note)
    }

    fn write_keys(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.keys.is_empty() {
            return Ok(());
        }
        writeln!(
            f,
            "\n{:>10}{:>11}{:>11}   refused   answered by",
            "key", "requests", "admitted"
        )?;
        for row in &self.keys {
            writeln!(
                f,
                "{:>10}{:>11}{:>11}{:>10}   {}",
                row.key,
                thousands(row.requests),
                thousands(row.admitted),
                thousands(row.refused),
                counted(row.workers as u64, "worker", "workers")
            )?;
        }
        Ok(())
    }

    fn write_kill(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Some(killed) = &self.killed else {
            return writeln!(f, "\nNo worker was killed: none held a permit when it was time.");
        };
        write!(
            f,
            "\nWorker {} was killed (SIGKILL) after {:.2} s, holding {}: ",
            killed.pid,
            killed.after_seconds,
            counted(killed.held, "permit", "permits")
        )?;
        match killed.freed_after_us {
            Some(micros) => writeln!(f, "free again after {}.", millis(micros))?,
            None if killed.refused_in_vain == 0 => writeln!(f, "no request needed them.")?,
            None => writeln!(f, "not free again although others were refused.")?,
        }
        if let (Some(replacement), Some(micros)) = (killed.replacement, killed.replaced_after_us) {
            writeln!(
                f,
                "Its replacement, {replacement}, was forked after {}.",
                millis(micros)
            )?;
        }
        Ok(())
    }

    fn write_checks(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let label = |check: &Check| match check.subject.as_str() {
            "" => check.what.clone(),
            subject => format!("{subject}: {}", check.what),
        };
        let width = self
            .checks
            .iter()
            .map(|check| label(check).len())
            .max()
            .unwrap_or(0);
        writeln!(f, "\n  {:width$}{:>10}{:>10}", "", "allowed", "counted")?;
        for check in &self.checks {
            writeln!(
                f,
                "  {:width$}{:>10}{:>10}   {}",
                label(check),
                thousands(check.allowed),
                thousands(check.counted),
                if check.held { "ok" } else { "NOT HELD" }
            )?;
        }
        Ok(())
    }
}

/// The limits in a few words.
pub fn in_words(rules: &Rules) -> String {
    let limits = rules.limits.iter().map(|limit: &Rule| {
        let capacity = limit.capacity.map_or_else(|| "unlimited".to_owned(), thousands);
        let window = limit
            .window
            .map(|window| format!(" per {window}"))
            .unwrap_or_default();
        match (limit.kind, limit.burst) {
            (Kind::Concurrency, _) => format!("{} {capacity} at once", limit.name),
            (_, Some(burst)) => format!(
                "{} {capacity}{window}, {} in a burst",
                limit.name,
                thousands(burst)
            ),
            (_, None) => format!("{} {capacity}{window}", limit.name),
        }
    });
    limits.collect::<Vec<_>>().join("; ")
}

pub fn counted(number: u64, one: &str, several: &str) -> String {
    format!(
        "{} {}",
        thousands(number),
        if number == 1 { one } else { several }
    )
}

fn millis(micros: u64) -> String {
    format!("{}.{} ms", micros / 1000, micros % 1000 / 100)
}
