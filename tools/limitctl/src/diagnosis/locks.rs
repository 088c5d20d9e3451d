//! Findings about the locks, and about what they guard.

use std::time::Duration;

use shmlimit::snapshot::{ProcessId, ShardDiagnosis, ShardPoison};

use super::condition::{Condition, Severity};
use super::finding::Finding;
use super::host::process::{table_is_whole, thread_activity};
use super::look::Look;
use super::remedy::Remedies;
use crate::text::{human, process};

/// No running process holds a lock for this long: locks are normally held for well under a microsecond.
pub const NEVER_SO_LONG: Duration = Duration::from_millis(1_500);

pub fn findings(look: &Look, remedies: &Remedies) -> Vec<Finding> {
    let is_void = look.is_void();
    let shards = look.diagnosis.shards.iter();
    shards
        .flat_map(|shard| {
            let lock = if is_void {
                None
            } else {
                lock(look, shard, remedies)
            };
            [lock, state(look, shard, remedies)].into_iter().flatten()
        })
        .collect()
}

/// The lock in words, with the number of its shard if the set has several.
fn name(look: &Look, shard: &ShardDiagnosis) -> String {
    let shards = look
        .diagnosis
        .shards
        .iter()
        .filter(|other| other.set == shard.set);
    match shards.count() {
        1 => "its lock".to_owned(),
        count => format!("the lock of its shard {} of {count}", shard.shard + 1),
    }
}

fn lock(look: &Look, shard: &ShardDiagnosis, remedies: &Remedies) -> Option<Finding> {
    let name = name(look, shard);
    let found = |severity, kind, what: String, meaning: &str| {
        Finding::new(severity, kind, what, meaning).of_set(&shard.set)
    };
    if shard.lock_lost {
        let finding = found(
            Severity::Error,
            Condition::LockLost,
            format!("{name} is beyond recovery"),
            "the set does not work until a process attaches while no other is attached, which makes the lock anew: end those that \
             are attached first",
        );
        return Some(finding.twice("").healed_by(remedies.recover()));
    }
    if shard.lock.owner_died {
        let finding = found(
            Severity::Warning,
            Condition::LockOwnerDead,
            format!(
                "the process that had {name} died with it, at most {} ago",
                ago(shard)
            ),
            "the next process that uses the set takes the lock and sets right what was left half done",
        );
        return Some(
            finding
                .twice(shard.shard.to_string())
                .healed_by(remedies.recover()),
        );
    }
    if shard.lock.is_held() {
        return Some(held(look, shard, &name, remedies));
    }
    shard.half_done.then(|| {
        let finding = found(
            Severity::Warning,
            Condition::HalfDone,
            format!(
                "{name} is free, and an operation was left half done, at most {} ago",
                ago(shard)
            ),
            "the next process that uses the set undoes it or carries it to its end",
        );
        finding.twice(standstill(shard)).healed_by(remedies.recover())
    })
}

/// The finding for a lock that a process holds. By the next look, the process has nearly always released it.
fn held(look: &Look, shard: &ShardDiagnosis, name: &str, remedies: &Remedies) -> Finding {
    const MEANING: &str =
        "those who need the set wait for the lock until their lock timeout, and get LockStuck";
    const KEEPS: &str = "a stopped process is not a dead one, and keeps what it has";
    let found = |severity, kind, what: String, meaning: String| {
        Finding::new(severity, kind, what, meaning).of_set(&shard.set)
    };
    let pid = shard.lock.holder_pid.map(u64::from);
    if shard.lock.holder_namespace.is_some() {
        let holder = pid.map(|pid| ProcessId {
            pid,
            namespace: shard.lock.holder_namespace,
        });
        let shown = process::cell(holder);
        if let Some((state, heal)) = holder.and_then(|holder| look.processes.standstill_of(holder)) {
            let what = format!(
                "{name} is held by process {shown}, which is {state}, for at most {}",
                ago(shard)
            );
            let meaning = format!("{MEANING}; {KEEPS}");
            return found(Severity::Error, Condition::LockStuck, what, meaning)
                .of_process(pid)
                .healed_by(heal)
                .twice(standstill(shard));
        }
        let what = format!("{name} is held by process {shown}, for at most {}", ago(shard));
        let meaning = format!("{MEANING}; look in its own namespace whether it is stopped");
        return found(Severity::Error, Condition::LockStuck, what, meaning)
            .of_process(pid)
            .after(NEVER_SO_LONG, standstill(shard));
    }
    // A slot lock names no thread, so the first thread stands for the process.
    let thread = shard.lock.holder_thread.or(shard.lock.holder_pid).unwrap_or(0);
    let Some(pid) = pid else {
        if !look.diagnosis.place.same_pids() || !table_is_whole() {
            let what = format!("{name} is held by thread {thread}, which this process cannot see");
            return found(Severity::Error, Condition::LockStuck, what, MEANING.to_owned())
                .after(NEVER_SO_LONG, standstill(shard));
        }
        let what = format!("{name} is held by thread {thread}, which does not exist");
        let meaning = format!(
            "{MEANING}. It was made without a list of locks, or the file was copied in the middle of an operation: the lock is made \
             anew by the first process that attaches when no other is attached, so end those that are first"
        );
        return found(Severity::Error, Condition::LockOrphaned, what, meaning)
            .twice(standstill(shard))
            .healed_by(remedies.recover());
    };
    let who = look.process(ProcessId { pid, namespace: None });
    let standstill_of_holder = thread_activity(pid, thread).and_then(|activity| activity.standstill(pid));
    let is_certain = standstill_of_holder.is_some();
    let (state, heal) = standstill_of_holder.unwrap_or_else(|| ("running", format!("kill -KILL {pid}")));
    let meaning = if is_certain {
        format!("{MEANING}; {KEEPS}")
    } else {
        format!(
            "{MEANING}. It may write a core dump, or be frozen with a cgroup that cannot be seen from here; once it is dead, the next process takes the lock"
        )
    };
    let what = format!(
        "{name} is held by {who}, which is {state}, for at most {}",
        ago(shard)
    );
    let finding = found(Severity::Error, Condition::LockStuck, what, meaning)
        .of_process(Some(pid))
        .healed_by(heal);
    if is_certain {
        finding.twice(standstill(shard))
    } else {
        finding.after(NEVER_SO_LONG, standstill(shard))
    }
}

/// The finding if what the lock guards is damaged.
fn state(look: &Look, shard: &ShardDiagnosis, remedies: &Remedies) -> Option<Finding> {
    let of_set = |finding: Finding| finding.of_set(&shard.set).twice(shard.shard.to_string());
    match shard.poison {
        Some(ShardPoison::Journal) => {
            let finding = Finding::error(
                Condition::Poisoned,
                "it is poisoned: its journal was damaged, so what a half-done operation had changed is not known",
                "the set is refused with Poisoned; a reset makes all its limits as if nothing had been used, and keeps what is held",
            );
            Some(of_set(finding).healed_by(remedies.reset(&shard.set)))
        }
        Some(_) => {
            let finding = Finding::error(
                Condition::Poisoned,
                "it is poisoned: its counts contradict its holds and tickets",
                "the set is refused with Poisoned, until it is recovered, or reset where that does not help",
            );
            Some(of_set(finding).healed_by(remedies.recover()))
        }
        None if shard.adds_up == Some(false) && !look.is_void() => {
            let finding = Finding::error(
                Condition::CountsWrong,
                "its counts do not agree with its holds, tickets and keys",
                "something was damaged: more or less may be admitted than the limits say until it is counted again",
            );
            Some(of_set(finding).healed_by(remedies.recover()))
        }
        None => None,
    }
}

fn ago(shard: &ShardDiagnosis) -> String {
    human::duration(shard.decided_before)
}

/// A text that changes whenever an operation ends.
fn standstill(shard: &ShardDiagnosis) -> String {
    let holder = (
        shard.lock.holder_thread,
        shard.lock.holder_pid,
        shard.lock.holder_namespace,
    );
    format!("{} {} {holder:?}", shard.shard, shard.changes)
}
