//! `limitctl exec`.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;
use shmlimit::{Error, LimitSet, OpenError, Permit, Request, RequestError, Segment};

use crate::arguments::{self, Access, SegmentPath};
use crate::exit::{ExitCode, Failure};
use crate::job::{self, Front, Keeper, Kept, Outcome};
use crate::store;
use crate::text::sanitise;

/// The pause between two attempts to attach while other processes have all participant slots.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Run a command under a permit
///
/// Waits in the queue of the set until its limits admit the request, runs the command, and gives the permit back when the command has ended:
///
///     limitctl exec /dev/shm/build.limits jobs -- make -j4
///
///     limitctl exec --cost tokens=1500 --timeout 30s /dev/shm/gateway.limits openai -- ./ask
///
/// Takes one of each limit of calls and concurrency, unless --cost says otherwise. A limit of cost must be named there.
///
/// The command takes limitctl's place: it gets its files, environment, process group, signal mask and ignored signals. limitctl passes on the signals it is sent, stops when the command stops, and ends as the command does: with its exit code, or by the signal that killed it. Leases are renewed.
///
/// A second process, limitctl-keeper, holds the permit until the command and everything it started have ended. Whatever the command leaves running in the background, even as a daemon, keeps the permit although limitctl has ended. So if limitctl is killed by SIGKILL, the job continues and the permit is held. Only SIGKILL of limitctl-keeper frees the permit early. The kernel then kills the command, unless that runs as another user by now, but not what it started.
///
/// If the segment has no place for another process, limitctl waits for one, just as it waits for the permit but in no order.
///
/// If the permit has nothing to give back, because it only took from limits of calls and cost, limitctl becomes the command.
///
/// If hosts share a limit of the set, limitctl takes part in asking the store for leases until it ends or becomes the command, with the user and password in SHMLIMIT_FLEET_USERNAME and SHMLIMIT_FLEET_PASSWORD or SHMLIMIT_FLEET_PASSWORD_FILE. The store answers while limitctl waits in the queue: with --timeout 0, only what is already leased is taken.
///
/// Before the command runs, limitctl may end with one of the exit codes below. The command may use the same ones.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub struct Exec {
    #[command(flatten)]
    access: Access,

    /// What to take of a limit, such as tokens=1500 or dollars=0.25
    ///
    /// In the unit in which the limit was declared. May be repeated. If any limit is named, limits of cost that are not
    /// named are not taken.
    #[arg(long = "cost", value_name = "NAME=AMOUNT", value_parser = cost)]
    costs: Vec<Cost>,

    /// Whose limits to take, if the set is keyed
    ///
    /// Exactly the bytes that programs use, from 1 to 65,536 of them.
    #[arg(long, value_name = "KEY")]
    key: Option<OsString>,

    /// What the permit is for, shown beside it where the set has `labels`; the command's name unless given
    ///
    /// `limitctl inspect` then says which job holds what. Up to 64 bytes are kept, where anyone who may read the segment can
    /// read them: put no secret into it.
    #[arg(long, value_name = "TEXT")]
    label: Option<OsString>,

    /// How long to wait for the permit, such as 500ms, 1m or 2.5 (seconds); for ever unless given
    ///
    /// With 0, limitctl does not wait. When the time is up, the command is not run, and the exit code is 75.
    #[arg(long, value_name = "TIME", value_parser = arguments::duration)]
    timeout: Option<Duration>,

    /// The exit code if the permit was refused, or did not come in time; 75 unless given
    ///
    /// From 0 to 255. Choose one that the command never ends with to tell the two apart.
    #[arg(long, value_name = "CODE")]
    conflict_exit_code: Option<u8>,

    #[command(flatten)]
    segment: SegmentPath,

    /// The set whose limits are taken
    ///
    /// One of the names that `limitctl inspect` shows.
    set: String,

    /// The command and its arguments, after --
    ///
    /// A name without a slash is looked for in the directories of PATH.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// `NAME=AMOUNT`
#[derive(Clone, Debug)]
struct Cost {
    limit: String,
    amount: String,
}

impl Exec {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let front = Front::start(|keeper| self.keep(keeper));
        let front = front.map_err(|error| Failure::of_system(&error, "cannot start another process"))?;
        match front.stand()? {
            Outcome::Ended(status) => Ok(job::end_like(status)),
            // Becomes the command; only returns if that fails.
            Outcome::NothingHeld => {
                let mut command = job::with_inherited_signals(self.command());
                Err(self.not_started(&command.exec()))
            }
        }
    }

    fn command(&self) -> Command {
        let mut words = self.command.iter();
        let mut command = Command::new(words.next().map_or(OsStr::new(""), OsString::as_os_str));
        command.args(words);
        command
    }

    /// Takes the permit and, unless the permit holds nothing, runs the command. Releases the segment in either case.
    fn keep(&self, keeper: &Keeper) -> Result<Kept, Failure> {
        // If the deadline is beyond what a clock can represent, the wait never ends.
        let deadline = self
            .timeout
            .and_then(|timeout| Instant::now().checked_add(timeout));
        let left = || deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let segment = self.attach(left)?;
        let set = segment.set(&self.set)?;
        let request = self.request(&set)?;
        if set
            .declared_limits()
            .iter()
            .any(|limit| limit.options().fleet().is_some())
        {
            store::ask_while_running(&segment);
        }
        let outcome = request.acquire(left()).map_err(cannot_take)?;
        let mut permit = outcome.into_result().map_err(|refusal| match deadline {
            Some(deadline) if self.timeout != Some(Duration::ZERO) && deadline <= Instant::now() => {
                self.refused(format!("time was up: {refusal}"))
            }
            _ => self.refused(refusal.to_string()),
        })?;
        if permit.fencing_number().is_none() {
            self.give_back(&mut permit)?;
            return Ok(Kept::Nothing);
        }
        let Some(tree) = keeper
            .start(self.command())
            .map_err(|error| self.not_started(&error))?
        else {
            return Ok(Kept::Abandoned);
        };
        // The command may outlast the lease.
        if let Err(error) = permit.heartbeat_in_background() {
            tree.complain(error.into());
        }
        let waited = tree.wait();
        if let Err(error) = self.give_back(&mut permit) {
            // This is only a complaint: the command has run, and its exit code is the result.
            tree.complain(error.into());
        }
        match waited {
            Ok(status) => Ok(Kept::UntilTheEnd(status)),
            Err(error) => Err(Failure::problem(format!("cannot wait for the command: {error}"))),
        }
    }

    /// Attaches to the segment. If other processes have all participant slots, waits for one to end, just as it waits
    /// for the permit.
    fn attach(&self, left: impl Fn() -> Option<Duration>) -> Result<Segment, Failure> {
        let mut pause = SHORTEST_PAUSE;
        loop {
            let error = match self.access.options().open(&self.segment.path) {
                Err(error @ Error::Open(OpenError::TooManyParticipants { .. })) => error,
                outcome => return Ok(outcome?),
            };
            let pause_now = match left() {
                Some(left) if left.is_zero() => return Err(self.refused(error.to_string())),
                Some(left) => left.min(pause),
                None => pause,
            };
            std::thread::sleep(pause_now);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn request<'a>(&self, set: &'a LimitSet) -> Result<Request<'a>, Error> {
        let mut request = set.request().label(self.label());
        if let Some(key) = &self.key {
            request.set_key(key.as_bytes())?;
        }
        self.costs.iter().try_fold(request, |request, cost| {
            request.with_decimal(&cost.limit, &cost.amount)
        })
    }

    /// What the permit is for. By default, only the command's name, because arguments may be secrets.
    fn label(&self) -> String {
        let name = || Path::new(self.command.first()?).file_name();
        let label = self.label.as_deref().or_else(name);
        label
            .map(|label| label.to_string_lossy().into_owned())
            .unwrap_or_default()
    }

    fn give_back(&self, permit: &mut Permit<'_>) -> Result<(), Error> {
        if !self.costs.is_empty() {
            // The named cost is the actual cost.
            permit.settle::<&str>([])?;
        }
        permit.release()
    }

    fn not_started(&self, error: &io::Error) -> Failure {
        let code = match error.kind() {
            io::ErrorKind::NotFound => ExitCode::COMMAND_NOT_FOUND,
            _ => ExitCode::COMMAND_NOT_EXECUTABLE,
        };
        let program = self.command.first().map(|program| program.to_string_lossy());
        let program = sanitise::line(&program.unwrap_or_default());
        Failure::new(code, format!("cannot run `{program}`: {error}"))
    }

    fn refused(&self, why: String) -> Failure {
        let code = self.conflict_exit_code.map_or(ExitCode::REFUSED, ExitCode::of);
        Failure::new(code, why)
    }
}

/// The error, with the argument that would help.
fn cannot_take(error: Error) -> Failure {
    let argument = match &error {
        Error::Request(RequestError::CostRequired { limit, .. }) => {
            Some(format!(": add --cost {limit}=AMOUNT"))
        }
        Error::Request(RequestError::KeyRequired { .. }) => Some(": add --key KEY".to_owned()),
        _ => None,
    };
    let mut failure = Failure::from(error);
    failure.message.extend(argument);
    failure
}

fn cost(text: &str) -> Result<Cost, String> {
    // Split at the last `=`, because a name may contain one.
    let (limit, amount) = text
        .rsplit_once('=')
        .ok_or("the amount is missing: write NAME=AMOUNT, such as tokens=1500")?;
    Ok(Cost {
        limit: limit.to_owned(),
        amount: amount.to_owned(),
    })
}
