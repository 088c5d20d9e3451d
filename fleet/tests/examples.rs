//! The programs in `examples/` that people read show what they say. The simulator has tests of its own.

#[path = "../../tests/programs/example.rs"]
mod example;
mod scene;

use example::example;
use scene::{PASSWORD, Server, server_program};

#[test]
fn two_hosts_admit_no_more_of_a_tenant_than_its_quota() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let mut tenants = example("shmlimit-fleet", "tenants");
    let output = tenants
        .arg(server.url())
        .env("SHMLIMIT_FLEET_PASSWORD", PASSWORD)
        .output()
        .expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let output = String::from_utf8(output.stdout).expect("text");
    for (line, tenant) in output.lines().zip(["acme", "globex"]) {
        let admitted = line.strip_prefix(tenant).and_then(|rest| rest.split(' ').nth(1));
        let admitted: u64 = admitted.and_then(|word| word.parse().ok()).expect("a number");
        assert!((50..=100).contains(&admitted), "{output}");
    }
    assert_eq!(output.lines().count(), 2, "{output}");
}
