//! Real servers for tests: on loopback ports, with a password, in their own directories, stopped when the test ends.

#![allow(dead_code, reason = "each test uses a part of it")]

pub mod cluster;
pub mod fake_sentinel;
pub mod proxy;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use shmlimit_fleet::{Credentials, StoreAddress, StoreClient, Timeouts};
use tempfile::TempDir;

/// How long a test waits before it fails.
pub const DEADLINE: Duration = Duration::from_secs(120);

pub const PASSWORD: &str = "of-the-test-only";

/// Waits for something that must happen, and fails the test if it does not.
pub fn wait_for(what: &str, mut is_there: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_there() {
        assert!(begun.elapsed() < DEADLINE, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// The program of a server. If there is none, prints that the test is skipped.
pub fn server_program() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let programs = ["redis-server", "valkey-server"];
    let found = programs.iter().find_map(|name| {
        env::split_paths(&path)
            .map(|directory| directory.join(name))
            .find(|program| program.is_file())
    });
    if found.is_none() {
        println!("skipped: no redis-server");
    }
    found
}

/// A port that nobody listens on, below those that the kernel assigns to connections, so that no other test takes it
/// before the server does, or while the server restarts.
pub fn free_port() -> u16 {
    loop {
        let port = fastrand::u16(10_000..30_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// A server's process.
pub struct Server {
    program: PathBuf,
    pub port: u16,
    /// In a cluster, the port on which servers talk to each other.
    pub bus: u16,
    directory: TempDir,
    arguments: Vec<String>,
    is_sentinel: bool,
    child: Option<Child>,
}

impl Server {
    /// Starts a server with a password, without persistence.
    pub fn start(program: &Path) -> Self {
        Self::start_with(program, &["--requirepass", PASSWORD])
    }

    /// Starts a server with further configuration lines as arguments.
    pub fn start_with(program: &Path, arguments: &[&str]) -> Self {
        let mut server = Self::prepare(
            program,
            arguments.iter().map(|&argument| argument.to_owned()).collect(),
        );
        let given = server.arguments.len();
        loop {
            let port = server.port.to_string();
            server.arguments.extend(["--port".to_owned(), port]);
            server.spawn();
            if server.comes_up() {
                return server;
            }
            // Something else has started to listen there in the meantime.
            server.arguments.truncate(given);
            server.port = free_port();
        }
    }

    /// Starts a server with a password that syncs everything it acknowledges to disk.
    pub fn start_durable(program: &Path) -> Self {
        let arguments = [
            "--requirepass",
            PASSWORD,
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
        ];
        Self::start_with(program, &arguments)
    }

    /// Starts a server on a TLS-only port; `None` if the server was built without TLS.
    pub fn start_with_tls(program: &Path, arguments: &[String]) -> Option<Self> {
        let mut server = Self::prepare(program, arguments.to_vec());
        let port = server.port.to_string();
        for argument in ["--port", "0", "--tls-port", &port] {
            server.arguments.push(argument.to_owned());
        }
        server.spawn();
        server.comes_up().then_some(server)
    }

    /// Starts a node of a cluster, which does not know the others yet.
    pub fn start_cluster_node(program: &Path, arguments: &[&str]) -> Self {
        let bus = free_port();
        let bus_text = bus.to_string();
        let mut arguments = arguments.to_vec();
        arguments.extend(["--cluster-port", &bus_text]);
        let mut server = Self::start_with(program, &arguments);
        server.bus = bus;
        server
    }

    /// Starts a sentinel that watches a primary under the name `limits`.
    pub fn start_sentinel(program: &Path, primary: &Self, password: &str) -> Self {
        let mut server = Self::prepare(program, Vec::new());
        let configuration = server.directory.path().join("sentinel.conf");
        let text = format!(
            "port {}\nbind 127.0.0.1\nsentinel monitor limits 127.0.0.1 {} 1\nsentinel auth-pass limits {password}\n\
             sentinel down-after-milliseconds limits 500\nsentinel failover-timeout limits 5000\n",
            server.port, primary.port
        );
        fs::write(&configuration, text).expect("a configuration");
        server.arguments = vec![
            configuration.to_str().expect("text").to_owned(),
            "--sentinel".to_owned(),
        ];
        server.is_sentinel = true;
        server.spawn();
        assert!(server.comes_up(), "{}", server.log());
        server
    }

    /// Whether a sentinel has found the replica of the primary that it watches.
    pub fn knows_a_replica(&self) -> bool {
        let client = redis::Client::open(self.url()).expect("valid");
        let Ok(mut connection) = client.get_connection_with_timeout(Duration::from_secs(10)) else {
            return false;
        };
        let replicas: Vec<redis::Value> = redis::cmd("SENTINEL")
            .arg("REPLICAS")
            .arg("limits")
            .query(&mut connection)
            .unwrap_or_default();
        !replicas.is_empty()
    }

    fn prepare(program: &Path, arguments: Vec<String>) -> Self {
        Self {
            program: program.to_owned(),
            port: free_port(),
            bus: 0,
            directory: tempfile::tempdir().expect("a directory"),
            arguments,
            is_sentinel: false,
            child: None,
        }
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    fn spawn(&mut self) {
        let log = fs::File::create(self.directory.path().join("log")).expect("a file");
        let mut command = Command::new(&self.program);
        if !self.is_sentinel {
            command
                .args(["--bind", "127.0.0.1", "--save", "", "--dir"])
                .arg(self.directory.path());
        }
        let child = command
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file"))
            .stderr(log)
            .spawn()
            .expect("a server that starts");
        self.child = Some(child);
    }

    /// Waits until the server itself listens, and not another process that happens to have the port for a moment.
    /// Returns false if the server has exited.
    fn comes_up(&mut self) -> bool {
        let (port, mut has_ended) = (self.port, false);
        let child = self.child.as_mut().expect("started");
        wait_for("the server's port", || {
            has_ended = child.try_wait().expect("a state").is_some();
            has_ended || listens(child.id(), port)
        });
        !has_ended
    }

    pub fn pid(&self) -> i32 {
        let child = self.child.as_ref().expect("a running server");
        i32::try_from(child.id()).expect("a process id")
    }

    /// Kills the server at once, as if the machine had failed.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Restarts the server on the same port.
    pub fn restart(&mut self) {
        self.kill();
        self.spawn();
        assert!(self.comes_up(), "{}", self.log());
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn client(&self) -> StoreClient {
        client(&self.url(), PASSWORD)
    }

    /// A connection of the `redis` crate, for what only tests do.
    pub fn connection(&self) -> redis::Connection {
        let url = format!("redis://:{PASSWORD}@127.0.0.1:{}", self.port);
        let client = redis::Client::open(url).expect("valid");
        let mut connection = None;
        wait_for("a connection", || {
            connection = client.get_connection_with_timeout(Duration::from_secs(10)).ok();
            connection.is_some()
        });
        connection.expect("just made")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

/// Whether a process listens on a port: the kernel's table lists listening sockets by inode, and the process's
/// descriptors refer to those.
fn listens(pid: u32, port: u16) -> bool {
    const LISTENING: &str = "0A";
    let table = fs::read_to_string("/proc/net/tcp").expect("the kernel's table of sockets");
    let sockets: Vec<String> = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields.len() > 9 && fields[3] == LISTENING)
        .filter(|fields| fields[1].ends_with(&format!(":{port:04X}")))
        .map(|fields| format!("socket:[{}]", fields[9]))
        .collect();
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    descriptors
        .filter_map(|descriptor| fs::read_link(descriptor.ok()?.path()).ok())
        .any(|target| sockets.iter().any(|socket| target.as_os_str() == socket.as_str()))
}

impl Drop for Server {
    fn drop(&mut self) {
        if thread::panicking() {
            println!("the server's log:\n{}", self.log());
        }
        self.kill();
    }
}

pub fn client(url: &str, password: &str) -> StoreClient {
    let address: StoreAddress = url.parse().expect("a valid URL");
    StoreClient::new(address, Credentials::none().with_password(password), patient())
}

/// Far longer than anything takes, on any machine.
pub fn patient() -> Timeouts {
    Timeouts {
        connect: Duration::from_secs(30),
        answer: Duration::from_secs(30),
    }
}
