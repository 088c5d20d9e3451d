//! What the demonstration found, next to what the limits allow: for people, or as JSON.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use shmlimit::{Kind, Segment};

use crate::Failure;
use crate::client::Answers;
use crate::demonstration::{Findings, Killed};
use crate::rules::{Rule, Rules};

/// Everything that is printed.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Whether every limit held.
    held: bool,
    segment: PathBuf,
    seconds: f64,
    workers: Vec<WorkerRow>,
    total: Total,
    checks: Vec<Check>,
    killed: Option<KillReport>,
    alone: Option<Alone>,
}

#[derive(Clone, Debug, Serialize)]
struct WorkerRow {
    pid: i32,
    place: usize,
    requests: u64,
    answers: Answers,
    note: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize)]
struct Total {
    requests: u64,
    answers: Answers,
    cut_off: u64,
}

/// A bound, and what was counted.
#[derive(Clone, Debug, Serialize)]
struct Check {
    subject: String,
    what: String,
    allowed: u64,
    counted: u64,
    held: bool,
}

#[derive(Clone, Debug, Serialize)]
struct KillReport {
    pid: i32,
    after_seconds: f64,
    held: u64,
    freed_after_us: Option<u64>,
    replacement: Option<i32>,
    replaced_after_us: Option<u64>,
}

/// What limiters that are not shared would have let through.
#[derive(Clone, Debug, Serialize)]
struct Alone {
    limit: String,
    shared: u64,
    alone: u64,
}

impl Report {
    pub fn new(segment: &Segment, rules: &Rules, findings: &Findings) -> Result<Self, Failure> {
        let workers = worker_rows(findings);
        let total = total(findings);
        let killed = findings.killed.as_ref().map(KillReport::new).transpose()?;
        let checks = checks(rules, findings, &total, killed.as_ref());
        Ok(Self {
            held: checks.iter().all(|check| check.held),
            segment: segment.path().to_owned(),
            seconds: findings.tally.elapsed.as_secs_f64(),
            alone: alone(rules, findings, &workers),
            workers,
            total,
            checks,
            killed,
        })
    }

    pub fn all_held(&self) -> bool {
        self.held
    }
}

impl Answers {
    fn requests(&self) -> u64 {
        self.admitted + self.all_refused() + self.other
    }

    fn all_refused(&self) -> u64 {
        self.refused.values().sum()
    }

    fn refused_by(&self, limit: &str) -> u64 {
        self.refused.get(limit).copied().unwrap_or(0)
    }

    fn add(&mut self, other: &Self) {
        self.admitted += other.admitted;
        self.other += other.other;
        for (limit, refused) in &other.refused {
            *self.refused.entry(limit.clone()).or_default() += refused;
        }
    }
}

fn worker_rows(findings: &Findings) -> Vec<WorkerRow> {
    let rows = findings.workers.iter().map(|worker| {
        let pid = worker.pid.as_raw();
        let answers = findings.tally.by_worker.get(&pid).cloned().unwrap_or_default();
        let note = findings.killed.as_ref().and_then(|killed| {
            let replacement = killed.replacement.map(|(new, _)| new.pid);
            if killed.worker.pid == worker.pid {
                Some("killed".to_owned())
            } else {
                (replacement == Some(worker.pid)).then(|| format!("replaces {}", killed.worker.pid))
            }
        });
        WorkerRow {
            pid,
            place: worker.place,
            requests: answers.requests(),
            answers,
            note,
        }
    });
    let mut rows: Vec<_> = rows.collect();
    // Whoever was replaced stands beside its replacement.
    rows.sort_by_key(|row| row.place);
    rows
}

fn total(findings: &Findings) -> Total {
    let mut answers = Answers::default();
    for of_worker in findings.tally.by_worker.values() {
        answers.add(of_worker);
    }
    Total {
        requests: answers.requests() + findings.tally.cut_off,
        answers,
        cut_off: findings.tally.cut_off,
    }
}

/// Holds the counts against what the limits allow.
fn checks(rules: &Rules, findings: &Findings, total: &Total, killed: Option<&KillReport>) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut check = |subject: &str, what: String, allowed: u64, counted: u64, is_held: bool| {
        checks.push(Check {
            subject: subject.to_owned(),
            what,
            allowed,
            counted,
            held: is_held,
        });
    };
    let mut at_most = |subject: &str, what: String, allowed: u64, counted: u64| {
        check(subject, what, allowed, counted, counted <= allowed);
    };
    for limit in &rules.limits {
        let counted = findings
            .end
            .limits
            .iter()
            .find(|counted| counted.name == limit.name);
        match limit.kind {
            Kind::Concurrency => {
                let Some(capacity) = limit.capacity else {
                    continue;
                };
                let looks = &findings.looks;
                let seen = looks.most_held.get(&limit.name).copied().unwrap_or(0);
                let what = format!("held at once, in {} looks at the segment", thousands(looks.count));
                at_most(&limit.name, what, capacity, seen);
                let what = "worked on at once, by the workers' clocks".to_owned();
                at_most(&limit.name, what, capacity, findings.tally.most_at_once);
            }
            _ => {
                if let (Some(allowed), Some(counted)) = (limit.most_within(findings.tally.elapsed), counted) {
                    let what = format!("admitted in {:.2} s", findings.tally.elapsed.as_secs_f64());
                    at_most(&limit.name, what, allowed, counted.counts.admitted);
                }
                let counted = findings.tally.most_in_window.get(&limit.name);
                if let (Some(window), Some(allowed), Some(counted)) =
                    (limit.window, limit.most_in_window(), counted)
                {
                    at_most(
                        &limit.name,
                        format!("admitted in any {window}"),
                        allowed,
                        *counted,
                    );
                }
            }
        }
    }
    // Whoever was admitted and got no answer was cut off when the worker died.
    let unanswered = findings
        .end
        .counts
        .admitted
        .saturating_sub(total.answers.admitted);
    at_most(
        "",
        "admitted without an answer (cut off by the kill)".to_owned(),
        total.cut_off,
        unanswered,
    );
    at_most(
        "",
        "answers that are neither 200 nor 429".to_owned(),
        0,
        total.answers.other,
    );
    at_most(
        "",
        "permits still held at the end".to_owned(),
        0,
        findings.end.active,
    );
    if let Some(killed) = killed {
        let what = "permits of the killed worker, given back".to_owned();
        let reclaimed = findings.end.counts.reclaimed;
        check(
            "",
            what,
            killed.held,
            reclaimed,
            reclaimed == killed.held && killed.freed_after_us.is_some(),
        );
    }
    checks
}

impl KillReport {
    fn new(killed: &Killed) -> Result<Self, Failure> {
        let micros = |time: Duration| u64::try_from(time.as_micros());
        Ok(Self {
            pid: killed.worker.pid.as_raw(),
            after_seconds: killed.after.as_secs_f64(),
            held: killed.held,
            freed_after_us: killed.freed_after.map(micros).transpose()?,
            replacement: killed.replacement.map(|(new, _)| new.pid.as_raw()),
            replaced_after_us: killed.replacement.map(|(_, after)| micros(after)).transpose()?,
        })
    }
}

/// What the first calls limit would have admitted of the same requests, had each worker kept it in its own memory:
/// in each place no more than was asked for there, and no more than the limit allows.
fn alone(rules: &Rules, findings: &Findings, workers: &[WorkerRow]) -> Option<Alone> {
    let limit = rules.of_kind(Kind::Calls).next()?;
    let shared = limit.most_within(findings.tally.elapsed)?;
    let places = workers.iter().map(|row| row.place).max()? + 1;
    let by_place = (0..places).map(|place| {
        let rows = workers.iter().filter(|row| row.place == place);
        rows.map(|row| row.requests).sum::<u64>().min(shared)
    });
    Some(Alone {
        limit: limit.name.clone(),
        shared,
        alone: by_place.sum(),
    })
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.write_workers(f)?;
        self.write_checks(f)?;
        self.write_kill(f)?;
        if let Some(alone) = self.alone.as_ref().filter(|alone| alone.alone > alone.shared) {
            writeln!(
                f,
                "\nHad each worker kept `{}` in its own memory, there would have been room for {} of these requests.",
                alone.limit,
                thousands(alone.alone)
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
        let limits: Vec<&str> = self.total.answers.refused.keys().map(String::as_str).collect();
        let widths: Vec<usize> = limits.iter().map(|limit| limit.len().max(9) + 2).collect();
        let refused_width = widths.iter().sum::<usize>().max(11);
        write!(f, "{:>10}{:>12}{:>12}", "", "", "200")?;
        writeln!(f, "{:>refused_width$}", "429, by limit")?;
        write!(f, "{:>10}{:>12}{:>12}", "worker", "requests", "admitted")?;
        for (limit, width) in limits.iter().zip(&widths) {
            write!(f, "{limit:>width$}")?;
        }
        writeln!(f)?;
        let mut row = |name: &str, requests: u64, answers: &Answers, note: &str| {
            write!(
                f,
                "{name:>10}{:>12}{:>12}",
                thousands(requests),
                thousands(answers.admitted)
            )?;
            for (limit, width) in limits.iter().zip(&widths) {
                write!(f, "{:>width$}", thousands(answers.refused_by(limit)))?;
            }
            writeln!(f, "{}{note}", if note.is_empty() { "" } else { "   " })
        };
        for worker in &self.workers {
            let note = worker.note.as_deref().unwrap_or_default();
            row(&worker.pid.to_string(), worker.requests, &worker.answers, note)?;
        }
        let note = match self.total.cut_off {
            0 => String::new(),
            cut_off => format!("{cut_off} more cut off by the kill"),
        };
        row(
            "total",
            self.total.requests - self.total.cut_off,
            &self.total.answers,
            &note,
        )
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
            None => writeln!(f, "never given back.")?,
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

/// With a comma between each three digits.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
