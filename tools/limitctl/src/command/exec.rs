//! `limitctl exec`.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use clap::Args;
use shmlimit::{Error, LimitSet, Permit, Refusal, Request, RequestError};

use crate::arguments::{self, Access};
use crate::exit::{ExitCode, Failure};
use crate::job::{self, Job};
use crate::output;
use crate::store;
use crate::text::sanitise;

/// Run a command under a permit
///
/// Waits in the queue of the set until its limits admit the request, runs the command, and gives back what the permit holds when the command has ended:
///
///     limitctl exec /dev/shm/build.limits jobs -- make -j4
///
///     limitctl exec --cost tokens=1500 --timeout 30s /dev/shm/gateway.limits openai -- ./ask
///
/// One of each limit of calls and concurrency is taken, unless --cost says otherwise; a limit of cost wants one named.
///
/// The command has limitctl's place: its files, environment, process group and signal mask. Signals sent to limitctl are passed on, a command that stops stops limitctl, and limitctl ends as the command does: with its exit code, or by the signal that killed it. Where limitctl is killed by SIGKILL, the kernel kills the command as well, unless it runs as another user by then. What the command leaves running in the background is not waited for and holds nothing. Leases are renewed for as long as limitctl is not stopped.
///
/// Where the permit has nothing to give back, because it took limits of calls and cost only, limitctl becomes the command.
///
/// Where hosts share a limit of the set, limitctl takes part in asking the store for leases until it ends or becomes the command, with the user and password of SHMLIMIT_FLEET_USERNAME and SHMLIMIT_FLEET_PASSWORD or SHMLIMIT_FLEET_PASSWORD_FILE. The store answers while limitctl waits in the queue: with --timeout 0, only what is leased already is taken.
///
/// Before the command runs, limitctl may end with one of the exit codes below. A command may end with the same ones.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub struct Exec {
    #[command(flatten)]
    access: Access,

    /// What to take of a limit, such as tokens=1500 or dollars=0.25
    ///
    /// In the unit in which the limit was declared. May be repeated. Where anything is named, limits of cost that are
    /// not named are not taken.
    #[arg(long = "cost", value_name = "NAME=AMOUNT", value_parser = cost)]
    costs: Vec<Cost>,

    /// Whose limits to take, where the set is keyed
    ///
    /// Exactly the bytes that programs use, from 1 to 65,536 of them.
    #[arg(long, value_name = "KEY")]
    key: Option<OsString>,

    /// How long to wait for the permit, such as 500ms, 1m or 2.5 (seconds); for ever unless given
    ///
    /// 0 does not wait. When time is up, the command is not run, and the exit code is 75.
    #[arg(long, value_name = "TIME", value_parser = arguments::duration)]
    timeout: Option<Duration>,

    /// The exit code where the permit was refused, or did not come in time; 75 unless given
    ///
    /// From 0 to 255. One that the command never ends with tells the two apart.
    #[arg(long, value_name = "CODE")]
    conflict_exit_code: Option<u8>,

    /// The segment
    ///
    /// A file that `limitctl create` or a program made. Symbolic links are not followed.
    segment: PathBuf,

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
        match self.run_while_held()? {
            Some(status) => Ok(job::end_like(status)),
            // Becomes the command, and returns only where it could not.
            None => Err(self.not_started(&self.command().exec())),
        }
    }

    fn command(&self) -> Command {
        let mut words = self.command.iter();
        let mut command = Command::new(words.next().map_or(OsStr::new(""), OsString::as_os_str));
        command.args(words);
        command
    }

    /// Takes the permit and runs the command, unless the permit holds nothing. Releases the segment in any case.
    fn run_while_held(&self) -> Result<Option<ExitStatus>, Failure> {
        let segment = self.access.options().open(&self.segment)?;
        let set = segment.set(&self.set)?;
        let request = self.request(&set)?;
        if set
            .declared_limits()
            .iter()
            .any(|limit| limit.options().fleet().is_some())
        {
            store::ask_while_running(&segment);
        }
        let outcome = match &self.key {
            Some(key) => set.key(key.as_bytes())?.acquire(&request, self.timeout),
            None => set.acquire(&request, self.timeout),
        };
        let outcome = outcome.map_err(cannot_take)?;
        let mut permit = outcome.into_result().map_err(|refusal| self.refused(&refusal))?;
        let status = if permit.fencing_number().is_some() {
            Some(self.run_under(&permit)?)
        } else {
            None
        };
        if let Err(error) = self.give_back(&mut permit) {
            // The command has run, and how it ended is the answer.
            output::complain(&Failure::from(error).message);
        }
        Ok(status)
    }

    fn request(&self, set: &LimitSet) -> Result<Request, Error> {
        self.costs.iter().try_fold(set.request(), |request, cost| {
            request.with_decimal(&cost.limit, &cost.amount)
        })
    }

    fn give_back(&self, permit: &mut Permit<'_>) -> Result<(), Error> {
        if !self.costs.is_empty() {
            // What was named is what it cost: nothing is left open.
            permit.settle::<&str>([])?;
        }
        permit.release()
    }

    fn run_under(&self, permit: &Permit<'_>) -> Result<ExitStatus, Failure> {
        let job = Job::start(self.command()).map_err(|error| self.not_started(&error))?;
        // A command takes as long as it takes.
        if let Err(error) = permit.heartbeat_in_background() {
            output::complain(&Failure::from(error).message);
        }
        job.wait()
            .map_err(|error| Failure::new(ExitCode::Problem, format!("cannot wait for the command: {error}")))
    }

    fn not_started(&self, error: &io::Error) -> Failure {
        let code = match error.kind() {
            io::ErrorKind::NotFound => ExitCode::CommandNotFound,
            _ => ExitCode::CommandNotExecutable,
        };
        let program = self.command.first().map(|program| program.to_string_lossy());
        let program = sanitise::line(&program.unwrap_or_default());
        Failure::new(code, format!("cannot run `{program}`: {error}"))
    }

    fn refused(&self, refusal: &Refusal) -> Failure {
        let code = self.conflict_exit_code.map_or(ExitCode::Refused, ExitCode::Other);
        Failure::new(code, refusal.to_string())
    }
}

/// The error, and which argument helps.
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
    // The last sign: a name may have one.
    let (limit, amount) = text
        .rsplit_once('=')
        .ok_or("the amount is missing: write NAME=AMOUNT, such as tokens=1500")?;
    Ok(Cost {
        limit: limit.to_owned(),
        amount: amount.to_owned(),
    })
}
