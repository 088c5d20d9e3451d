//! What the demonstration found, next to what the limits allow.

use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use shmlimit::Segment;
use shmlimit::declare::Kind;

use crate::Failure;
use crate::client::Answers;
use crate::demonstration::{Findings, Killed};
use crate::figures::thousands;
use crate::keys::KeyTally;
use crate::rules::{AllRules, Check, Rules};

/// Prints a report. Returns the exit code: success if every limit held.
pub fn print(report: &(impl Serialize + Display), is_held: bool, as_json: bool) -> Result<ExitCode, Failure> {
    if as_json {
        println!("{}", serde_json::to_string_pretty(report)?);
    } else {
        print!("{report}");
    }
    Ok(if is_held {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Everything that is printed.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Whether every limit held.
    pub held: bool,
    pub segment: PathBuf,
    pub seconds: f64,
    /// The names of the limits.
    pub limits: Vec<String>,
    pub workers: Vec<WorkerRow>,
    pub total: Total,
    pub keys: Vec<KeyRow>,
    pub checks: Vec<Check>,
    pub killed: Option<KillReport>,
    pub alone: Option<Alone>,
}

#[derive(Clone, Debug, Serialize)]
pub struct WorkerRow {
    pub pid: i32,
    pub place: usize,
    pub requests: u64,
    pub answers: Answers,
    pub note: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Total {
    pub requests: u64,
    pub answers: Answers,
    pub cut_off: u64,
}

/// What one key got.
#[derive(Clone, Debug, Serialize)]
pub struct KeyRow {
    pub key: String,
    pub requests: u64,
    pub admitted: u64,
    pub refused: u64,
    pub workers: usize,
}

#[derive(Clone, Debug, Serialize)]
pub struct KillReport {
    pub pid: i32,
    pub after_seconds: f64,
    pub held: u64,
    pub freed_after_us: Option<u64>,
    pub refused_in_vain: u64,
    pub replacement: Option<i32>,
    pub replaced_after_us: Option<u64>,
}

/// What limiters that are not shared would have let through.
#[derive(Clone, Debug, Serialize)]
pub struct Alone {
    pub limit: String,
    pub shared: u64,
    pub alone: u64,
}

impl Report {
    pub fn new(segment: &Segment, all: &AllRules, findings: &Findings) -> Result<Self, Failure> {
        let rules = &all.everyone;
        let workers = worker_rows(findings);
        let total = total(findings);
        let killed = findings.killed.as_ref().map(KillReport::new).transpose()?;
        let mut checks = checks(rules, findings, &total);
        if let (Some(rules), Some(keys)) = (&all.each_key, &findings.keys) {
            checks.extend(keys.checks(rules));
        }
        Ok(Self {
            held: checks.iter().all(|check| check.held),
            segment: segment.path().to_owned(),
            seconds: findings.tally.elapsed.as_secs_f64(),
            alone: alone(rules, findings, &workers),
            limits: rules.limits.iter().map(|limit| limit.name.clone()).collect(),
            workers,
            total,
            keys: findings.keys.as_ref().map(key_rows).unwrap_or_default(),
            checks,
            killed,
        })
    }
}

impl Answers {
    pub fn requests(&self) -> u64 {
        self.admitted + self.all_refused() + self.other
    }

    fn all_refused(&self) -> u64 {
        self.refused.values().sum()
    }

    pub fn refused_by(&self, limit: &str) -> u64 {
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
    // A worker that was replaced is listed next to its replacement.
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

fn key_rows(tally: &KeyTally) -> Vec<KeyRow> {
    let rows = tally.by_key.iter().map(|(key, answers)| KeyRow {
        key: key.clone(),
        requests: answers.requests,
        admitted: answers.admitted,
        refused: answers.refused,
        workers: answers.workers.len(),
    });
    rows.collect()
}

/// Compares the counts with what the limits allow.
fn checks(rules: &Rules, findings: &Findings, total: &Total) -> Vec<Check> {
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
                let seen = looks.max_held.get(&limit.name).copied().unwrap_or(0);
                let what = format!("held at once, in {} looks at the segment", thousands(looks.count));
                at_most(&limit.name, what, capacity, seen);
                let what = "worked on at once, by the workers' clocks".to_owned();
                at_most(&limit.name, what, capacity, findings.tally.burst);
            }
            _ => {
                if let (Some(allowed), Some(counted)) = (limit.max_within(findings.tally.elapsed), counted) {
                    let what = format!("admitted in {:.2} s", findings.tally.elapsed.as_secs_f64());
                    at_most(&limit.name, what, allowed, counted.counts.admitted);
                }
                let counted = findings.tally.max_in_window.get(&limit.name);
                if let (Some(window), Some(allowed), Some(counted)) =
                    (limit.window, limit.max_in_window(), counted)
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
    // A request that was admitted and got no answer was cut off when the worker died.
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
        "answers that are neither 200 nor a refusal".to_owned(),
        0,
        total.answers.other,
    );
    at_most(
        "",
        "permits still held at the end".to_owned(),
        0,
        findings.end.active,
    );
    if let Some(killed) = &findings.killed {
        let what = "permits of the killed worker, given back".to_owned();
        let still_held = findings
            .end
            .holds
            .iter()
            .filter(|hold| killed.held.contains(&hold.serial));
        let held = killed.held.len() as u64;
        let given_back = held - still_held.count() as u64;
        check(
            "",
            what,
            held,
            given_back,
            given_back == held && killed.refused_in_vain == 0,
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
            held: killed.held.len() as u64,
            freed_after_us: killed.freed_after.map(micros).transpose()?,
            refused_in_vain: killed.refused_in_vain,
            replacement: killed.replacement.map(|(new, _)| new.pid.as_raw()),
            replaced_after_us: killed.replacement.map(|(_, after)| micros(after)).transpose()?,
        })
    }
}

/// How many of the same requests the first calls limit would have admitted, had each worker kept it in its own memory:
/// in each place, no more than were made there, and no more than the limit allows.
fn alone(rules: &Rules, findings: &Findings, workers: &[WorkerRow]) -> Option<Alone> {
    let limit = rules.of_kind(Kind::Calls).next()?;
    let shared = limit.max_within(findings.tally.elapsed)?;
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
