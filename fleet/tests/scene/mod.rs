//! Real servers for tests: on loopback ports, with a password, in directories of their own, ended with the test.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use shmlimit_fleet::{Credentials, StoreAddress, StoreClient, Timeouts};
use tempfile::TempDir;

/// After which a test that waits fails.
pub const DEADLINE: Duration = Duration::from_secs(120);

pub const PASSWORD: &str = "of-the-test-only";

/// Waits for what must come, and fails the test where it does not.
pub fn wait_for(what: &str, mut is_there: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_there() {
        assert!(begun.elapsed() < DEADLINE, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// The program of a server; says that the test is skipped where there is none.
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

pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// A server's process.
pub struct Server {
    program: PathBuf,
    pub port: u16,
    directory: TempDir,
    arguments: Vec<String>,
    child: Option<Child>,
}

impl Server {
    /// With a password, without persistence.
    pub fn start(program: &Path) -> Self {
        Self::start_with(program, &["--requirepass", PASSWORD])
    }

    /// With further lines of configuration as arguments.
    pub fn start_with(program: &Path, arguments: &[&str]) -> Self {
        let mut server = Self {
            program: program.to_owned(),
            port: free_port(),
            directory: tempfile::tempdir().expect("a directory"),
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            child: None,
        };
        server.spawn();
        server
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    fn spawn(&mut self) {
        let log = fs::File::create(self.directory.path().join("log")).expect("a file");
        let is_sentinel = self.arguments.first().is_some_and(|first| first == "sentinel");
        let mut command = Command::new(&self.program);
        if is_sentinel {
            command.arg(&self.arguments[1]).arg("--sentinel");
        } else {
            command
                .args(["--bind", "127.0.0.1", "--save", "", "--dir"])
                .arg(self.directory.path())
                .args(&self.arguments);
            if !self.arguments.iter().any(|argument| argument == "--tls-port") {
                command.args(["--port", &self.port.to_string()]);
            }
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file"))
            .stderr(log)
            .spawn()
            .expect("a server that starts");
        self.child = Some(child);
        let port = self.port;
        wait_for("the server's port", || {
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
    }

    pub fn pid(&self) -> i32 {
        let child = self.child.as_ref().expect("a running server");
        i32::try_from(child.id()).expect("a process id")
    }

    /// Ends it at once, as a failure of the machine does.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it again on the same port.
    pub fn restart(&mut self) {
        self.kill();
        self.spawn();
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn client(&self) -> StoreClient {
        client(&self.url(), PASSWORD)
    }

    /// A connection of the crate itself, for what only a test does.
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

/// Far longer than anything takes, on whatever machine.
pub fn patient() -> Timeouts {
    Timeouts {
        connect: Duration::from_secs(30),
        answer: Duration::from_secs(30),
    }
}

/// A random sequence that a seed reproduces.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `end`, which is positive.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }
}

pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
