//! How a segment is opened.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use super::mismatch::OnMismatch;
use crate::api::request_events::{Observer, RequestEvent};
use crate::shm::time::virtual_clock::VirtualClock;

/// How long an operation waits for the lock of a set before it reports that the holder is stuck.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// Options for opening or creating a segment.
///
/// ```no_run
/// # use std::time::Duration;
/// let segment = shmlimit::OpenOptions::new().lock_timeout(Duration::from_millis(500)).open("/dev/shm/api.limits")?;
/// # Ok::<(), shmlimit::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct OpenOptions {
    pub(super) lock_timeout: Duration,
    pub(super) trust_any_owner: bool,
    pub(super) reclaim: bool,
    pub(super) virtual_clock: Option<VirtualClock>,
    pub(super) on_mismatch: OnMismatch,
    pub(super) observer: Option<Observer>,
    pub(super) wait_observer: Option<WaitObserver>,
    /// Whether the files that are created are those of sets in a directory.
    pub(super) is_for_directory: bool,
}

/// The program's callback for waits while a segment is opened.
#[derive(Clone)]
pub(super) struct WaitObserver(pub(super) Arc<dyn Fn(&str) + Send + Sync>);

// The library keeps no state that a panic of the observer could leave half changed.
impl UnwindSafe for WaitObserver {}
impl RefUnwindSafe for WaitObserver {}

impl fmt::Debug for WaitObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WaitObserver")
    }
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            lock_timeout: LOCK_TIMEOUT,
            trust_any_owner: false,
            reclaim: true,
            virtual_clock: None,
            on_mismatch: OnMismatch::default(),
            observer: None,
            wait_observer: None,
            is_for_directory: false,
        }
    }
}

impl OpenOptions {
    /// The defaults: wait up to 2 seconds for a lock, and trust only files that nobody else could have planted.
    pub fn new() -> Self {
        Self::default()
    }

    /// How long an operation waits for the lock of a set before it returns
    /// [`SegmentError::LockStuck`](crate::SegmentError::LockStuck); 2 seconds by default. Locks are held for well
    /// under a microsecond, so this is only reached if the holder is stopped or dumping core.
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.lock_timeout = timeout;
        self
    }

    /// Sets the [`lock_timeout`](Self::lock_timeout) from a `Timeout` of the crate `raw_sync`. `Timeout::Infinite` waits
    /// as long as it takes.
    ///
    /// ```
    /// use raw_sync::Timeout;
    ///
    /// let options = shmlimit::OpenOptions::new().raw_sync_timeout(Timeout::Infinite);
    /// # let _ = options;
    /// ```
    #[cfg(feature = "raw_sync")]
    pub fn raw_sync_timeout(self, timeout: raw_sync::Timeout) -> Self {
        self.lock_timeout(match timeout {
            raw_sync::Timeout::Infinite => Duration::MAX,
            raw_sync::Timeout::Val(timeout) => timeout,
        })
    }

    /// Whether to accept a file that anyone may write, or that belongs to another user in a directory that others may
    /// write. Whoever can write the file can bring down every process that uses it.
    pub fn trust_any_owner(mut self, trust: bool) -> Self {
        self.trust_any_owner = trust;
        self
    }

    /// Whether to give back at once what dead processes hold; on by default. Otherwise it is given back when a
    /// process needs it, or by [`Segment::recover`](crate::Segment::recover), which can then report it.
    pub fn reclaim(mut self, reclaim: bool) -> Self {
        self.reclaim = reclaim;
        self
    }

    /// What [`open_or_create`](Self::open_or_create) does if the segment exists with another declaration; an error by
    /// default.
    ///
    /// ```
    /// use std::time::Duration;
    /// use shmlimit::declare::OnMismatch;
    /// use shmlimit::{Declaration, Limit, OpenOptions, SetDeclaration};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("limits");
    /// let of = |version, capacity| {
    ///     let requests = Limit::calls("requests", capacity, Duration::from_secs(60));
    ///     Declaration::new().version(version).add_set(SetDeclaration::new("api").add_limit(requests))
    /// };
    /// let options = OpenOptions::new().on_mismatch(OnMismatch::Apply);
    /// let former = options.open_or_create(&path, &of(1, 10))?; // a worker of the previous release
    /// let segment = options.open_or_create(&path, &of(2, 20))?; // a worker of the next release
    /// assert!(segment.mismatches()[0].to_string().contains("capacity: declared 20, in the segment 10"));
    /// // Both use the same limits, and restarting a worker of the previous release does not change them.
    /// let restarted = options.open_or_create(&path, &of(1, 10))?;
    /// assert!(former.declaration_in_force()?.to_toml()?.contains("capacity = 20"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_mismatch(mut self, on_mismatch: OnMismatch) -> Self {
        self.on_mismatch = on_mismatch;
        self
    }

    /// If opening has waited for a second because another process is creating the segment or attaching to it, calls
    /// `observer`, once, with a sentence that says so and names the process. By default nothing is called. After 10
    /// seconds, opening fails with [`OpenError::AttachStuck`](crate::OpenError::AttachStuck).
    pub fn on_wait(mut self, observer: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.wait_observer = Some(WaitObserver(Arc::new(observer)));
        self
    }

    /// Calls `observer` for each request that is refused or has waited, through any handle of what is opened here, at
    /// most 10 times per second for each set and kind. By default nothing is called.
    ///
    /// The thread that made the request calls it, outside every lock, before the answer is returned. The time it
    /// takes is the caller's.
    ///
    /// ```
    /// # use std::sync::{Arc, Mutex};
    /// # use std::time::Duration;
    /// use shmlimit::request::RequestEventKind;
    /// use shmlimit::{Declaration, Limit, OpenOptions, SetDeclaration};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("limits");
    /// # let declaration = Declaration::new().add_set(SetDeclaration::new("mail")
    /// #     .add_limit(Limit::calls("sent", 1, Duration::from_secs(60))));
    /// let seen = Arc::new(Mutex::new(Vec::new()));
    /// let log = Arc::clone(&seen);
    /// let segment = OpenOptions::new()
    ///     .on_request_event(move |event| {
    ///         if let RequestEventKind::Denied { limit: Some(limit), .. } = event.what {
    ///             let line = format!("{} of {}: {}", event.label.unwrap_or("?"), event.set, limit);
    ///             log.lock().expect("not poisoned").push(line);
    ///         }
    ///     })
    ///     .open_or_create(&path, &declaration)?;
    /// let mail = segment.set("mail")?;
    /// let request = mail.request().label("newsletter");
    /// for _ in 0..2 {
    ///     let _ = request.check()?;
    /// }
    /// assert_eq!(*seen.lock().expect("not poisoned"), ["newsletter of mail: sent"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_request_event(mut self, observer: impl Fn(&RequestEvent<'_>) + Send + Sync + 'static) -> Self {
        self.observer = Some(Observer(Arc::new(observer)));
        self
    }

    /// Reports the events of [`on_request_event`](Self::on_request_event) to `tracing` at info level:
    /// `request_denied` with the fields `set`, `label`, `limit`, `reason`, `retry_after_ms` and `left_out`, and
    /// `backpressure_wait` with `set`, `label`, `waited_ms`, `admitted` and `left_out`.
    #[cfg(feature = "tracing")]
    pub fn trace_requests(self) -> Self {
        self.on_request_event(crate::api::request_events::trace)
    }

    /// Tells the time by `clock` instead of the kernel's clocks, in every decision of what is opened here: limits
    /// replenish, windows turn and leases run out as it is advanced.
    ///
    /// For simulations and tests, on a segment that no other process uses: other processes, and anything that this one
    /// opens without the clock, use the kernel's clocks. Timeouts and the instants of
    /// [reservations](crate::Reservation) follow `clock`, which [waiting](VirtualClock#waiting) advances. Background
    /// heartbeats and the terms of [batches](crate::Limit::credit) follow the kernel's clocks.
    ///
    /// ```
    /// use std::time::Duration;
    /// use shmlimit::{Declaration, Limit, OpenOptions, SetDeclaration, VirtualClock};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("limits");
    /// let second = Duration::from_secs(1);
    /// let declaration = Declaration::new()
    ///     .add_set(SetDeclaration::new("api").add_limit(Limit::calls("requests", 1, second)));
    /// let clock = VirtualClock::new(second);
    /// let segment = OpenOptions::new().virtual_clock(&clock).create(&path, &declaration)?;
    /// let api = segment.set("api")?;
    /// assert!(api.request().try_acquire()?.into_result().is_ok());
    /// assert!(api.request().try_acquire()?.into_result().is_err());
    /// clock.advance_to(clock.now() + second); // without waiting
    /// assert!(api.request().try_acquire()?.into_result().is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn virtual_clock(mut self, clock: &VirtualClock) -> Self {
        self.virtual_clock = Some(clock.clone());
        self
    }
}
