//! Calls of scripts at one server.

use redis::{Cmd, ConnectionLike, ErrorKind, RedisError, ServerErrorKind, Value};

use super::calls::{Call, Scripts};

/// A result for each call.
pub(super) type Results = Vec<Result<Value, RedisError>>;

/// Calls scripts of one server. `checks_role`: the answers only count if the server then still is a primary, also in its
/// own view. Where it is not, it may have been told so before it granted anything.
pub(super) fn ask_server(
    connection: &mut dyn ConnectionLike,
    run: &str,
    scripts: &Scripts,
    checks_role: bool,
    calls: &[&Call<'_>],
) -> Result<Results, RedisError> {
    let mut pipeline = redis::pipe();
    for call in calls {
        pipeline.add_command(call.by_hash(scripts, run));
    }
    if checks_role {
        pipeline.cmd("INFO").arg("replication");
    }
    let mut results: Results = pipeline.ignore_errors().query(connection)?;
    if checks_role && results.pop().is_some_and(|role| is_replica(&role)) {
        let reason = "its role is no longer that of the primary";
        return Err((ErrorKind::Server(ServerErrorKind::ReadOnly), reason).into());
    }
    for (result, call) in results.iter_mut().zip(calls) {
        if is_missing_script(result) {
            // One before it may have brought the script.
            let called = call_anyway(connection, call, scripts, run);
            if called.as_ref().is_err_and(RedisError::is_io_error) {
                // Those that follow would wait for as long.
                return called.map(|value| vec![Ok(value)]);
            }
            *result = called;
        }
    }
    Ok(results)
}

/// Calls a script by its hash, and with its text if the server does not have it. It has it from then on.
fn call_anyway(
    connection: &mut dyn ConnectionLike,
    call: &Call<'_>,
    scripts: &Scripts,
    run: &str,
) -> Result<Value, RedisError> {
    let mut ask = |command: Cmd| connection.req_command(&command).and_then(Value::extract_error);
    let result = ask(call.by_hash(scripts, run));
    if is_missing_script(&result) {
        return ask(call.with_text(run));
    }
    result
}

fn is_missing_script(result: &Result<Value, RedisError>) -> bool {
    let kind = ErrorKind::Server(ServerErrorKind::NoScript);
    result.as_ref().is_err_and(|error| error.kind() == kind)
}

fn is_replica(replication: &Result<Value, RedisError>) -> bool {
    let text: Option<String> = replication
        .as_ref()
        .ok()
        .and_then(|value| redis::from_redis_value(value.clone()).ok());
    text.is_some_and(|text| field(&text, "role") == Some("slave"))
}

/// The value of a field in the text that a server answers to INFO.
pub(super) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = fields.find(|(field, _)| *field == name)?;
    Some(value.trim())
}
