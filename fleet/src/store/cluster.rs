//! A cluster: a connection to each of its servers, so that none of them keeps the others from answering.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Client, Connection, ErrorKind, RedisError, ServerErrorKind, Value};

use super::address::Node;
use super::calls::{Call, Scripts};
use super::failure::is_interruption;
use super::server::{Failed, Results, ask_memory, ask_server, ask_together, evicts_by};
use super::slots::{self, Slots, redirected, slot_of};
use super::timeouts::Timeouts;

/// How servers are reached.
pub(super) struct Reach<'a> {
    pub(super) client: &'a dyn Fn(&Node) -> Result<Client, RedisError>,
    pub(super) timeouts: Timeouts,
}

/// A connection, and the policy by which its server evicts keys, if it does.
type Opened = Result<(Connection, Option<String>), RedisError>;

/// The connection to one server.
enum Line {
    Open(Box<Connection>),
    /// A thread is connecting. An exchange waits for it, unless the previous connection failed: the server may be
    /// silent.
    Opening {
        after: Option<RedisError>,
    },
    Failed(RedisError),
}

/// The connections to the servers of a cluster. Threads make them, and a server that fails is connected to again while
/// exchanges with the others go on.
pub(super) struct Cluster {
    slots: Slots,
    /// The servers that the URL names. One of them may know more than those that have slots.
    named: Vec<Node>,
    /// The servers that have failed since the slots were last asked for. Others may have their slots now.
    doubted: HashSet<Node>,
    /// The server that last said where the slots are.
    informant: Option<Node>,
    lines: HashMap<Node, Line>,
    /// The policies of the servers that evict keys.
    evicting: BTreeMap<Node, String>,
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
            named: nodes.to_vec(),
            doubted: HashSet::new(),
            informant: None,
            lines: HashMap::new(),
            evicting: BTreeMap::new(),
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

    /// The policy by which a server that has slots evicts keys, if any does. A server that the URL names may have no
    /// slots.
    pub(super) fn evicts_by(&self) -> Option<&str> {
        let mut with_slots = self.evicting.iter().filter(|(node, _)| self.slots.include(node));
        with_slots.next().map(|(_, policy)| policy.as_str())
    }

    /// Makes each call to the server that has its keys, to all servers at the same time. Takes no longer than
    /// connecting and three times the timeout for answers.
    pub(super) fn ask(
        &mut self,
        reach: &Reach<'_>,
        scripts: &Scripts,
        calls: &[Call<'_>],
    ) -> Results<Failed> {
        let longest = reach.timeouts.connect + 2 * reach.timeouts.answer;
        while let Ok((node, opened)) = self.opened.try_recv() {
            self.take_in(node, opened);
        }
        let places: Vec<_> = calls.iter().map(|call| slot_of(&call.place())).collect();
        if self.is_in_doubt(&places) {
            // If none answers, the slots that are known have to do.
            let _ = self.find_slots(reach, Instant::now() + reach.timeouts.answer);
            for node in self.named.clone() {
                self.open_again(reach, &node);
            }
        }
        let mut deadline = Instant::now() + longest;
        let mut results: Results<Failed> = calls.iter().map(|_| Err(no_server().into())).collect();
        let mut parts = HashMap::<Node, Vec<usize>>::new();
        for (position, slot) in places.into_iter().enumerate() {
            if let Some(node) = self.slots.server_of(slot) {
                parts.entry(node.clone()).or_default().push(position);
            }
        }
        // What was redirected, or sent over a connection that its server had closed, is sent once more. The requests are
        // the same, so a server may see them twice.
        let (mut again, mut moving) = (HashMap::<Node, Vec<usize>>::new(), Vec::new());
        for (node, position, result) in self.ask_at_once(reach, deadline, scripts, calls, parts) {
            if let Err(error) = &result {
                if is_interruption(error) {
                    deadline = Instant::now() + longest;
                }
                self.note_doubt(&node, error);
                match error.kind() {
                    ErrorKind::Server(ServerErrorKind::Moved) => {
                        if let Some(node) = redirected(error, &node) {
                            again.entry(node).or_default().push(position);
                        }
                    }
                    ErrorKind::Server(ServerErrorKind::Ask) => {
                        moving.extend(redirected(error, &node).map(|node| (node, position)));
                    }
                    _ if is_worth_another(error) => again.entry(node.clone()).or_default().push(position),
                    _ => {}
                }
            }
            results[position] = result.map_err(|error| Failed::at(node, error));
        }
        for (node, position, result) in self.ask_at_once(reach, deadline, scripts, calls, again) {
            if let Err(error) = &result {
                self.note_doubt(&node, error);
            }
            results[position] = result.map_err(|error| Failed::at(node, error));
        }
        for (node, position) in moving {
            let result = self.ask_where_it_moves(reach, deadline, &calls[position], &node);
            results[position] = result.map_err(|error| Failed::at(node, error));
        }
        results
    }

    /// Whether another server may have a slot that is asked for. While a server is out, exchanges with the others go on
    /// without asking.
    fn is_in_doubt(&self, slots: &[u16]) -> bool {
        let servers = slots.iter().map(|slot| self.slots.server_of(*slot));
        let mut servers = servers.collect::<HashSet<_>>().into_iter();
        servers.any(|server| server.is_none_or(|server| self.doubted.contains(server)))
    }

    /// Notes what a server said instead of an answer, or that it said nothing.
    fn note_doubt(&mut self, node: &Node, error: &RedisError) {
        if tells_of_slots(error) {
            self.doubted.insert(node.clone());
        }
    }

    /// Makes calls to several servers at the same time, and connects again to those whose connections have failed.
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
        let asked = at_once(
            thread::Builder::new,
            open.iter_mut().map(|(_, positions, connection)| {
                let calls: Vec<_> = positions.iter().map(|&position| &calls[position]).collect();
                move || ask_server(connection, deadline, "", scripts, false, &calls)
            }),
        );
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

    /// Makes a call to the server that its slot is moving to. Sends the text of the script, because ASKING is good for one
    /// command only.
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
            // Without permission for the first command, the server would only say that the slot is elsewhere.
            Ok(results) => results
                .into_iter()
                .reduce(|asking, answer| asking.and(answer))
                .unwrap_or_else(|| Err(no_server())),
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
            self.open_again(reach, node);
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

    /// Connects to a server, unless it is connected, or a thread is connecting to it.
    fn open_again(&mut self, reach: &Reach<'_>, node: &Node) {
        match self.lines.get(node) {
            None => self.open(reach, node, None),
            Some(Line::Failed(error)) => {
                let error = error.clone();
                self.open(reach, node, Some(error));
            }
            Some(_) => {}
        }
    }

    fn open(&mut self, reach: &Reach<'_>, node: &Node, after: Option<RedisError>) {
        self.lines.insert(node.clone(), Line::Opening { after });
        match (reach.client)(node) {
            Ok(client) => {
                let (node, opener, timeout) = (node.clone(), self.opener.clone(), reach.timeouts.connect);
                let connect = move || {
                    // An error means that nobody wants the connection any more.
                    let _ = opener.send((node.clone(), connect(&client, timeout)));
                };
                beside(thread::Builder::new(), connect);
            }
            Err(error) => {
                self.lines.insert(node.clone(), Line::Failed(error));
            }
        }
    }

    fn take_in(&mut self, node: Node, opened: Opened) {
        // A server without slots is not needed any more, and an earlier thread may have connected to it already.
        if let Some(line @ Line::Opening { .. }) = self.lines.get_mut(&node) {
            *line = match opened {
                Ok((connection, policy)) => {
                    self.evicting.remove(&node);
                    self.evicting.extend(policy.map(|policy| (node, policy)));
                    Line::Open(Box::new(connection))
                }
                Err(error) => Line::Failed(error),
            };
        }
    }

    /// Asks the connected servers, one after the other, where the slots are, until one knows.
    ///
    /// The server that answered the last time is asked last: it may be cut off from the others, and go on naming
    /// servers that no longer have the slots. An answer has no epoch by which to tell, but calls that follow a wrong
    /// answer fail, and then the next server is asked.
    ///
    /// # Errors
    ///
    /// What the last one asked has said, if any is connected.
    fn find_slots(&mut self, reach: &Reach<'_>, deadline: Instant) -> Result<(), Option<RedisError>> {
        let mut nodes: Vec<_> = self.lines.keys().cloned().collect();
        nodes.sort_unstable();
        let next = nodes.partition_point(|node| Some(node) <= self.informant.as_ref());
        nodes.rotate_left(next);
        let mut failure = None;
        for node in nodes {
            // With too little time, a good connection would fail.
            let (Some(Line::Open(connection)), false) =
                (self.lines.get_mut(&node), left_until(deadline).is_zero())
            else {
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
                    let named = &self.named;
                    self.lines
                        .retain(|node, _| slots.include(node) || named.contains(node));
                    self.evicting.retain(|node, _| self.lines.contains_key(node));
                    self.slots = slots;
                    self.doubted.clear();
                    self.informant = Some(node);
                    return Ok(());
                }
                Err(error) => failure = Some(error),
            }
        }
        Err(failure)
    }
}

/// Runs `act` on a thread of its own, or on this one if the system starts none.
fn beside(thread: thread::Builder, act: impl Fn() + Clone + Send + 'static) {
    let on_a_thread = act.clone();
    if thread
        .name("shmlimit-fleet".to_owned())
        .spawn(on_a_thread)
        .is_err()
    {
        act();
    }
}

/// Asks servers at the same time, each on a thread. Those for which the system starts none are asked one after the other.
fn at_once<Ask>(
    thread: impl Fn() -> thread::Builder,
    asks: impl Iterator<Item = Ask>,
) -> Vec<Result<Results, RedisError>>
where
    Ask: FnMut() -> Result<Results, RedisError> + Send,
{
    let asks: Vec<_> = asks.map(Mutex::new).collect();
    let run = |ask: &Mutex<Ask>| (ask.lock().unwrap_or_else(PoisonError::into_inner))();
    thread::scope(|scope| {
        let started: Vec<_> = asks
            .iter()
            .map(|ask| {
                let started = thread().spawn_scoped(scope, move || run(ask));
                (ask, started)
            })
            .collect();
        let answer = |(ask, thread): (_, io::Result<thread::ScopedJoinHandle<'_, _>>)| match thread {
            Ok(thread) => thread
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("a thread panicked").into())),
            Err(_) => run(ask),
        };
        started.into_iter().map(answer).collect()
    })
}

/// Connects to a server that answers. The kernel accepts a connection for a server that is stopped, and without a password
/// the client library sends nothing.
fn connect(client: &Client, timeout: Duration) -> Opened {
    let deadline = Instant::now() + timeout;
    let mut connection = client.get_connection_with_timeout(timeout)?;
    let mut questions = slots::question();
    ask_memory(&mut questions);
    // Any answer will do: whatever is wrong is found when it is asked for something.
    let told = ask_together(&mut connection, deadline, &questions)?;
    Ok((connection, told.into_iter().next_back().and_then(evicts_by)))
}

fn left_until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Whether a new connection may succeed at once: the server has closed the previous one, for example because it was
/// idle for long, or this process was stopped.
fn is_worth_another(error: &RedisError) -> bool {
    is_interruption(error) || (error.is_connection_dropped() && !error.is_connection_refusal())
}

/// Whether the reason may be that another server has the slot: a connection that failed may be, but not an error that a
/// server reports of itself or the call, such as a lack of memory.
fn tells_of_slots(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(kind) => matches!(
            kind,
            ServerErrorKind::Moved
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ReadOnly
        ),
        ErrorKind::Extension => false,
        _ => true,
    }
}

fn timed_out() -> RedisError {
    io::Error::from(io::ErrorKind::TimedOut).into()
}

fn no_server() -> RedisError {
    let reason = "no server of the cluster has its slot";
    (ErrorKind::ClusterConnectionNotFound, reason).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With more stack than there is memory: such a thread cannot be started.
    fn no_thread() -> thread::Builder {
        thread::Builder::new().stack_size(1 << 60)
    }

    #[test]
    fn servers_are_connected_to_and_asked_even_if_no_thread_can_be_started() {
        assert!(no_thread().spawn(|| ()).is_err());
        let (opener, opened) = mpsc::channel();
        beside(no_thread(), move || opener.send(7).expect("a receiver"));
        assert_eq!(opened.try_recv(), Ok(7));
        let ask = |number| move || Ok(vec![Ok(Value::Int(number))]);
        let asked = at_once(no_thread, [1, 2].into_iter().map(ask));
        assert_eq!(asked, [1, 2].map(|number| Ok(vec![Ok(Value::Int(number))])));
    }
}
