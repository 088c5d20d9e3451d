//! Events of requests: each refusal and each wait is reported once, with its label, and no more than ten of a kind per
//! second.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::scene::expect_permit;
use shmlimit::pool::PoolStrategy;
use shmlimit::request::{RequestEvent, RequestEventKind};
use shmlimit::{Declaration, Keyed, Limit, LimitPool, OpenOptions, RefusalReason, Segment, SetDeclaration};

const HOUR: Duration = Duration::from_secs(3600);
const TIMEOUT: Duration = Duration::from_secs(300);

/// The reports, in words.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn tell(&self, event: &RequestEvent<'_>) {
        let RequestEvent { set, label, .. } = *event;
        let label = label.unwrap_or("-");
        let line = match event.what {
            RequestEventKind::Denied { limit, reason, .. } => {
                format!("{set} {label} denied by {} for {reason:?}", limit.unwrap_or("-"))
            }
            RequestEventKind::Waited { waited, admitted } => {
                assert!(waited > Duration::ZERO);
                format!("{set} {label} waited, admitted: {admitted}")
            }
            _ => format!("{event:?}"),
        };
        self.0.lock().expect("not poisoned").push(line);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().expect("not poisoned"))
    }
}

fn open(declaration: &Declaration) -> (tempfile::TempDir, Segment, Log) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let log = Log::default();
    let observed = log.clone();
    let segment = OpenOptions::new()
        .on_request_event(move |event| observed.tell(event))
        .create(directory.path().join("limits"), declaration)
        .expect("a segment");
    (directory, segment, log)
}

fn calls_and_slots() -> Declaration {
    Declaration::new()
        .add_set(SetDeclaration::new("mail").add_limit(Limit::calls("sent", 1, HOUR)))
        .add_set(SetDeclaration::new("work").add_limit(Limit::concurrency("slots", 1)))
        .add_set(
            SetDeclaration::new("tenants")
                .keyed(Keyed::new(32))
                .add_limit(Limit::calls("sent", 1, HOUR)),
        )
}

#[test]
fn each_way_to_be_refused_is_told_with_limit_reason_and_label() {
    let (_directory, segment, log) = open(&calls_and_slots());
    let mail = segment.set("mail").expect("declared");
    let request = mail.request().label("newsletter");
    drop(request.try_acquire().expect("works"));
    assert_eq!(log.take(), [""; 0], "an admission is not an event");
    drop(request.try_acquire().expect("works"));
    drop(request.check().expect("works"));
    drop(mail.request().reserve(Duration::from_secs(1)).expect("works"));
    let denied = |label| format!("mail {label} denied by sent for Rate");
    assert_eq!(
        log.take(),
        [denied("newsletter"), denied("newsletter"), denied("-")]
    );

    let tenants = segment.set("tenants").expect("declared");
    let request = tenants.request().label("batch");
    let answers = request.check_many(&["a", "b", "a"]).expect("works");
    assert_eq!(answers.iter().filter(|answer| answer.is_admitted()).count(), 2);
    assert_eq!(log.take(), ["tenants batch denied by sent for Rate"]);
}

#[test]
fn a_refused_debit_is_told_of_a_set_and_of_a_permit() {
    let set = SetDeclaration::new("money")
        .add_limit(Limit::budget("spent", 10, HOUR))
        .add_limit(Limit::concurrency("slots", 1));
    let (_directory, segment, log) = open(&Declaration::new().add_set(set));
    let money = segment.set("money").expect("declared");
    let mut permit = expect_permit(money.request().try_acquire());
    assert!(permit.debit("spent", 10).expect("works").is_admitted());
    assert_eq!(log.take(), [""; 0]);
    drop(permit.debit("spent", 1).expect("works"));
    drop(money.debit("spent", 1).expect("works"));
    assert_eq!(log.take(), ["money - denied by spent for Budget"; 2]);
}

#[test]
fn a_refused_address_is_told() {
    let networks = Limit::calls("network", 1, HOUR).prefix(24, 48);
    let declaration = Declaration::new().add_set(
        SetDeclaration::new("logins")
            .keyed(Keyed::new(64))
            .add_limit(networks),
    );
    let (_directory, segment, log) = open(&declaration);
    let logins = segment.set("logins").expect("declared");
    let request = logins.request().label("form");
    for address in ["203.0.113.7", "203.0.113.8", "203.0.114.7"] {
        let address = address.parse().expect("an address");
        drop(
            request
                .for_address(address)
                .expect("by address")
                .check()
                .expect("works"),
        );
    }
    assert_eq!(log.take(), ["logins form denied by network for Rate"]);
}

#[test]
fn each_member_of_a_pool_is_asked_with_a_label_of_its_own() {
    let (_directory, segment, log) = open(&calls_and_slots());
    let [mail, work] = ["mail", "work"].map(|name| segment.set(name).expect("declared"));
    let pool = LimitPool::new([mail, work], PoolStrategy::RoundRobin).expect("two sets");
    let pool = pool.failover(true).start_at(0);
    let request = pool.request().label(0, "letter").label(1, "job");
    let taken = [(); 2].map(|()| {
        request
            .try_acquire()
            .expect("works")
            .outcome
            .into_result()
            .expect("room")
    });
    log.take();
    drop(request.try_acquire().expect("works"));
    let mut told = log.take();
    told.sort();
    assert_eq!(
        told,
        [
            "mail letter denied by sent for Rate",
            "work job denied by slots for Concurrency"
        ]
    );
    drop(taken);
}

#[test]
fn a_wait_is_told_with_what_came_of_it() {
    let (_directory, segment, log) = open(&calls_and_slots());
    let work = segment.set("work").expect("declared");
    let request = work.request().label("job 7");
    let permit = expect_permit(request.try_acquire());
    let refused = request.acquire(Duration::from_millis(5)).expect("works");
    assert!(!refused.is_admitted());
    let reason = RefusalReason::Concurrency;
    assert_eq!(
        log.take(),
        [
            "work job 7 waited, admitted: false".to_owned(),
            format!("work job 7 denied by slots for {reason:?}"),
        ]
    );
    thread::scope(|scope| {
        let waiter = scope.spawn(|| request.acquire(TIMEOUT).expect("works").is_admitted());
        while segment.snapshot().expect("a copy").sets[1].tickets.is_empty() {
            thread::yield_now();
        }
        drop(permit);
        assert!(waiter.join().expect("no panic"));
    });
    assert_eq!(log.take(), ["work job 7 waited, admitted: true"]);
}

#[test]
fn a_future_tells_the_same() {
    let (_directory, segment, log) = open(&calls_and_slots());
    let work = segment.set("work").expect("declared");
    let request = work.request().label("task");
    smol::block_on(async {
        let permit = expect_permit(request.acquire_async(None).await);
        assert_eq!(log.take(), [""; 0]);
        let refused = request
            .acquire_async(Duration::from_millis(5))
            .await
            .expect("works");
        assert!(!refused.is_admitted());
        drop(permit);
    });
    assert_eq!(
        log.take(),
        [
            "work task waited, admitted: false",
            "work task denied by slots for Concurrency"
        ]
    );
}

#[test]
fn of_a_flood_at_most_ten_refusals_a_second_are_told_and_the_others_are_counted() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let told = Arc::new(Mutex::new((0_u64, 0_u64)));
    let observed = Arc::clone(&told);
    let segment = OpenOptions::new()
        .on_request_event(move |event| {
            let mut told = observed.lock().expect("not poisoned");
            *told = (told.0 + 1, told.1 + event.left_out);
        })
        .create(directory.path().join("limits"), &calls_and_slots())
        .expect("a segment");
    let mail = segment.set("mail").expect("declared");
    let request = mail.request();
    let mut refused = 0_u64;
    // At most ten are reported a second, so two seconds have passed when there are 21, and what was left out has been
    // reported.
    let deadline = std::time::Instant::now() + TIMEOUT;
    while told.lock().expect("not poisoned").0 < 21 {
        assert!(std::time::Instant::now() < deadline, "{told:?}");
        if !request.check().expect("works").is_admitted() {
            refused += 1;
        }
    }
    let (told, left_out) = *told.lock().expect("not poisoned");
    assert_eq!(told + left_out, refused, "each is told or counted");
    assert!(left_out > told, "{told} told of {refused}");
}

#[test]
fn a_label_is_cut_off_after_64_bytes_and_never_within_a_letter() {
    let (_directory, segment, log) = open(&calls_and_slots());
    let mail = segment.set("mail").expect("declared");
    let request = mail.request().label(format!("{}äö", "x".repeat(61)));
    for _ in 0..2 {
        drop(request.check().expect("works"));
    }
    assert_eq!(
        log.take(),
        [format!("mail {}ä denied by sent for Rate", "x".repeat(61))]
    );
}

#[test]
fn what_was_admitted_is_given_back_where_who_is_told_panics() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let segment = OpenOptions::new()
        .on_request_event(|event| {
            assert!(
                !matches!(event.what, RequestEventKind::Waited { .. }),
                "as asked for"
            )
        })
        .create(directory.path().join("limits"), &calls_and_slots())
        .expect("a segment");
    let work = segment.set("work").expect("declared");
    let request = work.request();
    let permit = expect_permit(request.try_acquire());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| request.acquire(TIMEOUT).map(|outcome| outcome.is_admitted()));
        while segment.snapshot().expect("a copy").sets[1].tickets.is_empty() {
            thread::yield_now();
        }
        drop(permit);
        assert!(waiter.join().is_err(), "it should have panicked");
    });
    assert!(request.try_acquire().expect("works").is_admitted());
}
