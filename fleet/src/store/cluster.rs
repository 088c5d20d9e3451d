//! A cluster: a connection to each of its servers, so that none of them keeps the others from answering.

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Client, Connection, ErrorKind, RedisError, ServerErrorKind, Value};

use super::address::Node;
use super::calls::{Call, Scripts};
use super::failure::is_interruption;
use super::server::{Results, ask_server, ask_together};
use super::slots::{self, Slots, redirected, slot_of};
use super::timeouts::Timeouts;

/// How servers are reached.
pub(super) struct Reach<'a> {
    pub(super) client: &'a dyn Fn(&Node) -> Result<Client, RedisError>,
    pub(super) timeouts: Timeouts,
}

type Opened = Result<Connection, RedisError>;

/// The connection to one server.
enum Line {
    Open(Box<Connection>),
    /// A thread is connecting. An exchange waits for it, unless the one before failed: that server may be silent.
    Opening {
        after: Option<RedisError>,
    },
    Failed(RedisError),
}

/// The connections to the servers of a cluster. Threads make them, and a server that fails is connected to again while
/// exchanges with the others go on.
pub(super) struct Cluster {
    slots: Slots,
    /// Something has failed since the slots were last asked for, so that others may have them now.
    is_in_doubt: bool,
    lines: HashMap<Node, Line>,
    opened: Receiver<(Node, Opened)>,
    opener: Sender<(Node, Opened)>,
}

impl Cluster {
    /// Connects to all of the given servers at the same time, until one of them has said where the slots are, for
    /// at most both timeouts together.
    pub(super) fn connect(reach: &Reach<'_>, nodes: &[Node]) -> Result<Self, RedisError> {
        let deadline = Instant::now() + reach.timeouts.connect + reach.timeouts.answer;
        let (opener, opened) = mpsc::channel();
        let mut cluster = Self {
            slots: Slots::default(),
            is_in_doubt: true,
            lines: HashMap::new(),
            opened,
            opener,
        };
        for node in nodes {
            cluster.open(reach, node, None);
        }
        let mut failure = timed_out();
        while cluster
            .lines
            .values()
            .any(|line| matches!(line, Line::Opening { .. }))
        {
            let Ok((node, opened)) = cluster.opened.recv_timeout(left_until(deadline)) else {
                return Err(failure);
            };
            cluster.take_in(node, opened);
            match cluster.find_slots(reach, deadline) {
                Ok(()) => return Ok(cluster),
                Err(Some(error)) => failure = error,
                Err(None) => {}
            }
            let failed = cluster.lines.values().find_map(|line| match line {
                Line::Failed(error) => Some(error.clone()),
                _ => None,
            });
            failure = failed.unwrap_or(failure);
        }
        Err(failure)
    }

    /// Whether any server is connected.
    pub(super) fn is_connected(&self) -> bool {
        self.lines.values().any(|line| matches!(line, Line::Open(_)))
    }

    /// Makes each call at the server that has its keys, at all servers at the same time. Takes no longer than to connect
    /// and three times the timeout of answers.
    pub(super) fn ask(&mut self, reach: &Reach<'_>, scripts: &Scripts, calls: &[Call<'_>]) -> Results {
        let longest = reach.timeouts.connect + 2 * reach.timeouts.answer;
        while let Ok((node, opened)) = self.opened.try_recv() {
            self.take_in(node, opened);
        }
        if self.is_in_doubt {
            // If none answers, the slots that are known have to do.
            let _ = self.find_slots(reach, Instant::now() + reach.timeouts.answer);
        }
        let mut deadline = Instant::now() + longest;
        let mut results: Results = calls.iter().map(|_| Err(no_server())).collect();
        let mut parts = HashMap::<Node, Vec<usize>>::new();
        for (position, call) in calls.iter().enumerate() {
            if let Some(node) = self.slots.server_of(slot_of(&call.place())) {
                parts.entry(node.clone()).or_default().push(position);
            }
        }
        // What was redirected, or sent over a connection that its server had closed, is sent once more. The requests are
        // the same, so a server may see them twice.
        let (mut again, mut moving) = (HashMap::<Node, Vec<usize>>::new(), Vec::new());
        let mut has_moved = false;
        for (node, position, result) in self.ask_at_once(reach, deadline, scripts, calls, parts) {
            if let Err(error) = &result {
                if is_interruption(error) {
                    deadline = Instant::now() + longest;
                }
                match error.kind() {
                    ErrorKind::Server(ServerErrorKind::Moved) => {
                        has_moved = true;
                        if let Some(node) = redirected(error, &node) {
                            again.entry(node).or_default().push(position);
                        }
                    }
                    ErrorKind::Server(ServerErrorKind::Ask) => {
                        moving.extend(redirected(error, &node).map(|node| (node, position)));
                    }
                    _ if is_worth_another(error) => again.entry(node).or_default().push(position),
                    _ => {}
                }
            }
            results[position] = result;
        }
        for (_, position, result) in self.ask_at_once(reach, deadline, scripts, calls, again) {
            results[position] = result;
        }
        for (node, position) in moving {
            results[position] = self.ask_where_it_moves(reach, deadline, &calls[position], &node);
        }
        self.is_in_doubt = has_moved
            || results.iter().any(Result::is_err)
            || self.lines.values().any(|line| !matches!(line, Line::Open(_)));
        results
    }

    /// Makes calls at several servers at the same time. What has failed is connected to again.
    fn ask_at_once(
        &mut self,
        reach: &Reach<'_>,
        deadline: Instant,
        scripts: &Scripts,
        calls: &[Call<'_>],
        parts: HashMap<Node, Vec<usize>>,
    ) -> Vec<(Node, usize, Result<Value, RedisError>)> {
        if parts.is_empty() {
            return Vec::new();
        }
        self.await_lines(reach, deadline, parts.keys());
        let mut outcomes = Vec::new();
        let mut open = Vec::new();
        for (node, positions) in parts {
            match self.lines.remove(&node) {
                Some(Line::Open(connection)) => open.push((node, positions, connection)),
                line => {
                    let failure = match &line {
                        Some(Line::Opening { after: Some(error) } | Line::Failed(error)) => error.clone(),
                        _ => timed_out(),
                    };
                    outcomes.extend(
                        positions
                            .iter()
                            .map(|&position| (node.clone(), position, Err(failure.clone()))),
                    );
                    let line = match line {
                        // The repetition waits for it.
                        Some(Line::Opening { .. }) if is_worth_another(&failure) => {
                            Some(Line::Opening { after: None })
                        }
                        line => line.filter(|_| !is_worth_another(&failure)),
                    };
                    self.lines.extend(line.map(|line| (node, line)));
                }
            }
        }
        let deadline = deadline.min(Instant::now() + reach.timeouts.answer);
        let asked: Vec<Result<Results, RedisError>> = thread::scope(|scope| {
            let threads: Vec<_> = open
                .iter_mut()
                .map(|(_, positions, connection)| {
                    let calls: Vec<_> = positions.iter().map(|&position| &calls[position]).collect();
                    let asking = move || ask_server(connection, deadline, "", scripts, false, &calls);
                    thread::Builder::new().spawn_scoped(scope, asking)
                })
                .collect();
            let of_thread = |thread: io::Result<thread::ScopedJoinHandle<'_, _>>| {
                thread?
                    .join()
                    .unwrap_or_else(|_| Err(io::Error::other("a thread panicked").into()))
            };
            threads.into_iter().map(of_thread).collect()
        });
        for ((node, positions, connection), asked) in open.into_iter().zip(asked) {
            let results = match asked {
                Ok(results) => {
                    self.lines.insert(node.clone(), Line::Open(connection));
                    results
                }
                Err(error) => {
                    if !is_worth_another(&error) {
                        self.open(reach, &node, Some(error.clone()));
                    }
                    positions.iter().map(|_| Err(error.clone())).collect()
                }
            };
            let of_node = positions.into_iter().zip(results);
            outcomes.extend(of_node.map(|(position, result)| (node.clone(), position, result)));
        }
        outcomes
    }

    /// Makes a call at the server to which its slot is on its way. It sends the text of the script, because the server
    /// is allowed one command only.
    fn ask_where_it_moves(
        &mut self,
        reach: &Reach<'_>,
        deadline: Instant,
        call: &Call<'_>,
        node: &Node,
    ) -> Result<Value, RedisError> {
        self.await_lines(reach, deadline, [node]);
        let Some(Line::Open(connection)) = self.lines.get_mut(node) else {
            return Err(timed_out());
        };
        let mut pipeline = redis::pipe();
        pipeline.cmd("ASKING").add_command(call.with_text(""));
        let deadline = deadline.min(Instant::now() + reach.timeouts.answer);
        match ask_together(connection, deadline, &pipeline) {
            Ok(mut results) => results.pop().unwrap_or_else(|| Err(no_server())),
            Err(error) => {
                self.open(reach, node, Some(error.clone()));
                Err(error)
            }
        }
    }

    /// Connects to servers, and waits until that has succeeded or failed, but not for those that failed before.
    fn await_lines<'a>(
        &mut self,
        reach: &Reach<'_>,
        deadline: Instant,
        nodes: impl IntoIterator<Item = &'a Node>,
    ) {
        let deadline = deadline.min(Instant::now() + reach.timeouts.connect);
        let nodes: Vec<_> = nodes.into_iter().collect();
        for node in &nodes {
            match self.lines.get(node) {
                None => self.open(reach, node, None),
                Some(Line::Failed(error)) => {
                    let error = error.clone();
                    self.open(reach, node, Some(error));
                }
                Some(_) => {}
            }
        }
        while nodes
            .iter()
            .any(|node| matches!(self.lines.get(node), Some(Line::Opening { after: None })))
        {
            let Ok((node, opened)) = self.opened.recv_timeout(left_until(deadline)) else {
                break;
            };
            self.take_in(node, opened);
        }
        for node in nodes {
            if let Some(Line::Opening { after }) = self.lines.get_mut(node) {
                after.get_or_insert_with(timed_out);
            }
        }
    }

    fn open(&mut self, reach: &Reach<'_>, node: &Node, after: Option<RedisError>) {
        self.lines.insert(node.clone(), Line::Opening { after });
        let connecting = (reach.client)(node).and_then(|client| {
            let (node, opener, timeout) = (node.clone(), self.opener.clone(), reach.timeouts.connect);
            let connect = move || {
                // An error means that nobody wants the connection any more.
                let _ = opener.send((node, connect(&client, timeout)));
            };
            let thread = thread::Builder::new().name("shmlimit-fleet".to_owned());
            Ok(thread.spawn(connect).map(drop)?)
        });
        if let Err(error) = connecting {
            self.lines.insert(node.clone(), Line::Failed(error));
        }
    }

    fn take_in(&mut self, node: Node, opened: Opened) {
        // A server without slots is not needed any more, and an earlier thread may have connected to it already.
        if let Some(line @ Line::Opening { .. }) = self.lines.get_mut(&node) {
            *line = match opened {
                Ok(connection) => Line::Open(Box::new(connection)),
                Err(error) => Line::Failed(error),
            };
        }
    }

    /// Asks one server after the other that is connected where the slots are, until one knows.
    ///
    /// # Errors
    ///
    /// What the last one said, if any is connected.
    fn find_slots(&mut self, reach: &Reach<'_>, deadline: Instant) -> Result<(), Option<RedisError>> {
        let mut failure = None;
        let nodes: Vec<_> = self.lines.keys().cloned().collect();
        for node in nodes {
            let Some(Line::Open(connection)) = self.lines.get_mut(&node) else {
                continue;
            };
            let deadline = deadline.min(Instant::now() + reach.timeouts.answer);
            let answer = match ask_together(connection, deadline, &slots::question()) {
                Ok(mut answers) => answers.pop().unwrap_or_else(|| Err(no_server())),
                Err(error) => {
                    self.open(reach, &node, Some(error.clone()));
                    Err(error)
                }
            };
            match answer.and_then(|answer| Slots::read(answer, &node)) {
                Ok(slots) => {
                    self.lines.retain(|node, _| slots.include(node));
                    self.slots = slots;
                    self.is_in_doubt = false;
                    return Ok(());
                }
                Err(error) => failure = Some(error),
            }
        }
        Err(failure)
    }
}

/// Connects to a server that answers. The kernel accepts a connection for a server that is stopped, and without a password
/// the client library sends nothing.
fn connect(client: &Client, timeout: Duration) -> Opened {
    let deadline = Instant::now() + timeout;
    let mut connection = client.get_connection_with_timeout(timeout)?;
    // Whatever it says: what is wrong is found when it is asked for something.
    ask_together(&mut connection, deadline, &slots::question())?;
    Ok(connection)
}

fn left_until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Whether a new connection may succeed at once: the server has closed the one before, for example because it was idle for
/// long, or this process was stopped.
fn is_worth_another(error: &RedisError) -> bool {
    is_interruption(error) || (error.is_connection_dropped() && !error.is_connection_refusal())
}

fn timed_out() -> RedisError {
    io::Error::from(io::ErrorKind::TimedOut).into()
}

fn no_server() -> RedisError {
    let reason = "no server of the cluster has its slot";
    (ErrorKind::ClusterConnectionNotFound, reason).into()
}
