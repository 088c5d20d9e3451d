//! A process that is forked while its parent asks the store.
#![allow(unsafe_code, reason = "forks")]

mod scene;

use std::io::{Read, Write, pipe};
use std::time::Duration;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use scene::{PASSWORD, Server, patient, server_program, wait_for};
use shmlimit::declare::FleetLease;
use shmlimit::{Declaration, Limit, Segment, SetDeclaration};
use shmlimit_fleet::{Credentials, Refresher};

const SECOND: Duration = Duration::from_secs(1);

fn take(segment: &Segment) -> bool {
    let set = segment.set("api").expect("declared");
    let request = set.request().with("units", 1).expect("declared");
    request.check().expect("a decision").is_admitted()
}

/// The child's part: what it inherited has stopped, and its own thread takes the duty once the parent's is gone.
fn child(
    segment: &Segment,
    inherited: Refresher,
    credentials: Credentials,
    mut parent_ended: impl Read,
) -> bool {
    if inherited.is_running() {
        return false;
    }
    drop(inherited);
    let Ok(own) = Refresher::start_with(segment, credentials, patient(), |_| {}) else {
        return false;
    };
    // Wait until the parent has stopped its thread.
    let _ = parent_ended.read(&mut [0]);
    wait_for("duty", || own.counts().duties > 0);
    wait_for("units", || take(segment));
    own.stop();
    true
}

#[test]
fn a_child_starts_a_thread_of_its_own_and_ends_no_other() {
    let Some(program) = server_program() else { return };
    let server = Server::start(&program);
    let lease = FleetLease::new("org/forked").lease(SECOND);
    let limit = Limit::rate("units", 1_000, SECOND).burst(1_000).fleet(lease);
    let declaration = Declaration::new()
        .fleet_url(server.url())
        .add_set(SetDeclaration::new("api").add_limit(limit));
    let directory = tempfile::tempdir().expect("a directory");
    let segment = Segment::create(directory.path().join("limits"), &declaration).expect("a segment");
    let credentials = Credentials::none().with_password(PASSWORD);
    let refresher =
        Refresher::start_with(&segment, credentials.clone(), patient(), |_| {}).expect("a thread");
    wait_for("units", || take(&segment));
    let (reader, mut writer) = pipe().expect("a pipe");
    // SAFETY: the child uses the segment, whose library is made for forks, starts a thread and leaves by _exit. The C
    // library's allocator is usable in a child; other locks that the refresher's thread may have held at the fork
    // belong to that thread's own client, which the child does not touch.
    match unsafe { fork() }.expect("a child") {
        ForkResult::Child => {
            drop(writer);
            let is_well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                child(&segment, refresher, credentials, reader)
            }));
            // SAFETY: ends this process at once, without dropping what the parent's test still needs.
            unsafe { libc::_exit(i32::from(!is_well.unwrap_or(false))) }
        }
        ForkResult::Parent { child } => {
            drop(reader);
            // Dropping what the child inherited has not stopped the parent's thread.
            let before = refresher.counts().round_trips;
            wait_for("another round trip", || {
                take(&segment);
                refresher.counts().round_trips > before + 1
            });
            assert!(refresher.is_running());
            refresher.stop();
            writer.write_all(b".").expect("the child listens");
            assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
        }
    }
}
