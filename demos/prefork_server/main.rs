//! A prefork HTTP server whose worker processes share their limits, and survive the death of one of them.
//!
//! ```sh
//! cargo run --release --example prefork_server              # demonstrates itself for five seconds
//! cargo run --release --example prefork_server -- --serve   # stays up for curl, wrk, ab
//! cargo run --release --example prefork_server -- --fleet auto   # two hosts share a limit over a store ([`fleet`])
//! ```
//!
//! The parent creates a segment and a listening socket and forks the workers ([`crew`]). Each [`worker`] accepts
//! connections from that socket and serves them behind a [`shmlimit::layer::LimitLayer`], which asks the segment's
//! limits before the worker works on a request, answers 429 if they refuse, and tells clients what remains. With
//! `--wait 500ms`, requests wait for their turn for up to that long before they are refused. The [`demonstration`]
//! sends real requests, kills one worker while it holds permits, and compares what was admitted with what the limits
//! allow ([`report`]). Requests that name a client in the header `x-api-key` have that client's own limits ([`keys`]).

mod client;
mod crew;
mod demonstration;
mod figures;
mod fleet;
mod keys;
mod options;
mod report;
mod rules;
mod table;
mod worker;

use std::net::{Ipv4Addr, TcpListener};
use std::process::ExitCode;
use std::time::Duration;
use std::{fs, iter};

use clap::Parser;
use nix::sys::signal::Signal;
use serde_json::json;
use shmlimit::Segment;

use crew::{Crew, Replaced};
use demonstration::Running;
use options::Options;
use report::{Report, print};
use rules::AllRules;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(code) => code,
        Err(failure) => {
            eprint!("prefork_server: {failure}");
            let causes = iter::successors(failure.source(), |cause| cause.source());
            causes.for_each(|cause| eprint!(": {cause}"));
            eprintln!();
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<ExitCode, Failure> {
    let signals = crew::block_signals()?;
    if let Some(store) = &options.fleet {
        return fleet::run(store, options, &signals);
    }
    let declaration = options.declaration()?;
    let rules = AllRules::of(&declaration)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, options.port))?;
    listener.set_nonblocking(true)?;
    let server = listener.local_addr()?;

    // The segment is opened before the fork; each child becomes a participant of its own when it first uses it.
    let segment = SegmentFile(Segment::create(options.segment_path(), &declaration)?);
    let everyone = segment.0.set(&rules.everyone.set)?;
    let each_key = rules.each_key.as_ref().map(|rules| segment.0.set(&rules.set));
    let each_key = each_key.transpose()?;
    let workers = usize::try_from(options.workers)?;
    let mut crew = Crew::start(workers, || {
        let listener = listener.try_clone()?;
        worker::serve(
            listener,
            &everyone,
            each_key.as_ref(),
            options.wait,
            options.work(),
        )
    })?;

    let running = Running {
        segment: &segment.0,
        rules: &rules,
        server,
        options,
        signals: &signals,
    };
    if options.serve {
        serve(&running, &mut crew)?;
        return Ok(ExitCode::SUCCESS);
    }
    if !options.json {
        announce_demonstration(&segment.0, &rules, options);
    }
    let findings = demonstration::run(&running, &mut crew)?;
    crew.end()?;
    let Some(findings) = findings else {
        return Err("interrupted".into());
    };
    let report = Report::new(&segment.0, &rules, &findings)?;
    print(&report, report.held, options.json)
}

fn announce_demonstration(segment: &Segment, rules: &AllRules, options: &Options) {
    println!(
        "{} share one listening socket and the limits in {}:",
        table::counted(options.workers.into(), "worker process", "worker processes"),
        segment.path().display()
    );
    announce_limits(rules);
    println!(
        "A client with {} ignores Retry-After for {}; a request is worked on for about {} ms.",
        table::counted(options.connections.into(), "connection", "connections"),
        table::counted(options.seconds, "second", "seconds"),
        options.work_ms
    );
    if let Some(wait) = options.wait {
        println!(
            "Requests wait their turn for up to {}.",
            humantime::format_duration(wait)
        );
    }
    println!();
}

fn announce_limits(rules: &AllRules) {
    println!("  {}", table::in_words(&rules.everyone));
    if let Some(each_key) = &rules.each_key {
        let header = worker::CLIENT_KEY;
        println!("  for each {header} by itself: {}", table::in_words(each_key));
    }
}

/// Stays up until it is interrupted, and replaces workers that end.
fn serve(running: &Running<'_>, crew: &mut Crew<'_>) -> Result<(), Failure> {
    let (segment, rules, server) = (running.segment, running.rules, running.server);
    let pids: Vec<i32> = crew.workers().iter().map(|worker| worker.pid.as_raw()).collect();
    if running.options.json {
        let started = json!({ "listening": server, "segment": segment.path(), "workers": pids });
        println!("{started}");
    } else {
        println!("Serving on http://{server}/ with workers {pids:?}; Ctrl-C ends.");
        announce_limits(rules);
        println!("  segment {}", segment.path().display());
        println!("Try: curl -i http://{server}/   or kill -9 a worker");
        if rules.each_key.is_some() {
            println!("     curl -i -H '{}: ann' http://{server}/", worker::CLIENT_KEY);
        }
    }
    loop {
        if let Some(Signal::SIGINT | Signal::SIGTERM) =
            crew::wait_for_signal(running.signals, Duration::from_secs(1))?
        {
            break;
        }
        for Replaced { old, new, status } in crew.replace_ended()? {
            eprintln!(
                "worker {} ended ({status:?}); {} takes its place",
                old.pid, new.pid
            );
        }
    }
    crew.end()
}

/// The file of the segment, removed when the server ends.
struct SegmentFile(Segment);

impl Drop for SegmentFile {
    fn drop(&mut self) {
        // Retire the segment first, so that other processes that have opened it notice.
        self.0.retire();
        let _ = fs::remove_file(self.0.path());
    }
}
