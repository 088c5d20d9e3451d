//! What the feature `tracing` tells a subscriber about other processes that died or stopped.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::layout_mirror::RawSegment;
use crate::scene;
use crate::scene::expect_permit;
use crate::scene::process::{Child, TIMEOUT, in_own_process};
use nix::sys::signal::{Signal, raise};
use shmlimit::{Error, Limit, OpenOptions, SegmentError, SetDeclaration};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::with_default;
use tracing::{Event, Metadata, Subscriber};

/// The fields of one event, its message among them.
#[derive(Debug, Default)]
struct Fields(Vec<(&'static str, String)>);

/// Keeps each event.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<Fields>>>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push((field.name(), format!("{value:?}")));
    }
}

impl Subscriber for Events {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.0.lock().expect("no panic").push(fields);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Events {
    /// The value of a field of the only event with this message.
    fn field_of_the_only(&self, message: &str, name: &str) -> Option<String> {
        let events = self.0.lock().expect("no panic");
        let mut named = events
            .iter()
            .filter(|fields| fields.0.contains(&("message", message.to_owned())));
        let fields = named.next()?;
        assert!(named.next().is_none(), "more than one: {events:?}");
        let found = fields.0.iter().find(|(field, _)| *field == name);
        found.map(|(_, value)| value.clone())
    }
}

fn api() -> SetDeclaration {
    SetDeclaration::new("api").add_limit(Limit::concurrency("slots", 1))
}

#[test]
fn a_stuck_lock_and_the_recovery_after_its_holders_death_are_events() {
    let test = "tracing_events::a_stuck_lock_and_the_recovery_after_its_holders_death_are_events";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        let segment = OpenOptions::new()
            .lock_timeout(Duration::from_millis(20))
            .create(&path, &scene::declaration().participants(8).add_set(api()))
            .expect("a segment");
        let api = segment.set("api").expect("declared");
        let holder = Child::fork(|| {
            RawSegment::open(&path).lock().take_and_stop();
        });
        holder.wait_until_stopped();
        let pid = holder.id().to_string();
        let events = Events::default();
        with_default(events.clone(), || {
            let outcome = api.request().try_acquire();
            assert!(matches!(
                outcome,
                Err(Error::Segment(SegmentError::LockStuck { .. }))
            ));
            assert_eq!(events.field_of_the_only("lock_stuck", "holder_pid"), Some(pid));
            holder.kill();
            expect_permit(api.request().try_acquire())
                .release()
                .expect("works");
        });
        let owner_died = events.field_of_the_only("recovered", "owner_died");
        assert_eq!(owner_died.as_deref(), Some("true"));
        let path_of_event = events.field_of_the_only("recovered", "path").expect("is named");
        assert_eq!(path_of_event, path.display().to_string());
    });
}

#[test]
fn what_a_dead_process_held_and_another_gave_back_is_an_event() {
    let test = "tracing_events::what_a_dead_process_held_and_another_gave_back_is_an_event";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let (_segment, api) = scene::create_in(directory, api());
        let request = api.request().with("slots", 1).expect("declared");
        let holder = Child::fork(|| {
            let _permit = expect_permit(request.try_acquire());
            raise(Signal::SIGSTOP).expect("stops");
        });
        holder.wait_until_stopped();
        holder.kill();
        let events = Events::default();
        with_default(events.clone(), || {
            let mut permit = expect_permit(request.acquire(TIMEOUT));
            permit.release().expect("works");
        });
        assert_eq!(
            events.field_of_the_only("reclaimed", "holds").as_deref(),
            Some("1")
        );
        assert_eq!(
            events.field_of_the_only("reclaimed", "set").as_deref(),
            Some("\"api\"")
        );
    });
}
