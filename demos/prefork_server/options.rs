//! The options on the command line.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, process};

use clap::Parser;
use shmlimit::{Declaration, Keyed, Limit, SetDeclaration};

use crate::Failure;

const HOUR: Duration = Duration::from_secs(3600);

/// The number of keys that the table has room for, however many clients send.
const MAX_KEYS: u64 = 10_000;

/// Four worker processes answer HTTP requests under limits that they share.
///
/// Without --serve it also drives itself: a client sends requests for a few seconds, one worker is killed while it
/// holds permits, and what was admitted is printed next to what the limits allow.
#[derive(Clone, Debug, Parser)]
#[command(name = "prefork_server")]
pub struct Options {
    /// Stay up for curl, wrk or ab until interrupted, instead of running the demonstration
    #[arg(long)]
    pub serve: bool,

    /// Worker processes
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub workers: u32,

    /// Port on 127.0.0.1 [default: any that is free]
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub port: u16,

    /// File of the segment; must not exist yet [default: a new one in /dev/shm]
    #[arg(long, value_name = "PATH")]
    pub segment: Option<PathBuf>,

    /// Limits from a TOML declaration instead of the four flags below
    ///
    /// Its first set without keys is for all, and its first set with keys for requests that have the header x-api-key.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["calls", "burst", "concurrency", "per_key"])]
    pub config: Option<PathBuf>,

    /// Requests admitted per second
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub calls: u64,

    /// Requests admitted at once after a quiet time
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub burst: u64,

    /// Requests worked on at the same time
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub concurrency: u64,

    /// Requests admitted per hour for each key, in the header x-api-key, instead of the limits for all
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub per_key: u64,

    /// How long a request is worked on, on average
    #[arg(long, value_name = "MS", default_value_t = 35, value_parser = clap::value_parser!(u64).range(..=60_000))]
    pub work_ms: u64,

    /// Let requests wait their turn for so long, such as 500ms, instead of refusing them at once
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub wait: Option<Duration>,

    /// How long the client sends requests
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,

    /// Connections of the client
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=512))]
    pub connections: u32,

    /// Keys that the client sends requests with afterwards, all at once
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(..=100))]
    pub keys: u32,

    /// Two hosts, each with a segment and workers, share the requests over the store at this URL; `auto` starts one
    #[arg(long, value_name = "URL", conflicts_with_all = ["serve", "config"])]
    pub fleet: Option<String>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl Options {
    pub fn work(&self) -> Duration {
        Duration::from_millis(self.work_ms)
    }

    pub fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    pub fn segment_path(&self) -> PathBuf {
        self.segment.clone().unwrap_or_else(|| {
            let memory = Path::new("/dev/shm");
            let directory = if memory.is_dir() {
                memory.to_owned()
            } else {
                env::temp_dir()
            };
            directory.join(format!("prefork-{}.limits", process::id()))
        })
    }

    pub fn declaration(&self) -> Result<Declaration, Failure> {
        if let Some(path) = &self.config {
            return Ok(Declaration::from_toml_file(path)?);
        }
        let everyone = SetDeclaration::new("api")
            .add_limit(Limit::calls("requests", self.calls, Duration::from_secs(1)).burst(self.burst))
            .add_limit(Limit::concurrency("in_flight", self.concurrency));
        let each_key = SetDeclaration::new("clients")
            .keyed(Keyed::new(MAX_KEYS).store_keys(false)) // they may be API keys
            .add_limit(Limit::calls("per_key", self.per_key, HOUR));
        Ok(Declaration::new().add_set(everyone).add_set(each_key))
    }
}
