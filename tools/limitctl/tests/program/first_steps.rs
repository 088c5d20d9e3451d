//! What a new user declares with flags, and what messages say about likely mistakes.

use crate::support::{create, directory, limitctl, run, run_command, text};

#[test]
fn flags_declare_the_algorithm_that_a_provider_counts_by() {
    let directory = directory();
    let path = directory.path().join("limits");
    let path = text(&path);
    let create = |options: &[&str]| {
        let mut command = limitctl();
        command.args(["create", "--set", "api", "--calls", "requests=100/60s"]);
        run_command(command.args(options).arg(path))
    };
    create(&["--algorithm", "sliding_window"]).ended(0);
    let bound = || run(["inspect", "--json", path]).ended(0).json()["sets"][0]["limits"][0]["bound"].clone();
    assert_eq!(bound(), "at most 100 in any 1m");
    let exists = create(&[]).ended(73);
    assert!(exists.stderr.contains("--on-mismatch error"), "{exists:?}");
    run(["remove", path]).ended(0);
    create(&[]).ended(0);
    assert_eq!(bound(), "at most 199 in any 1m");
    let help = run(["create", "--help"]).ended(0).stdout;
    let help: Vec<&str> = help.split_whitespace().collect();
    assert!(
        help.join(" ").contains("up to twice as many in some stretch"),
        "the default admits more"
    );
    create(&["--algorithm", "leaky"]).ended(64);
    let of_none = [
        "create",
        "--set",
        "api",
        "--concurrency",
        "in_flight=8",
        "--algorithm",
        "sliding_window",
        path,
    ];
    let of_none = run(of_none).ended(64);
    assert!(
        of_none.stderr.contains("--calls"),
        "it would have no effect: {of_none:?}"
    );
}

#[test]
fn serve_says_that_the_port_comes_first() {
    let mistaken = run(["serve", "/dev/shm/gateway.limits"]).ended(64);
    assert!(
        mistaken.stderr.contains("limitctl serve 9464 SEGMENT"),
        "{mistaken:?}"
    );
}

#[test]
fn a_weight_is_said_to_be_of_a_tier() {
    let directory = directory();
    let path = create(directory.path());
    let mistaken = run(["edit", text(&path), "api", "requests", "weight=3"]).ended(64);
    assert!(
        mistaken.stderr.contains("limitctl inspect --toml"),
        "{mistaken:?}"
    );
}
