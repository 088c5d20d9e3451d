//! A fleet of thousands of hosts in one process, on simulated clocks, with the real engine, client and rules of the
//! store.
//!
//! ```sh
//! cargo run --release --package shmlimit-fleet --example fleet_simulator -- --hosts 10000 --seeds 1
//! ```
//!
//! Each host is a segment with its own clock, which runs a little fast or slow ([`host`]). Its requests go through a
//! network that delays and loses messages ([`world`]) to the model of the store, which is tested against a real one
//! elsewhere. With `--quiet`, hosts want a unit now and then of a limit that is hardly used, or with `--hold` a place for long, and
//! none may be refused. Otherwise, during a run, a tenth of the hosts is cut off, some are suspended, and the store fails over; with
//! `--outage`, no host reaches it for a while, and how long nothing was admitted afterwards is printed. With `--keys`,
//! each key has a limit of its own ([`keys`]). What was
//! admitted is checked against the declared limit, and compared with an allocator that knows everything at once
//! ([`omniscient`]). A seed reproduces a run.

mod host;
mod keys;
mod omniscient;
mod report;
mod schedule;
mod world;

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use shmlimit::declare::Outage;

use keys::{KeysReport, KeysWorld};
use report::Report;
use world::World;

type Failure = Box<dyn std::error::Error>;

/// What can be asked for on the command line.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "fleet_simulator",
    about = "Simulates a fleet of hosts that share one limit"
)]
struct Options {
    /// Hosts of the fleet
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=20_000))]
    hosts: u64,

    /// Units that are replenished in a second for each host; with --keys, of each key
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(100..=1_000_000))]
    units: u64,

    /// Seconds that are simulated
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(10..=3_600))]
    seconds: u64,

    /// The first seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// How many seeds are run, one after another
    #[arg(long, value_name = "N", default_value_t = 1)]
    seeds: u64,

    /// Count in fixed windows of so many seconds, in place of a rate
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=3_600))]
    window: Option<u64>,

    /// Have no host reach the store for so many seconds, from a third of the run on
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=3_600))]
    outage: Option<u64>,

    /// What hosts do meanwhile: deny, spend_out, safe or open
    #[arg(long, value_name = "POLICY", default_value_t = Outage::SpendOut)]
    policy: Outage,

    /// Have each host want one unit in so many seconds, on average, of a limit of which 7 % are used; nothing goes wrong
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=3_600))]
    quiet: Option<u64>,

    /// With --quiet: the units are places, each of which is held for so many seconds
    #[arg(long, value_name = "N", requires = "quiet", conflicts_with = "window", value_parser = clap::value_parser!(u64).range(1..=3_600))]
    hold: Option<u64>,

    /// Have each of so many keys have a limit of its own, the first used twice as often as the second, and so on
    #[arg(long, value_name = "N", conflicts_with_all = ["window", "outage", "quiet", "lose_writes"], value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    keys: Option<u64>,

    /// With --keys: how many requests come to each host in a second
    #[arg(long, value_name = "N", requires = "keys", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    requests: u64,

    /// Have nothing go wrong
    #[arg(long)]
    calm: bool,

    /// Have the store lose its last half second where it fails over: then nothing is promised
    #[arg(long)]
    lose_writes: bool,
}

/// The parameters of one run.
#[derive(Clone, Copy, Debug)]
struct Settings {
    hosts: u64,
    units: u64,
    seconds: u64,
    seed: u64,
    window: Option<u64>,
    outage: Option<u64>,
    policy: Outage,
    quiet: Option<u64>,
    hold: Option<u64>,
    /// In a second, to each host.
    requests: u64,
    is_calm: bool,
    lose_writes: bool,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("fleet_simulator: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether all runs kept what is promised.
fn run(options: &Options) -> Result<bool, Failure> {
    let mut is_kept = true;
    let headings = options.keys.map_or(Report::HEADINGS, |_| KeysReport::HEADINGS);
    println!("{headings}");
    for seed in options.seed..options.seed.saturating_add(options.seeds) {
        let begun = Instant::now();
        let settings = Settings {
            hosts: options.hosts,
            units: options.units,
            seconds: options.seconds,
            seed,
            window: options.window,
            outage: options.outage,
            policy: options.policy,
            quiet: options.quiet,
            hold: options.hold,
            requests: options.requests,
            is_calm: options.calm || options.quiet.is_some(),
            lose_writes: options.lose_writes,
        };
        if let Some(keys) = options.keys {
            let report = KeysWorld::new(settings, keys)?.run()?;
            println!("{report} {:>8.1}", begun.elapsed().as_secs_f64());
            is_kept &= report.is_kept();
            continue;
        }
        let mut world = World::new(settings)?;
        world.run()?;
        let report = world.report()?;
        println!("{report} {:>7.1}", begun.elapsed().as_secs_f64());
        is_kept &= options.lose_writes || report.is_kept(options.policy);
    }
    Ok(is_kept)
}
