//! The connection to the store, one for all limits of a segment.

use std::io;
use std::time::{Duration, Instant};

use redis::{
    Client, Connection, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, RedisError, TlsCertificates, Value,
};
use shmlimit::fleet::{LeaseRequest, StoreProblem};

use crate::exchange::Answers;
use crate::store::address::{Node, StoreAddress, Topology};
use crate::store::calls::{Call, Scripts};
use crate::store::cluster::{Cluster, Reach};
use crate::store::credentials::Credentials;
use crate::store::error::StoreError;
use crate::store::failure::{is_interruption, problem_of};
use crate::store::sentinels::{self, Named, Sentinels};
use crate::store::server::{Failed, Results, ask_memory, ask_server, ask_together, evicts_by, field};
use crate::store::timeouts::Timeouts;
use crate::terms::Terms;

/// How long sentinels may take to confirm the primary. If none of them answers, it is still taken to be the primary.
const CONFIRMATION: Duration = Duration::from_millis(250);

/// If a server has closed an idle connection, the next exchange fails within this time, and is repeated on a new one.
const AT_ONCE: Duration = Duration::from_millis(100);

/// How many times an exchange begins anew because this process was stopped during it.
const INTERRUPTIONS: usize = 3;

/// A client of one store. It connects at the first request, and again after each failure.
pub struct StoreClient {
    address: StoreAddress,
    credentials: Credentials,
    timeouts: Timeouts,
    scripts: Scripts,
    link: Option<Link>,
    sentinels: Sentinels,
}

impl std::fmt::Debug for StoreClient {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("StoreClient")
            .field("address", &self.address)
            .field("credentials", &self.credentials)
            .field("is_connected", &self.is_connected())
            .finish_non_exhaustive()
    }
}

enum Link {
    Server {
        connection: Box<Connection>,
        node: Node,
        /// Identifies the server's process: another one may have lost what this one acknowledged.
        run: String,
        /// The policy by which it evicts keys when its memory is used up, if it does.
        evicts_by: Option<String>,
    },
    /// The script queries the run id of each server of a cluster.
    Cluster(Cluster),
}

impl StoreClient {
    /// A client that has not connected yet.
    #[must_use]
    pub fn new(address: StoreAddress, credentials: Credentials, timeouts: Timeouts) -> Self {
        Self {
            address,
            credentials,
            timeouts,
            scripts: Scripts::new(),
            link: None,
            sentinels: Sentinels::default(),
        }
    }

    /// The address of the store.
    #[must_use]
    pub fn address(&self) -> &StoreAddress {
        &self.address
    }

    /// The longest that it may take to get answers, or to give up, according to the timeouts. That leaves out resolving the
    /// names of servers, which the system does in its own time.
    pub(crate) fn longest_exchange(&self) -> Duration {
        let Timeouts { connect, answer } = self.timeouts;
        match &self.address.topology {
            // To find the connection closed, to connect, to identify the server, and to exchange requests and answers.
            Topology::Single(_) => AT_ONCE + connect + 2 * answer,
            // And to find the primary, or the servers.
            Topology::Sentinel { .. } | Topology::Cluster(_) => AT_ONCE + 2 * connect + 3 * answer,
        }
    }

    /// Sends all requests in one pipeline (to a cluster, in one for each server) and waits for the answers, one for each
    /// request, in order. Requests for keys of one partition of a limit share calls.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if no request was answered. Errors of single requests are among the answers.
    pub fn ask(&mut self, requests: &[(LeaseRequest, Terms)]) -> Answers {
        let calls = Call::all(requests);
        let mut exchanged = self.exchange(&calls);
        for _ in 0..INTERRUPTIONS {
            if !exchanged.as_ref().is_err_and(is_interruption) {
                break;
            }
            // This process was stopped and goes on, which is not an outage.
            exchanged = self.exchange(&calls);
        }
        let (link, results) = exchanged.map_err(|error| self.failure(error.into()))?;
        let mut answers = Vec::with_capacity(requests.len());
        for (call, result) in calls.iter().zip(results) {
            let read = result
                .map_err(|failed| self.failure(failed))
                .and_then(|value| call.read(&value).map_err(|reason| self.unexpected(&reason)));
            match read {
                Ok(read) => answers.extend(call.positions().iter().copied().zip(read.into_iter().map(Ok))),
                // What is wrong with a call is wrong with each of its requests.
                Err(error) => answers.extend(
                    call.positions()
                        .iter()
                        .map(|&position| (position, Err(error.clone()))),
                ),
            }
        }
        answers.sort_unstable_by_key(|(position, _)| *position);
        let answers: Vec<_> = answers.into_iter().map(|(_, answer)| answer).collect();
        let is_kept = match &link {
            // A server that answers but cannot be written to is no longer the primary: look it up again.
            Link::Server { .. } => !answers
                .iter()
                .any(|answer| answer.as_ref().is_err_and(StoreError::is_outage)),
            Link::Cluster(cluster) => cluster.is_connected(),
        };
        if is_kept {
            self.link = Some(link);
        }
        Ok(answers)
    }

    /// Makes the calls over the existing connection, or over a new one.
    fn exchange(&mut self, calls: &[Call<'_>]) -> Result<(Link, Results<Failed>), RedisError> {
        let known = self.link.take();
        let (mut link, is_new) = match known.filter(|link| self.is_still_primary(link)) {
            Some(link) => (link, false),
            None => (self.connect()?, true),
        };
        let begun = Instant::now();
        let mut results = self.ask_through(&mut link, calls);
        let is_closed = results.as_ref().is_err_and(RedisError::is_connection_dropped);
        if is_closed && !is_new && begun.elapsed() < AT_ONCE {
            // Servers close connections that were idle for long, which is not an outage. The requests are the same, so the
            // server may see them twice.
            link = self.connect()?;
            results = self.ask_through(&mut link, calls);
        }
        Ok((link, results?))
    }

    fn ask_through(&self, link: &mut Link, calls: &[Call<'_>]) -> Result<Results<Failed>, RedisError> {
        match link {
            Link::Server { connection, run, .. } => {
                let deadline = Instant::now() + self.timeouts.answer;
                let has_sentinels = matches!(self.address.topology, Topology::Sentinel { .. });
                let calls: Vec<_> = calls.iter().collect();
                let results = ask_server(connection, deadline, run, &self.scripts, has_sentinels, &calls)?;
                Ok(results
                    .into_iter()
                    .map(|result| result.map_err(Failed::from))
                    .collect())
            }
            Link::Cluster(cluster) => Ok(self.reaching(|reach| cluster.ask(reach, &self.scripts, calls))),
        }
    }

    /// Closes the connection; the next request opens another.
    pub fn disconnect(&mut self) {
        self.link = None;
    }

    fn connect(&mut self) -> Result<Link, RedisError> {
        install_provider();
        match self.address.topology.clone() {
            Topology::Single(node) => self.server_link(&node),
            Topology::Sentinel { sentinels, primary } => {
                let Timeouts { connect, answer } = self.timeouts;
                let within = (connect + answer, connect + answer);
                let found = self.primary(&sentinels, &primary, false, within);
                found.and_then(|node| self.server_link(&node))
            }
            Topology::Cluster(nodes) => self
                .reaching(|reach| Cluster::connect(reach, &nodes))
                .map(Link::Cluster),
        }
    }

    fn tcp(&self, node: &Node) -> ConnectionAddr {
        let Node { host, port } = node.clone();
        if self.address.is_tls {
            ConnectionAddr::TcpTls {
                host,
                port,
                insecure: false,
                tls_params: None,
            }
        } else {
            ConnectionAddr::Tcp(host, port)
        }
    }

    fn settings(&self) -> RedisConnectionInfo {
        let settings = RedisConnectionInfo::default()
            .set_db(self.address.database)
            .set_protocol(self.protocol())
            .set_skip_set_lib_name();
        self.with_credentials(settings)
    }

    fn with_credentials(&self, mut settings: RedisConnectionInfo) -> RedisConnectionInfo {
        if let Some(username) = &self.credentials.username {
            settings = settings.set_username(username);
        }
        if let Some(password) = &self.credentials.password {
            settings = settings.set_password(password);
        }
        settings
    }

    fn protocol(&self) -> ProtocolVersion {
        if self.address.is_resp3 {
            ProtocolVersion::RESP3
        } else {
            ProtocolVersion::RESP2
        }
    }

    fn certificates(&self) -> TlsCertificates {
        TlsCertificates {
            client_tls: None,
            root_cert: self.credentials.ca.clone(),
        }
    }

    fn server(&self, node: &Node, settings: RedisConnectionInfo) -> Result<Client, RedisError> {
        let address = self.tcp(node).into_connection_info()?;
        let information: ConnectionInfo = address.set_redis_settings(settings);
        if self.address.is_tls {
            Client::build_with_tls(information, self.certificates())
        } else {
            Client::open(information)
        }
    }

    fn server_link(&self, node: &Node) -> Result<Link, RedisError> {
        let client = self.server(node, self.settings())?;
        let mut connection = client.get_connection_with_timeout(self.timeouts.connect)?;
        let mut questions = redis::pipe();
        questions.cmd("INFO").arg("server");
        ask_memory(&mut questions);
        let told = ask_together(&mut connection, Instant::now() + self.timeouts.answer, &questions)?;
        let mut told = told.into_iter();
        let server: String = redis::from_redis_value(told.next().transpose()?.unwrap_or(Value::Nil))?;
        let evicts_by = told.next().and_then(evicts_by);
        Ok(Link::Server {
            connection: Box::new(connection),
            node: node.clone(),
            run: field(&server, "run_id").unwrap_or_default().to_owned(),
            evicts_by,
        })
    }

    /// The policy by which the connected server, or one of the cluster, evicts keys, if it does.
    pub(crate) fn evicts_by(&self) -> Option<&str> {
        match self.link.as_ref()? {
            Link::Server { evicts_by, .. } => evicts_by.as_deref(),
            Link::Cluster(cluster) => cluster.evicts_by(),
        }
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.link.is_some()
    }

    /// Whether sentinels still name the server of a link as the primary. They are asked once a second: a former primary
    /// takes writes until it learns that it is one. If none of them answers, nothing is known to have changed.
    fn is_still_primary(&mut self, link: &Link) -> bool {
        let (Topology::Sentinel { sentinels, primary }, Link::Server { node, .. }) =
            (&self.address.topology, link)
        else {
            return true;
        };
        if !self.sentinels.are_due() {
            return true;
        }
        let (sentinels, primary) = (sentinels.clone(), primary.clone());
        let total = CONFIRMATION.min(self.timeouts.answer);
        let each = total / u32::try_from(sentinels.len()).unwrap_or(u32::MAX).max(1);
        let found = self.primary(&sentinels, &primary, true, (total, each));
        found.map_or(true, |found| found == *node)
    }

    /// The address of the primary according to the sentinels. Each exchange finds out whether it still is the primary.
    fn primary(
        &mut self,
        sentinels: &[Node],
        name: &str,
        begins_with_next: bool,
        within: (Duration, Duration),
    ) -> Result<Node, RedisError> {
        let mut known = std::mem::take(&mut self.sentinels);
        let ask = |index: usize, left| match sentinels.get(index) {
            Some(sentinel) => self.ask_sentinel(sentinel, name, left),
            None => Err(io::Error::from(io::ErrorKind::NotFound).into()),
        };
        let found = known.primary(sentinels.len(), begins_with_next, within, ask);
        self.sentinels = known;
        found
    }

    fn ask_sentinel(&self, sentinel: &Node, name: &str, left: Duration) -> Named {
        let begun = Instant::now();
        let mut settings = RedisConnectionInfo::default().set_skip_set_lib_name();
        if self.address.sentinels_authenticate {
            settings = self.with_credentials(settings);
        }
        let client = self.server(sentinel, settings)?;
        let mut connection = client.get_connection_with_timeout(self.timeouts.connect.min(left))?;
        // A timeout of zero would mean none.
        let left = left.saturating_sub(begun.elapsed()).max(Duration::from_millis(1));
        let answer = Some(self.timeouts.answer.min(left));
        connection.set_read_timeout(answer)?;
        connection.set_write_timeout(answer)?;
        sentinels::answer(sentinels::question(name).query(&mut connection)?)
    }

    /// Lets `act` reach the servers of a cluster.
    fn reaching<T>(&self, act: impl FnOnce(&Reach<'_>) -> T) -> T {
        let client = |node: &Node| self.server(node, self.settings());
        act(&Reach {
            client: &client,
            timeouts: self.timeouts,
        })
    }

    fn unexpected(&self, reason: &str) -> StoreError {
        self.unavailable(None, StoreProblem::Unexpected, String::new(), reason)
    }

    fn failure(&self, Failed { error, at }: Failed) -> StoreError {
        let (problem, name) = problem_of(&error, self.address.is_tls);
        // That the cluster is down concerns all of it, whichever server says so.
        let at = at.filter(|_| problem != StoreProblem::ClusterDown);
        self.unavailable(at, problem, name, &error.to_string())
    }

    fn unavailable(
        &self,
        server: Option<Node>,
        problem: StoreProblem,
        name: String,
        reason: &str,
    ) -> StoreError {
        StoreError::Unavailable {
            at: self.address.to_string(),
            server: server.map(|node| node.to_string()),
            problem,
            name,
            reason: self.credentials.scrub(reason),
        }
    }
}

/// TLS needs one cryptography provider per process: the one that the program has chosen, or this.
fn install_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // An error means that another thread has just installed one.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}
