//! A cluster of three servers, each with a third of the slots, that goes on without a server that fails.

use std::path::Path;

use super::{PASSWORD, Server, wait_for};

/// The first slot of each server, and the end.
const ENDS: [u16; 4] = [0, 5_461, 10_923, 16_384];

/// Soon enough for a test that waits for a failover, and late enough for a busy machine.
const NODE_TIMEOUT: &str = "2000";

fn start_node(program: &Path) -> Server {
    let arguments = [
        "--requirepass",
        PASSWORD,
        "--masterauth",
        PASSWORD,
        "--cluster-enabled",
        "yes",
        "--cluster-require-full-coverage",
        "no",
        "--cluster-node-timeout",
        NODE_TIMEOUT,
    ];
    Server::start_cluster_node(program, &arguments)
}

/// Starts the servers and waits until each knows the others and their slots.
pub fn start(program: &Path) -> Vec<Server> {
    let servers: Vec<_> = (0..3).map(|_| start_node(program)).collect();
    for (server, slots) in servers.iter().zip(ENDS.windows(2)) {
        let mut connection = server.connection();
        let _: () = redis::cmd("CLUSTER")
            .arg("ADDSLOTSRANGE")
            .arg(slots[0])
            .arg(slots[1] - 1)
            .query(&mut connection)
            .expect("slots");
        let _: () = redis::cmd("CLUSTER")
            .arg("MEET")
            .arg("127.0.0.1")
            .arg(servers[0].port)
            .arg(servers[0].bus)
            .query(&mut connection)
            .expect("met");
    }
    for server in &servers {
        let mut connection = server.connection();
        wait_for("the cluster", || {
            let state: String = redis::cmd("CLUSTER")
                .arg("INFO")
                .query(&mut connection)
                .unwrap_or_default();
            state.contains("cluster_state:ok") && state.contains("cluster_slots_ok:16384")
        });
    }
    servers
}

/// Adds a replica of a server, and waits until it has the same data.
pub fn add_replica(program: &Path, of: &Server) -> Server {
    let replica = start_node(program);
    let mut connection = replica.connection();
    let _: () = redis::cmd("CLUSTER")
        .arg("MEET")
        .arg("127.0.0.1")
        .arg(of.port)
        .arg(of.bus)
        .query(&mut connection)
        .expect("met");
    let id: String = redis::cmd("CLUSTER")
        .arg("MYID")
        .query(&mut of.connection())
        .expect("an id");
    wait_for("the replica to be one", || {
        let mut command = redis::cmd("CLUSTER");
        command.arg("REPLICATE").arg(&id);
        command.query::<()>(&mut connection).is_ok()
    });
    wait_for("the replica to have the data", || {
        let mut command = redis::cmd("INFO");
        let state: String = command
            .arg("replication")
            .query(&mut connection)
            .unwrap_or_default();
        state.contains("master_link_status:up")
    });
    replica
}

/// Lets everybody use the servers without a password.
pub fn remove_passwords<'a>(servers: impl IntoIterator<Item = &'a Server>) {
    for server in servers {
        let mut connection = server.connection();
        for name in ["masterauth", "requirepass"] {
            let mut command = redis::cmd("CONFIG");
            command.arg("SET").arg(name).arg("");
            command.query::<()>(&mut connection).expect("set");
        }
    }
}

/// The URL of a cluster that servers are part of.
pub fn url<'a>(servers: impl IntoIterator<Item = &'a Server>) -> String {
    let nodes: Vec<_> = servers
        .into_iter()
        .map(|server| format!("127.0.0.1:{}", server.port))
        .collect();
    format!("redis+cluster://{}", nodes.join(","))
}

/// Which of the servers has a key.
pub fn index_of(servers: &[Server], key: &str) -> usize {
    let slot = slot_of(&servers[0], key);
    ENDS.iter().rposition(|first| *first <= slot).expect("a slot")
}

/// The slot of a key, according to a server.
pub fn slot_of(server: &Server, key: &str) -> u16 {
    redis::cmd("CLUSTER")
        .arg("KEYSLOT")
        .arg(key)
        .query(&mut server.connection())
        .expect("a slot")
}

/// A slot on its way from one server to another.
pub struct Move<'a> {
    slot: u16,
    from: &'a Server,
    to: &'a Server,
}

impl<'a> Move<'a> {
    /// Moves what is in the slot of a key to the next server. The slot itself stays until the move ends.
    pub fn begin(servers: &'a [Server], key: &str) -> Self {
        let index = index_of(servers, key);
        let (from, to) = (&servers[index], &servers[(index + 1) % servers.len()]);
        let moving = Self {
            slot: slot_of(from, key),
            from,
            to,
        };
        moving.set(to, "IMPORTING", from);
        moving.set(from, "MIGRATING", to);
        let mut connection = from.connection();
        let names: Vec<String> = redis::cmd("CLUSTER")
            .arg("GETKEYSINSLOT")
            .arg(moving.slot)
            .arg(100)
            .query(&mut connection)
            .expect("names");
        assert!(!names.is_empty());
        let mut migrate = redis::cmd("MIGRATE");
        migrate.arg("127.0.0.1").arg(to.port).arg("").arg(0).arg(60_000);
        migrate.arg("AUTH").arg(PASSWORD).arg("KEYS").arg(names);
        migrate.query::<()>(&mut connection).expect("moved");
        moving
    }

    pub fn end(self) {
        self.set(self.to, "NODE", self.to);
        self.set(self.from, "NODE", self.to);
    }

    fn set(&self, server: &Server, state: &str, node: &Server) {
        let id: String = redis::cmd("CLUSTER")
            .arg("MYID")
            .query(&mut node.connection())
            .expect("an id");
        let mut command = redis::cmd("CLUSTER");
        command.arg("SETSLOT").arg(self.slot).arg(state).arg(id);
        command
            .query::<()>(&mut server.connection())
            .expect("another state");
    }
}
