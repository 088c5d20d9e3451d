//! Every public type can be sent to another thread, shared by threads if that makes sense, and used after a panic.
//!
//! The compiler derives these traits from private fields, so a change deep below can take them away silently.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::Ready;
use std::panic::{RefUnwindSafe, UnwindSafe};

use hyper::{Request, Response};
use shmlimit::layer::{ByHeader, ClientLimitFuture, ExtractError, LimitFuture, NotSent};
use tower::util::ServiceFn;

use crate::public_names::public_names_of;

type EchoService = ServiceFn<fn(Request<()>) -> Ready<Result<Response<()>, Infallible>>>;

fn is_sent<T: Send>() {}

fn survives_threads_and_panics<T: Send + Sync + UnwindSafe + RefUnwindSafe>() {}

/// Asserts this for types of a module, and returns their names.
macro_rules! each_survives {
    ($module:path: $($name:ident $(<$($argument:tt),+>)?),* $(,)?) => {{
        use $module as module;
        $(survives_threads_and_panics::<module::$name $(<$($argument),+>)?>();)*
        [$(stringify!($name)),*]
    }};
}

/// Checks that the named types are all types of the file, apart from traits and those that are checked separately.
fn assert_complete(file: &str, others: &[&str], named: &[&str]) {
    let mut public: BTreeSet<String> = public_names_of(file)
        .into_iter()
        .filter(|name| name.starts_with(char::is_uppercase))
        .collect();
    for name in others {
        assert!(public.remove(*name), "{name} is not exported by {file}");
    }
    let named: BTreeSet<String> = named.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(
        named, public,
        "types of {file} of which nothing is asserted, or that are gone"
    );
}

#[test]
fn every_public_type_survives_threads_and_panics() {
    let named = each_survives!(shmlimit:
        AcquireError, Address, Algorithm, ChangeError, Checked<'static>, Declaration, DeclarationError, Error,
        Key<'static>, Keyed, Limit, LimitPool, LimitSet, OpenError, OpenOptions, Outcome<'static>, Permit<'static>,
        PermitError, Refusal, RefusalReason, Removal, RemovalCause, Request<'static>, RequestError,
        Reservation<'static>, ReserveOutcome<'static>, Segment, SegmentError, SetDeclaration, Settlement<'static>, Tier,
        Verdict, VirtualClock, Window,
    );
    assert_complete("src/lib.rs", &[], &named);
}

#[test]
fn every_public_type_of_a_module_survives_threads_and_panics() {
    let named = each_survives!(shmlimit::declare:
        Adaptive, Align, Amount, Bound, Checkpoint, ClockSource, Credit, Difference, FleetLease, FleetOptions, Kind,
        LimitOptions, LockKind, Mismatch, MismatchOutcome, OnMismatch, Outage, ParseError, SegmentOptions, TimeZone,
        Scope, ValueForm, Weekday, WhenFull,
    );
    assert_complete("src/declare.rs", &[], &named);
    let named = each_survives!(shmlimit::snapshot:
        ClockCheck, Diagnosis, Forecast, HoldSnapshot, KeyFingerprint, KeyInOrder, KeyLabel, KeyLeaseSnapshot, KeyLimitSnapshot, KeySnapshot,
        KeysSnapshot, LimitCounts, LimitSnapshot, LockSnapshot, Metric, MetricKind, MetricSample<'static>, MetricValue<'static>,
        ParticipantSnapshot, ProcessId, RecoveryReport, Repairs, SegmentPlace, SegmentMemory, SegmentReader, SegmentSnapshot, SetCounts, SetMemory, SetRecovery, SetSnapshot,
        ShardDiagnosis, ShardPoison, TableUsage, TicketSnapshot,
    );
    assert_complete("src/snapshot.rs", &[], &named);
    let named = each_survives!(shmlimit::pool: Chosen<'static>, PoolRequest<'static>, PoolStrategy);
    assert_complete("src/pool.rs", &[], &named);
    let named = each_survives!(shmlimit::request:
        AcquireFuture<'static>, KeyReset<'static>, LimitIndex, RequestEvent<'static>, RequestEventKind,
        SetReset<'static>,
    );
    assert_complete("src/request/mod.rs", &["LimitName"], &named);
    let named = each_survives!(shmlimit::fleet:
        Asked, Duty, DutySnapshot, Fleet, FleetSnapshot, LeaseCounts, LeaseReply, LeaseRequest, LeaseSnapshot,
        LeasedKey, LeasedLimit, LeasedRule, NamedProblem, StoreProblem,
    );
    assert_complete("src/api/fleet/mod.rs", &[], &named);
    let named = each_survives!(shmlimit::headers: Advertise, Fields, PolicyHeaders, Problem);
    assert_complete("src/headers/mod.rs", &[], &named);
}

#[test]
fn every_public_type_for_services_survives_threads_and_panics() {
    let named = each_survives!(shmlimit::layer:
        ByAddress, ByHeader, CarriedPermit, ClientAddress, ClientError<Infallible>, ClientLimitLayer<ByHeader>,
        ClientLimitService<(), ByHeader>, Demand, LimitBody<()>, LimitLayer<ByHeader>, LimitService<(), ByHeader>,
        OnError, OutgoingPermit, PermitHandle, Permits, Rejection<'static>,
    );
    // These hold the request that waits, whose extensions may be anything that can be sent.
    is_sent::<LimitFuture<EchoService, ()>>();
    is_sent::<ClientLimitFuture<(), Infallible>>();
    // So may those of a response that an extractor returns.
    is_sent::<ExtractError>();
    is_sent::<NotSent>();
    let others = [
        "ClientLimitFuture",
        "ExtractError",
        "Extractor",
        "LimitFuture",
        "NotSent",
    ];
    assert_complete("src/layer/mod.rs", &others, &named);
}
