//! Every public type can be sent to another thread, shared by threads where that means anything, and used after a panic.
//!
//! The compiler derives these traits from private fields, so a change deep below takes them away without a word.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fs;
use std::future::Ready;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::path::Path;

use hyper::{Request, Response};
use shmlimit::tower::{ByHeader, ClientLimitFuture, LimitFuture};
use tower::util::ServiceFn;

type EchoService = ServiceFn<fn(Request<()>) -> Ready<Result<Response<()>, Infallible>>>;

fn is_sent<T: Send>() {}

fn survives_threads_and_panics<T: Send + Sync + UnwindSafe + RefUnwindSafe>() {}

/// Asserts it of types of a module, and answers their names.
macro_rules! each_survives {
    ($module:path: $($name:ident $(<$($argument:tt),+>)?),* $(,)?) => {{
        use $module as module;
        $(survives_threads_and_panics::<module::$name $(<$($argument),+>)?>();)*
        [$(stringify!($name)),*]
    }};
}

/// The types and traits that `pub use` of a file names.
fn public_types_of(file: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).expect("a source");
    let syntax = syn::parse_file(&text).expect("a source that compiles");
    let mut names = BTreeSet::new();
    for item in &syntax.items {
        if let syn::Item::Use(item) = item
            && matches!(item.vis, syn::Visibility::Public(_))
        {
            collect(&item.tree, &mut names);
        }
    }
    names
}

fn collect(tree: &syn::UseTree, names: &mut BTreeSet<String>) {
    match tree {
        syn::UseTree::Path(path) => collect(&path.tree, names),
        syn::UseTree::Group(group) => group.items.iter().for_each(|tree| collect(tree, names)),
        syn::UseTree::Name(syn::UseName { ident })
        | syn::UseTree::Rename(syn::UseRename { rename: ident, .. }) => {
            if ident.to_string().starts_with(char::is_uppercase) {
                names.insert(ident.to_string());
            }
        }
        syn::UseTree::Glob(_) => panic!("what a glob exports is not seen here: name it"),
    }
}

/// Whether what was named is all that there is, but for traits and what is asserted apart.
fn assert_complete(file: &str, others: &[&str], named: &[&str]) {
    let mut public = public_types_of(file);
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
        AcquireFuture<'static>, Adaptive, Address, Algorithm, Align, Amount, Bound, Checked<'static>, Checkpoint, Chosen<'static>, ClockCheck, ClockSource,
        ChangeError, Credit, Declaration, DeclarationError, Diagnosis, Difference, Error, FleetLease, FleetOptions,
        Forecast, HoldSnapshot, Keyed,
        Key<'static>, KeyFingerprint, KeyLabel, KeyLimitSnapshot, KeySnapshot, KeysSnapshot, Kind, Limit, LimitCounts,
        LimitIndex, LimitOptions, LimitPool, LimitSet, LimitSnapshot, LockKind, LockSnapshot, Mismatch, MismatchOutcome,
        OnMismatch, OpenError, OpenOptions, Outage, Outcome<'static>, ParseError, ParticipantSnapshot, Permit<'static>, PermitError, PoolRequest,
        PoolStrategy, ProcessId, RecoveryReport, Refusal, RefusalReason, Removal, RemovalCause, Repairs, Request, RequestError,
        RequestEvent<'static>, RequestEventKind, Reservation<'static>, ReserveOutcome<'static>, Segment, SegmentError, SegmentOptions,
        SegmentPlace, SegmentReader, SegmentSnapshot, SetCounts, SetDeclaration, SetMemory, SetRecovery, SetSnapshot, Settlement<'static>,
        ShardDiagnosis, ShardPoison, TableUsage, TicketSnapshot, Tier, Verdict, VirtualClock, Weekday, WhenFull, Window,
    );
    assert_complete("src/lib.rs", &["LimitName"], &named);
}

#[test]
fn every_public_type_for_services_survives_threads_and_panics() {
    let named = each_survives!(shmlimit::tower:
        Advertise, ByAddress, ByHeader, CarriedPermit, ClientAddress, ClientError<Infallible>, ClientLimitLayer<ByHeader>,
        ClientLimitService<(), ByHeader>, Demand, LimitBody<()>, LimitLayer<ByHeader>,
        LimitService<(), ByHeader>, OnError, PermitHandle, Rejection<'static>,
    );
    // They hold the request that waits, whose extensions may be anything that can be sent.
    is_sent::<LimitFuture<EchoService, ()>>();
    is_sent::<ClientLimitFuture<(), Infallible>>();
    let others = ["ClientLimitFuture", "Extractor", "LimitFuture"];
    assert_complete("src/tower/mod.rs", &others, &named);
}
