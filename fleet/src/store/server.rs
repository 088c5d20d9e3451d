//! Calling the scripts of one server.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use redis::{Connection, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};

use super::address::Node;
use super::calls::{Call, Scripts};

/// A result for each call.
pub(super) type Results<E = RedisError> = Vec<Result<Value, E>>;

/// Why a call failed.
pub(super) struct Failed {
    pub(super) error: RedisError,
    /// The server that failed, or said so, if the store has several.
    pub(super) at: Option<Node>,
}

impl From<RedisError> for Failed {
    fn from(error: RedisError) -> Self {
        Self { error, at: None }
    }
}

impl Failed {
    pub(super) fn at(node: Node, error: RedisError) -> Self {
        Self {
            error,
            at: Some(node),
        }
    }
}

/// Sends commands together and reads an answer to each, until `deadline`. The errors among the answers are those of the
/// server.
///
/// # Errors
///
/// Whatever was wrong with the connection. It is of no use any more: an answer may still be on its way.
pub(super) fn ask_together(
    connection: &mut Connection,
    deadline: Instant,
    commands: &Pipeline,
) -> Result<Results, RedisError> {
    limit(connection, deadline)?;
    connection.send_packed_command(&commands.get_packed_pipeline())?;
    let mut results = Results::with_capacity(commands.len());
    while results.len() < commands.len() {
        // `Pipeline::query` would start the timeout again for each answer, even after one that was late.
        limit(connection, deadline)?;
        match connection.recv_response()? {
            Value::Push { .. } => {}
            Value::ServerError(error) => results.push(Err(error.into())),
            answer => results.push(Ok(answer)),
        }
    }
    Ok(results)
}

/// How long the network may take from now on.
fn limit(connection: &Connection, deadline: Instant) -> Result<(), RedisError> {
    let left = deadline.saturating_duration_since(Instant::now());
    // A timeout of zero would mean none.
    let left = Some(left.max(Duration::from_millis(1)));
    connection.set_read_timeout(left)?;
    connection.set_write_timeout(left)
}

/// Calls scripts of one server, until `deadline`. With `checks_role`, the answers count only if the server says after
/// them that it is still a primary. If it is not, it may have lost that role before it granted anything.
pub(super) fn ask_server(
    connection: &mut Connection,
    deadline: Instant,
    run: &str,
    scripts: &Scripts,
    checks_role: bool,
    calls: &[&Call<'_>],
) -> Result<Results, RedisError> {
    let mut commands = redis::pipe();
    for call in calls {
        commands.add_command(call.by_hash(scripts, run));
    }
    if checks_role {
        commands.cmd("INFO").arg("replication");
    }
    let mut results = ask_together(connection, deadline, &commands)?;
    if checks_role && results.pop().is_some_and(is_replica) {
        let reason = "its role is no longer that of the primary";
        return Err((ErrorKind::Server(ServerErrorKind::ReadOnly), reason).into());
    }
    bring_scripts(connection, deadline, run, scripts, calls, &mut results)?;
    Ok(results)
}

/// Repeats the calls whose script the server does not have, all in one pipeline. The first call of each script brings its
/// text, and the server has it from then on.
fn bring_scripts(
    connection: &mut Connection,
    deadline: Instant,
    run: &str,
    scripts: &Scripts,
    calls: &[&Call<'_>],
    results: &mut Results,
) -> Result<(), RedisError> {
    let missing: Vec<_> = (0..calls.len())
        .filter(|&position| is_missing_script(&results[position]))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut bringers = HashMap::new();
    let mut commands = redis::pipe();
    for &position in &missing {
        let call = calls[position];
        let bringer = *bringers.entry(call.script()).or_insert(position);
        commands.add_command(if bringer == position {
            call.with_text(run)
        } else {
            call.by_hash(scripts, run)
        });
    }
    let again = ask_together(connection, deadline, &commands)?;
    for (position, result) in missing.into_iter().zip(again) {
        results[position] = if is_missing_script(&result) {
            // The server did not take the text, and its answer to that says why.
            results[bringers[calls[position].script()]].clone()
        } else {
            result
        };
    }
    Ok(())
}

fn is_missing_script(result: &Result<Value, RedisError>) -> bool {
    let kind = ErrorKind::Server(ServerErrorKind::NoScript);
    result.as_ref().is_err_and(|error| error.kind() == kind)
}

fn is_replica(replication: Result<Value, RedisError>) -> bool {
    text(replication).is_some_and(|text| field(&text, "role") == Some("slave"))
}

/// An answer that is text.
fn text(answer: Result<Value, RedisError>) -> Option<String> {
    redis::from_redis_value(answer.ok()?).ok()
}

/// The value of a field in the text that a server answers to INFO.
pub(super) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = fields.find(|(field, _)| *field == name)?;
    Some(value.trim())
}

/// Asks a server by which policy it evicts keys.
pub(super) fn ask_memory(questions: &mut Pipeline) {
    questions.cmd("INFO").arg("memory");
}

/// The policy, from the answer. A server without a bound on its memory evicts nothing, and one that does not say is assumed
/// not to.
pub(super) fn evicts_by(memory: Result<Value, RedisError>) -> Option<String> {
    let memory = text(memory)?;
    let is_bounded = field(&memory, "maxmemory").is_some_and(|bytes| bytes != "0");
    let policy = field(&memory, "maxmemory_policy").filter(|policy| is_bounded && *policy != "noeviction");
    policy.map(str::to_owned)
}
