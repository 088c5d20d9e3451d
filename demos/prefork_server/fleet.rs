//! Two "hosts" that share a limit over a store: two segments, each with its own workers. The demonstration kills one
//! worker, if possible the one that asks the store; it stops the store and starts it again; and it compares what both
//! hosts admitted together with the limit.

use std::fmt::{self, Display, Formatter};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use shmlimit::declare::FleetLease;
use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
use shmlimit_fleet::{Credentials, Refresher, Timeouts};
use tempfile::TempDir;

use crate::client::{self, Tally};
use crate::crew::{Crew, wait_for_signal};
use crate::demonstration::ClientProcess;
use crate::figures::thousands;
use crate::options::Options;
use crate::report::print;
use crate::rules::AllRules;
use crate::{Failure, SegmentFile, worker};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The value of `--fleet` for a store that the demonstration starts itself.
pub const OWN_STORE: &str = "auto";

/// The phases that the run is divided into, all equally long.
const PHASES: [&str; 4] = [
    "as it should be",
    "a worker killed",
    "store stopped",
    "store back",
];

/// A store that the demonstration starts and stops.
struct OwnStore {
    program: PathBuf,
    port: u16,
    password: String,
    directory: TempDir,
    child: Child,
}

impl OwnStore {
    fn start() -> Result<Self, Failure> {
        let path = env::var_os("PATH").unwrap_or_default();
        let program = env::split_paths(&path)
            .flat_map(|directory| ["redis-server", "valkey-server"].map(|name| directory.join(name)))
            .find(|program| program.is_file())
            .ok_or(
                "no redis-server and no valkey-server on the PATH: install one, or name a store by its URL",
            )?;
        let directory = tempfile::tempdir()?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let password = format!("{}-{port}", std::process::id());
        let child = Self::spawn(&program, port, &password, &directory)?;
        Ok(Self {
            program,
            port,
            password,
            directory,
            child,
        })
    }

    /// Starts a store with a log, from which it reads its data again after it was killed.
    fn spawn(program: &PathBuf, port: u16, password: &str, directory: &TempDir) -> Result<Child, Failure> {
        let child = Command::new(program)
            .args([
                "--bind",
                "127.0.0.1",
                "--port",
                &port.to_string(),
                "--requirepass",
                password,
            ])
            .args([
                "--save",
                "",
                "--appendonly",
                "yes",
                "--appendfsync",
                "always",
                "--dir",
            ])
            .arg(directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let begun = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if begun.elapsed() > 10 * SECOND {
                return Err("the store does not come up".into());
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(child)
    }

    fn stop(&mut self) -> Result<(), Failure> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    fn start_again(&mut self) -> Result<(), Failure> {
        self.child = Self::spawn(&self.program, self.port, &self.password, &self.directory)?;
        Ok(())
    }
}

impl Drop for OwnStore {
    fn drop(&mut self) {
        // If it is already stopped, there is nothing to end.
        let _ = self.stop();
    }
}

/// Everything that is printed.
#[derive(Clone, Debug, Serialize)]
struct FleetReport {
    held: bool,
    seconds: f64,
    /// What both hosts may admit together in that time; `admitted` is what they did admit.
    allowed: u64,
    admitted: u64,
    hosts: Vec<HostRow>,
    /// The worker that was killed, and whether it had the duty.
    killed: Option<(i32, bool)>,
    takeovers: u64,
    store_was_stopped: bool,
}

#[derive(Clone, Debug, Serialize)]
struct HostRow {
    segment: PathBuf,
    workers: usize,
    requests: u64,
    /// The number admitted in each phase.
    admitted: Vec<u64>,
    refused: u64,
}

struct Host<'a> {
    segment: &'a Segment,
    crew: Crew<'a>,
    client: ClientProcess<Tally>,
    tally: Option<Tally>,
    /// How much had been admitted when each phase began.
    marks: Vec<u64>,
}

impl Host<'_> {
    fn admitted(&self) -> Result<u64, Failure> {
        let snapshot = self.segment.snapshot()?;
        let limits = snapshot.sets.iter().flat_map(|set| &set.limits);
        let requests = limits.filter(|limit| limit.name == "requests");
        Ok(requests.map(|limit| limit.counts.admitted).sum())
    }
}

fn declaration(url: &str, options: &Options) -> Declaration {
    // With a burst below what is leased for a second, every few requests would need a round trip.
    let requests = Limit::calls("requests", options.calls, SECOND)
        .burst(options.burst.max(options.calls))
        .fleet(FleetLease::new("prefork/requests").lease(LEASE));
    let everyone = SetDeclaration::new("api")
        .add_limit(requests)
        .add_limit(Limit::concurrency("in_flight", options.concurrency));
    Declaration::new().fleet_url(url).add_set(everyone)
}

/// Runs the demonstration over a store.
pub fn run(store: &str, options: &Options, signals: &SigSet) -> Result<ExitCode, Failure> {
    let mut own = (store == OWN_STORE).then(OwnStore::start).transpose()?;
    let (url, credentials) = match &own {
        Some(own) => (
            format!("redis://127.0.0.1:{}", own.port),
            Credentials::none().with_password(&own.password),
        ),
        None => (store.to_owned(), Credentials::from_environment()?),
    };
    let declaration = declaration(&url, options);
    declaration.validate()?;
    let rules = AllRules::of(&declaration)?;
    let began = Instant::now();
    let path = options.segment_path();
    let segments = (1..=2)
        .map(|host| {
            let path = path.with_extension(format!("host-{host}"));
            Ok(SegmentFile(Segment::create(path, &declaration)?))
        })
        .collect::<Result<Vec<_>, Failure>>()?;
    let mut hosts = Vec::new();
    for SegmentFile(segment) in &segments {
        hosts.push(start(segment, &rules, credentials.clone(), options)?);
    }
    if !options.json {
        println!(
            "Two hosts, each with {} workers and a segment, share {} requests a second over {url}.",
            options.workers,
            thousands(options.calls)
        );
        if own.is_none() {
            println!(
                "The store is yours: it is not stopped. Stop and start it yourself to see what happens."
            );
        }
        println!();
    }
    let length = options.duration().max(8 * SECOND);
    let (mut phase, mut killed) = (0, None);
    while hosts.iter().any(|host| host.tally.is_none()) {
        if let Some(Signal::SIGINT | Signal::SIGTERM) = wait_for_signal(signals, LOOK_EVERY)? {
            return Err("interrupted".into());
        }
        for host in &mut hosts {
            host.crew.replace_ended()?;
            if host.tally.is_none() {
                host.tally = host.client.finished()?;
            }
        }
        let due = length * u32::try_from(phase + 1)? / u32::try_from(PHASES.len())?;
        if phase + 1 == PHASES.len() || began.elapsed() < due {
            continue;
        }
        phase += 1;
        for host in &mut hosts {
            host.marks.push(host.admitted()?);
        }
        match (phase, &mut own) {
            (1, _) => killed = kill_one(&hosts[0])?,
            (2, Some(own)) => own.stop()?,
            (3, Some(own)) => own.start_again()?,
            _ => {}
        }
    }
    let elapsed = began.elapsed();
    let report = report(&mut hosts, &rules, elapsed, killed, own.is_some())?;
    print(&report, report.held, options.json)
}

fn start<'a>(
    segment: &'a Segment,
    rules: &AllRules,
    credentials: Credentials,
    options: &'a Options,
) -> Result<Host<'a>, Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    let server: SocketAddr = listener.local_addr()?;
    let everyone = segment.set(&rules.everyone.set)?;
    let crew = Crew::start(usize::try_from(options.workers)?, move || {
        // Every worker has the thread; one of them has the duty.
        let _refresher = Refresher::start_with(segment, credentials.clone(), Timeouts::default(), |_| {})?;
        worker::serve(
            listener.try_clone()?,
            &everyone,
            None,
            options.wait,
            options.work(),
        )
    })?;
    let length = options.duration().max(8 * SECOND);
    let client =
        ClientProcess::start(|| client::drive(server, options.connections, length, &rules.everyone))?;
    Ok(Host {
        segment,
        crew,
        client,
        tally: None,
        marks: vec![0],
    })
}

/// Kills the worker that asks the store or, if there is none, any other. Returns its process id, and whether it had the
/// duty.
fn kill_one(host: &Host<'_>) -> Result<Option<(i32, bool)>, Failure> {
    let fleet = host.segment.snapshot()?.fleet;
    let on_duty = fleet.and_then(|fleet| fleet.duty).and_then(|duty| duty.pid);
    let workers = host.crew.workers();
    let has_duty = |pid: Pid| u64::try_from(pid.as_raw()).ok() == on_duty;
    let victim = workers
        .iter()
        .find(|worker| has_duty(worker.pid))
        .or(workers.first());
    let Some(victim) = victim else { return Ok(None) };
    kill(victim.pid, Signal::SIGKILL)?;
    Ok(Some((victim.pid.as_raw(), has_duty(victim.pid))))
}

fn report(
    hosts: &mut [Host<'_>],
    rules: &AllRules,
    elapsed: Duration,
    killed: Option<(i32, bool)>,
    store_was_stopped: bool,
) -> Result<FleetReport, Failure> {
    let mut rows = Vec::new();
    let (mut all, mut takeovers) = (0, 0);
    for host in hosts {
        let workers = host.crew.workers().len();
        host.crew.end()?;
        let admitted = host.admitted()?;
        host.marks.push(admitted);
        all += admitted;
        takeovers += host.segment.snapshot()?.fleet.map_or(0, |fleet| fleet.takeovers);
        let tally = host.tally.as_ref().ok_or("a client without a result")?;
        let answers = tally.by_worker.values();
        let refused: u64 = answers.flat_map(|answers| answers.refused.values()).sum();
        rows.push(HostRow {
            segment: host.segment.path().to_owned(),
            workers,
            requests: admitted + refused + tally.cut_off,
            admitted: host.marks.windows(2).map(|marks| marks[1] - marks[0]).collect(),
            refused,
        });
    }
    let shared = rules
        .everyone
        .limits
        .iter()
        .find(|limit| limit.name == "requests");
    let allowed = shared
        .and_then(|limit| limit.max_within(elapsed))
        .unwrap_or(u64::MAX);
    Ok(FleetReport {
        held: all <= allowed,
        seconds: elapsed.as_secs_f64(),
        allowed,
        admitted: all,
        hosts: rows,
        killed,
        takeovers,
        store_was_stopped,
    })
}

impl Display for FleetReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>6}{:>9}{:>11}{:>11}",
            "host", "workers", "requests", "refused"
        )?;
        for phase in PHASES {
            write!(f, "{phase:>18}")?;
        }
        writeln!(f)?;
        for (number, host) in (1..).zip(&self.hosts) {
            let (requests, refused) = (thousands(host.requests), thousands(host.refused));
            write!(f, "{number:>6}{:>9}{requests:>11}{refused:>11}", host.workers)?;
            for admitted in &host.admitted {
                write!(f, "{:>18}", thousands(*admitted))?;
            }
            writeln!(f)?;
        }
        writeln!(f)?;
        if let Some((pid, had_duty)) = self.killed {
            let role = if had_duty {
                "which asked the store for its host, "
            } else {
                ""
            };
            writeln!(
                f,
                "Worker {pid}, {role}was killed (SIGKILL); takeovers of that duty: {}.",
                self.takeovers
            )?;
        }
        if self.store_was_stopped {
            writeln!(
                f,
                "The store was killed, and started again with its data a phase later."
            )?;
        }
        writeln!(
            f,
            "Admitted by both in {:.2} s: {} of at most {}   {}",
            self.seconds,
            thousands(self.admitted),
            thousands(self.allowed),
            if self.held { "ok" } else { "NOT HELD" }
        )
    }
}
