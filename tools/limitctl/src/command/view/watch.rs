//! `limitctl watch`.

use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use shmlimit::snapshot::SetSnapshot;
use unicode_width::UnicodeWidthStr;

use crate::arguments::{Looking, interval};
use crate::exit::{ExitCode, Failure};
use crate::live::activity::SetActivity;
use crate::live::sampler::{Look, Sampler};
use crate::live::schedule::Schedule;
use crate::live::usage::{self, Usage};
use crate::output::Lines;
use crate::reveal::Reveal;
use crate::state::State;
use crate::text::human::{self, count};
use crate::text::{key, sanitise};

/// Print what happens in a segment, again and again
///
/// That is, for each set: how many requests per second were admitted and refused since the previous line, how many permits
/// are in use, how many requests wait, and how much of each limit is used. Maps the file read-only and takes no lock, so
/// nobody waits for it, and permission to read the file is enough. If another segment takes the place of this one, it is
/// watched from then on. In JSON, each line is an object with the rates, in requests per second, and the counters of all
/// sets at one instant.
#[derive(Args, Debug)]
pub struct Watch {
    /// How long to wait between two lines, such as 500ms or 5s
    ///
    /// Rates are averages over this time. A bare number counts seconds.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    every: Duration,

    /// How many times to print
    ///
    /// By default, until it is interrupted or its reader closes the pipe.
    #[arg(long, value_name = "COUNT")]
    count: Option<u64>,

    /// How many of the hottest keys of each keyed set to show
    ///
    /// Those that were asked for most often since the previous line. To find them, every key of the set is looked at, which
    /// takes some milliseconds for each hundred thousand.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    keys: usize,

    #[command(flatten)]
    reveal: Reveal,

    #[command(flatten)]
    looking: Looking,
}

impl Watch {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let mut sampler = Sampler::open(&self.looking.segment.path, self.keys, self.reveal)?;
        // The first rates count from this look.
        sampler.look()?;
        let mut schedule = Schedule::starting(Instant::now(), self.every);
        let mut lines = Lines::new();
        let mut heading = String::new();
        let mut printed = 0;
        while self.count.is_none_or(|count| printed < count) {
            thread::sleep(schedule.remaining(Instant::now()));
            schedule.advance(Instant::now());
            let look = sampler.look()?;
            if self.looking.form.json {
                lines.print(&line(&look))?;
            } else {
                lines.print_text(&text(&look, &mut heading))?;
            }
            lines.flush()?;
            if lines.is_closed() {
                break;
            }
            printed += 1;
        }
        Ok(ExitCode::DONE)
    }
}

/// All sets at one instant.
fn line(look: &Look) -> Value {
    let participants = &look.snapshot.participants;
    let alive = participants.iter().filter(|it| it.alive).count();
    let sets: Vec<Value> = look.sets().map(|(set, activity)| of_set(set, activity)).collect();
    json!({
        "time": look.utc.as_secs_f64(), // since the Unix epoch
        "elapsed": look.elapsed.map(|elapsed| elapsed.as_secs_f64()),
        "state": look.state,
        "participants": alive,
        "dead_participants": participants.len() - alive,
        "sets": sets,
    })
}

fn of_set(set: &SetSnapshot, activity: &SetActivity) -> Value {
    let limits = set.limits.iter().zip(&activity.limits);
    let limits: Vec<Value> = limits
        .map(|(limit, rates)| {
            json!({
                "name": limit.name,
                "kind": limit.kind,
                "usage": usage::usage(set, limit),
                "rates": rates,
                "counts": limit.counts,
            })
        })
        .collect();
    let mut line = json!({
        "name": set.name,
        "rates": activity.rates,
        "timed_out_rate": activity.timed_out,
        "active": set.active,
        "of_dead": set.of_dead,
        "queued": set.queued(),
        "throttled_for": set.throttled_for.as_secs_f64(),
        "counts": set.counts,
        "limits": limits,
    });
    if let Some(keys) = &set.keys {
        line["keys"] = json!(keys);
    }
    if !activity.hottest.is_empty() {
        line["hottest"] = json!(activity.hottest);
    }
    line
}

/// A line for each set and each of its hottest keys, below the heading if the columns have changed.
fn text(look: &Look, heading: &mut String) -> String {
    let names = look.sets().map(|(set, _)| sanitise::line(&set.name));
    let width = names.map(|name| name.width()).max().unwrap_or(0).max(3);
    let padded = |name: &str| format!("{name}{}", " ".repeat(width.saturating_sub(name.width())));
    let columns = format!(
        "{:8}  {}  {:>10}  {:>10}  {:>10}  {:>7}  {:>7}  USED\n",
        "TIME",
        padded("SET"),
        "ADMITTED/S",
        "REFUSED/S",
        "TIMEOUT/S",
        "HELD",
        "QUEUED"
    );
    let mut text = String::new();
    if *heading != columns {
        text.push_str(&columns);
        *heading = columns;
    }
    let time = human::time_of_day(look.utc);
    if look.state != State::Ok {
        text.push_str(&format!("{time}  {}\n", look.state.words()));
    }
    for (set, activity) in look.sets() {
        text.push_str(&format!(
            "{time}  {}  {:>10}  {:>10}  {:>10}  {:>7}  {:>7}  {}\n",
            padded(&sanitise::line(&set.name)),
            human::rate(activity.rates.map(|rates| rates.admitted)),
            human::rate(activity.rates.map(|rates| rates.refused)),
            human::rate(activity.timed_out),
            count(set.active),
            count(set.queued()),
            usages(set)
        ));
        for hot in &activity.hottest {
            text.push_str(&format!(
                "{time}  {}  {:>10}  {:>10}  {:>10}  {:>7}  {:>7}  key {}\n",
                padded(""),
                human::rate(hot.rates.map(|rates| rates.admitted)),
                human::rate(hot.rates.map(|rates| rates.refused)),
                "",
                "",
                count(hot.queued),
                key::key(&hot.key)
            ));
        }
    }
    text
}

/// How much of each limit is used, or leased.
fn usages(set: &SetSnapshot) -> String {
    let mut parts: Vec<String> = Vec::new();
    for limit in &set.limits {
        let usage = usage::usage(set, limit);
        if let Usage::Of { .. } | Usage::Leased { .. } = usage {
            parts.push(format!(
                "{} {}",
                sanitise::line(&limit.name),
                usage::words(limit, usage)
            ));
        }
    }
    if let Some(keys) = &set.keys {
        parts.push(format!("{} of {} keys", count(keys.in_use), count(keys.rows)));
    }
    if !set.throttled_for.is_zero() {
        parts.push(format!("throttled for {}", human::duration(set.throttled_for)));
    }
    if set.poisoned {
        parts.push("cannot be repaired".to_owned());
    }
    parts.join(", ")
}
