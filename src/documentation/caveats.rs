//! What to know before relying on it.
//!
//! # Trust
//!
//! Everyone who may write a segment is one trust domain: anyone who can write the file can make every process that uses
//! it wait for ever, admit what should be refused, or crash (by making the file shorter). If its locks are declared to
//! be robust mutexes, the links between the locks that a thread holds lie in the file as well, and a writer can make
//! others store anywhere in their memory. So a segment is created with mode 0600 unless the declaration says otherwise,
//! and a symbolic link in its place is refused. A file that anyone may write, or that another user could have planted,
//! is refused unless [`OpenOptions::trust_any_owner`](crate::OpenOptions::trust_any_owner) is set.
//!
//! Against damage, as opposed to malice, every value is checked before it is used. The
//! [layout specification](crate::documentation::layout_specification) says how.
//!
//! # Containers and namespaces
//!
//! A segment's locks are one of two implementations of a process-shared robust mutex, as it declares
//! ([`LockKind`](crate::declare::LockKind)): ours, the slot lock, or pthread's. With either, a process that dies with the lock
//! leaves it to the next, which learns of the death and undoes what was half done.
//!
//! With **slot locks** (`lock = "slot"`, the default) processes of any PID namespaces and C libraries use one segment: containers
//! that share a directory, or a host and its containers. The lock word names the process that holds it by its place in the segment.
//!
//! - The kernel says nothing when a process dies with the lock. The process that waits for it checks whether the owner is alive, at
//!   once and every 5 ms from then on, and takes over: see the [figures](#locks-and-deaths).
//! - A process of the same PID namespace shows as dead in `/proc` as soon as none of its threads can run any longer.
//!   One of another namespace, or of another user where `/proc` is mounted with `hidepid`, counts as alive until the
//!   kernel has dismantled its memory, and others may get `LockStuck` until then.
//! - A thread that ends while it holds the lock, without its process ending, keeps it for as long as the process lives:
//!   for others the lock is stuck. No safe code ends a thread there; `pthread_cancel` from another language does.
//! - Process ids of another namespace are shown with it: `pid 7 in namespace 4026532201`, which is the inode of
//!   `/proc/PID/ns/pid`. No process is taken for dead because of its id.
//!
//! For pthread's **robust mutex** (`lock = "robust"`) the kernel names the holder by a thread id, which means something else in
//! another PID namespace: a process killed there can make a lock that is held here look abandoned. So processes of two PID
//! namespaces cannot use such a segment at the same time; the second gets
//! [`OpenError::ForeignNamespace`](crate::OpenError::ForeignNamespace). Share the namespace: `--pid=host` or
//! `--pid=container:...` with Docker, `shareProcessNamespace: true` in a Kubernetes pod. The same holds for a child that is
//! forked after its parent called `unshare`: it gets the error from each operation, although it inherited its handles. All
//! processes must also have the same C library (glibc or musl); otherwise they get
//! [`OpenError::Incompatible`](crate::OpenError::Incompatible).
//!
//! With either kind, a waiter is not notified of deaths in another PID namespace, and looks every 50 ms. What a dead process held,
//! other than the lock, is given back once the kernel has dismantled its memory.
//!
//! What a process cannot find out does not count as different: a systemd unit with `ProcSubset=pid`, which hides the boot id,
//! shares segments with other units. A process without any `/proc` cannot tell its namespaces; while others use the segment it gets
//! [`OpenError::ForeignNamespace`](crate::OpenError::ForeignNamespace), which says so.
//!
//! With either kind the processes share one **time namespace**, because its clock is the segment's; others get
//! `ForeignNamespace`, too. (Docker and Kubernetes make none.) A process that moves itself to another one with `setns` must open
//! its segments after that, and not continue to use those that it had open. All must agree on the word size and the layout; otherwise
//! they get `Incompatible`.
//!
//! ## Locks and deaths
//!
//! | | slot lock, `"slot"` | robust mutex, `"robust"` |
//! |---|---|---|
//! | processes | of any PID namespaces and C libraries | of one PID namespace and one C library |
//! | a waiter notices a death with the lock | by asking: after 6 ms (median), 15 ms (of a hundred, the slowest but one), however much memory it had | as the kernel ends the process |
//! | the same in another PID namespace | when its memory has been given back | does not occur |
//! | a thread that ends with the lock | its process keeps it | as the kernel ends the thread |
//! | a process that is stopped with the lock | keeps it | keeps it |
//! | what a damaged or hostile file affects | limits and waits | also memory outside of the segment |
//! | a file that was copied or kept with a lock held | the next process takes it over | all locks are recreated, once no process is attached |
//!
//! Keep slot locks, unless all processes share one PID namespace and one C library and either a waiter must go on within a tenth
//! of a millisecond of a death, or foreign code may end threads. An operation takes about as long with either.
//!
//! Measured on two busy processors of x86-64, Linux 6.18; `tests/processes/slot_lock.rs` prints the times of a death on any machine.
//!
//! The kernel takes a while to dismantle memory. On the same machine, idle, it takes 0.16 s for each GiB that was
//! written in pages of 4 KiB, 0.06 s for each GiB of shared memory that is mapped, less than 0.01 s for each GiB in
//! huge pages; three to four times as long on busy processors. So it takes 2.6, 5 and 10 s for 16, 32 and 64 GiB that
//! were written, and from 12 GiB on it takes longer than the [lock timeout](crate::OpenOptions::lock_timeout) of 2 s:
//! if a process of another PID namespace that had that much dies with the lock, some of those who wait get `LockStuck`.
//! In the same namespace its death is seen within a millisecond. `cargo bench --bench recovery` measures both.
//!
//! # File systems
//!
//! Use `/dev/shm` (tmpfs) or a local disk. Network and cluster file systems and FUSE are refused: a mapping there is not
//! shared by all who can open the file. So are ZFS, bcachefs and NILFS, on which a change to the file may need space, and fail;
//! on btrfs a segment is exempted from copy-on-write when it is created, and a copy of it without the exemption is refused.
//! On a disk an operation may have to wait while its page is written back, and with it every process that waits for the
//! lock: where latency matters, use `/dev/shm`. A segment on tmpfs is gone after a reboot, except for its
//! [checkpoint](crate::declare::Checkpoint) if one is declared. One on a disk starts cold: the locks and
//! holders of the old boot are void, and limits continue by the wall-clock time that has passed. After a power failure the pages
//! of the file may be of different ages; run `limitctl recover`, or create a new segment.
//!
//! A container's own files (`/tmp`, `/run`, `/var`, home directories) are on an overlay. There the lock by which a
//! process shows that it is alive ends with its descriptor, so that every live process would count as dead. Creating or
//! opening a segment there is [`OpenError::LocksNotKept`](crate::OpenError::LocksNotKept), and so it is on any other
//! file system that does the same: each process tries this out as it joins. Use `/dev/shm` or a volume: a directory of
//! the host, or a tmpfs, that is mounted into the container. `limitctl selftest DIRECTORY` tries a directory out. A
//! segment that was copied onto an overlay can be looked at, and removed by force.
//!
//! Programs that remove files that have not been used for long, such as systemd-tmpfiles with an age, rely on a file's
//! times, which stores into a mapping do not change on tmpfs. So a process that uses a segment sets them about once a
//! minute: with an operation that takes something, and while it waits. A process that is attached and does nothing does
//! not. If a segment may go unused for longer than such a program allows, exclude it (`x /dev/shm/api.limits` in
//! `tmpfiles.d`).
//!
//! # Directories
//!
//! If the path of a segment is [a directory](crate::Segment#a-file-for-each-set), each set is a file of its own, with its own
//! locks, holds, waiters and participants. So a change of several sets is not one step: others may see one changed and the other
//! not yet, and if a process dies halfway, the files that it had created remain. Each set costs a process a mapping and a file
//! descriptor. Files that do not belong to a set are left alone; but if a segment has the name of another set's file, whoever
//! opens the directory as a whole gets [`OpenError::Misplaced`](crate::OpenError::Misplaced). A directory that everyone may write
//! to is refused unless it is sticky; files of other users in it are refused, as they are anywhere.
//!
//! # Who may only read
//!
//! Mode 0644 or 0640 lets others look: monitors, exporters. They cannot change a word, but whoever may read a file can put read
//! locks on it. Such a lock keeps no dead process alive, and does not affect processes that are attached. But for as long as it is
//! there, it can keep others from opening or removing the segment, forked children from joining it at their first operation, and
//! checkpoints from being written. They get
//! [`OpenError::LockedByReader`](crate::OpenError::LockedByReader), which names its process, as `limitctl doctor` does. Nothing in
//! this library takes such a lock. Programs that lock a whole file before they copy it do, so give permission to read only to those
//! who may delay a start.
//!
//! # Space
//!
//! The file's space is allocated at creation, so a full file system is an error then and not a bus error later. Limits
//! that the kernel enforces by a signal are checked first: the largest file size of the process (`ulimit -f`) and, for
//! a file in memory, what its memory cgroup and those above it have left; both are
//! [`OpenError::NoSpace`](crate::OpenError::NoSpace). If the process cannot see the files of a cgroup, or others fill
//! it at the same moment, the kernel still kills. A process that ends while it creates a segment may leave a file with
//! a reserved name, which the next process to create the segment removes; `limitctl` defers the signals of terminals
//! and service managers until it is done.
//!
//! Do not truncate a segment: a process that touches a page beyond the end of the file gets SIGBUS. To get rid of one, use
//! `limitctl remove`, which tells attached processes at once. Copy one
//! with `cp --sparse=never --reflink=never`: a file with holes is refused ([`OpenError::Sparse`](crate::OpenError::Sparse)), and one
//! that shares its blocks with another may need space for a change.
//!
//! # Files that are deleted, moved or replaced
//!
//! A segment whose file is deleted (`rm`, `mv` of another over it, `RemoveIPC` of systemd) is retired by the first
//! process that notices: its handles, in all processes, return [`SegmentError::Removed`](crate::SegmentError::Removed)
//! from then on, so that the limit is not counted in two files. No thread watches for it, and a process that does
//! nothing is not woken: an operation that takes something checks first, with two system calls, unless its process has
//! checked within the last second; an operation that failed may check, too. A waiter checks once a second. So the old
//! file may go on admitting what it has left for up to a second after it was deleted. With the feature `tracing` the
//! first error in a process is an event as well.
//!
//! A file that is moved to another path stays in use by all who have it open; new processes find it at the new path. If
//! another segment is then created at the old path, processes that opened the file from that path get `Removed`, and
//! those that opened it from the new one do not. A path that leads nowhere, or to a file that is not a segment, changes
//! nothing: no process can count in another file. Bind mounts and hard links are seen through: a file is deleted when
//! it has no name left anywhere. A process whose descriptors were closed by other code cannot ask the file; it gets the
//! answer from the others that have it open, or finds another segment at the path.
//!
//! Permits that are out are settled and released as usual. [`Segment::successor`](crate::Segment::successor) returns
//! the segment that is at the path now. The layer for HTTP services asks for it on its own.
//!
//! # Fork
//!
//! Handles stay valid in a forked child; it becomes a participant of its own at its first call. Permits do not cross a
//! fork: in the child they do nothing, and what they hold stays the parent's, and so do the units of
//! [batches](crate::Limit::credit). If another thread of the parent is in the middle of an operation when the process
//! forks, its lock stays the parent's too.
//!
//! A forked child does not keep its dead parent's place among the participants, unless another thread of the parent was
//! opening a segment at the instant of the fork: then it may, until it ends or executes another program.
//!
//! A child finds the file through `/proc/self/fd`, even after the file or its directory was renamed, after something
//! was mounted over it and after `chroot`. Without `/proc`, or if something closed the descriptor, it needs the path;
//! if that leads elsewhere, each operation is [`OpenError::Moved`](crate::OpenError::Moved). A child never waits for
//! what a thread of its parent had locked inside the process at the fork.
//!
//! # Anonymous segments
//!
//! An [anonymous](crate::Segment::anonymous) segment has no path but those of its descriptors in `/proc`. If something
//! closes all descriptors, as daemons do, the process can continue to use it, but children that it forks from then on
//! cannot join ([`OpenError::Moved`](crate::OpenError::Moved)), and only its process id still says whether it is alive.
//! Another process that opens the segment needs `/proc`, and permission to look into the process: processes of the same
//! user have it, unless the process has changed its user or forbids it (`PR_SET_DUMPABLE`).
//!
//! # Several copies in one process
//!
//! A process may load the library more than once: a Python extension beside another shared library, or two versions of
//! the crate. Each copy is a participant of its own, with its own place in the table; count them for
//! [`participants`](crate::Declaration::participants). All of them end with the process.
//!
//! # Threads and permits
//!
//! A permit may be moved to another thread and released there. A thread that leaks a permit
//! ([`std::mem::forget`]) leaks what it holds until the process ends: liveness is that of processes.
//!
//! A [`check`](crate::Request::check), a [`check_many`](crate::Request::check_many) and a debit take for good: they hold
//! nothing, so nothing comes back. Checking a concurrency limit is [`RequestError::MustBeHeld`](crate::RequestError::MustBeHeld).
//!
//! # Signal handlers
//!
//! Nothing here may be called from a signal handler: an interrupted operation of the same thread may hold the lock.
//!
//! # A holder that is stopped
//!
//! A lock is held for well under a microsecond, but a process can be stopped (SIGSTOP, a debugger, a frozen cgroup) or
//! dump core at any instant. Others then wait for up to
//! [`OpenOptions::lock_timeout`](crate::OpenOptions::lock_timeout), 2 seconds unless set, and get
//! [`SegmentError::LockStuck`](crate::SegmentError::LockStuck) with the process id. Decide beforehand whether to admit or to refuse
//! when that happens. A stopped process is not a dead one: what it holds stays its own. `limitctl doctor` names it, and the
//! command that continues it.
//!
//! Giving back does not depend on the lock. Calls without a result (a release, a drop, a cancelled wait) wait for it
//! for 10 ms at most. Then they leave a mark, and the process that has the lock next finishes the return; that may be
//! the stopped process itself, if it goes on. Until then others find it held. A return that is finished like this is
//! not a sample for an adaptive limit, unless the work failed. Calls with a result ([`settle`](crate::Permit::settle),
//! cancelling a [reservation](crate::Reservation::cancel)) wait and get `LockStuck`; they have changed nothing then and
//! can be repeated. A lease is renewed without the lock.
//!
//! # Refunds out of order
//!
//! Under GCRA, token bucket and leaky bucket a refund gives back no more than what time has not replenished since the
//! reservation. But a permit does not learn of the refunds of others. If an earlier permit is settled for less, time
//! replenishes the later ones sooner than they know, and a later one that is settled for less may get back what was
//! already replenished. A window may then see more than its bound, by as much as was refunded ahead of that permit.
//! Where the bound must hold to the unit, reserve close to what is used, or use a window: its refunds come out of what
//! it counted for that very reservation, in whatever order.
//!
//! # Waiting in the queue
//!
//! [`Request::acquire`](crate::Request::acquire) and [`acquire_async`](crate::Request::acquire_async) wait in one queue
//! for each set, or for each key of a keyed set, and only its first request is served: one that needs much holds up those
//! behind it that need little. So declare one set for what should wait together.
//! [`try_acquire`](crate::Request::try_acquire) is refused while others wait.
//!
//! Two threads that each wait for what the other holds wait for ever. Take what belongs together in one request, or
//! give a timeout.
//!
//! What a waiter was granted and did not collect, because it was cancelled or killed at that moment, is given back:
//! concurrency always, and what a rate or calls limit was charged while it still
//! [counts](crate::Algorithm#what-comes-back), unless the limit says `refund = false`.
//!
//! A process that is stopped, or whose event loop does not run, collects nothing. If it is first in the queue, it holds
//! up those behind it until its grant lapses: [`collect_within`](crate::SetDeclaration::collect_within) after the grant
//! (one second unless declared otherwise), or when its own request times out, if that is sooner, but not within 50 ms.
//! The grant is then taken back, rates included, and the other requests of that process are passed over without another
//! such wait. They keep their places, and go on waiting when their process looks again. Nothing is granted to a request
//! after its timeout.
//!
//! With several such processes ahead, a request waits one `collect_within` for each. A waiter looks at least once a
//! second, so it may notice each lapse up to a second late. If no other request waits, a grant stays until one comes. A
//! process keeps what it held before it was stopped; a lease ends that.
//!
//! The first future of a process that has to wait starts a thread, `shmlimit`, which also renews leases and gives back
//! abandoned permits and unused batches. It never waits for a lock, so a segment whose lock is stuck does not keep it
//! from serving others. The first thread or future that waits for longer than 2 ms starts another, `shmlimit-deaths`,
//! which watches the processes whose death would serve a waiter: up to 64 for each waiting thread, and as many for all
//! futures of the process in one segment. If there are more, if some are in another PID namespace, and before Linux
//! 5.3, waiters look every 50 ms. Both threads block all signals, end when there has been nothing for them to do for 10
//! seconds, and do not exist in a forked child until it needs them.
//!
//! # Keys
//!
//! The table of a [keyed set](crate::SetDeclaration::keyed) has a fixed size. Any [`max_keys`](crate::Keyed::new) keys
//! find room in it (in all but one table in a million). Because keys fall unevenly, it has somewhat more rows than
//! that; how many keys fit beyond `max_keys` depends on their hashes. A row takes 64 bytes if the limits have two words
//! of state together (GCRA, a token bucket and a leaky bucket have two each), 128 for up to ten and so on, plus two for
//! its tag, plus 48 if the keys are [stored for people to read](crate::Keyed::store_keys). When `max_keys` keys are in
//! the table, 84 to 88 % of the rows are filled for 100,000 keys and more, and fewer in small tables. All of it is
//! allocated when the segment is created.
//!
//! If the set declares [tiers](crate::Tier), what a key has used migrates when its tier changes, and each change rounds
//! in favour of the limit; what was reserved before stays charged, whatever its permit settles. A window whose length
//! differs by tier may remember usage for longer after each change, up to the longer window from then on, so a full key
//! that changes tiers more often than that stays full. A key that was [assigned](crate::Key::assign) to a tier other
//! than `default` keeps its row, like a key that has used something. If `when_full` evicts, it may lose both; if each
//! request names the tier of its key, nothing is lost with the row. Tiers change neither networks, nor adaptive or
//! unlimited limits, nor those with [credit](crate::Limit::credit).
//!
//! If keys can have [capacities of their own](crate::Keyed::overrides), a row has another word for each limit that is
//! neither adaptive nor unlimited: with one GCRA limit it takes 128 bytes instead of 64, with one concurrency limit 64
//! as before, and with both of them 128 as before. Deciding on a key that has such a capacity takes longer, because its
//! rule is computed again each time. Each change rounds in favour of the limit, and what a key reserved before a change
//! stays charged, whatever its permit settles. A key that has such a capacity keeps its row like one that is assigned
//! to a tier, and loses both to `when_full` in the same way: with `evict_least_used` only if no other row of its two
//! places may be evicted, and with `evict_oldest` by its age. The concurrency limits of one key may add up to no more
//! than its shard has holds, or than was declared. If a concurrency limit is raised for many keys, declare
//! [`holds`](crate::SetDeclaration::holds) for what they may hold together. A capacity that a later declaration cannot
//! count with exactly is not in force under it. The `RateLimit-Policy` header of the feature `tower` still says what is
//! declared. A set has either tiers or such capacities, not both.
//!
//! A row whose limits are all replenished, and in which nothing is held or waited for, carries no information: another
//! key may have it from that instant on. If neither of the two places of a new key has such a row, that key is refused
//! ([`TableFull`](crate::RefusalReason::TableFull)), and no limited key regains anything: clients that can invent keys
//! can then keep new ones out. With [`WhenFull::EvictLeastUsed`](crate::declare::WhenFull::EvictLeastUsed) the new key
//! takes the row, among the 64 of its two places, whose key has used the smallest share of its limits. What that key
//! had used is forgotten; keys that are limited, held or waited for stay, and if there are no others the new key is
//! refused. So a flood of new keys pushes out one another and keys that are hardly used. A key that stops just short of
//! its limit can be pushed out and start again: choose a table with more rows than there are such keys. With
//! [`WhenFull::EvictOldest`](crate::declare::WhenFull::EvictOldest) it takes the least recently used row, limited or
//! not: clients that can invent keys can then replenish others, and themselves. All evictions are counted. If anyone
//! can make up keys, authenticate them before they are limited.
//!
//! Keys are told apart by 128 bits of a hash with a random seed for each segment. Two keys that share them would share
//! their limits: among a thousand million keys, the chance of that is less than one in 10^20. No more than the first 40
//! bytes of a key are kept, and nothing with `store_keys(false)`; every user with read permission for the file can read
//! them.
//!
//! The table is divided into shards, each with its lock, its [holds](crate::SetDeclaration::holds) and its
//! [tickets](crate::SetDeclaration::waiters), which are declared for one shard: keys that fall into one shard share them,
//! and a shard may run out of them while others have plenty. A [`check_many`](crate::Request::check_many) takes the locks
//! of its shards one after the other: its keys are decided at one instant of the clock, but not in one transaction, and a
//! process that is killed in the middle has charged some of them.
//!
//! # Shadow
//!
//! A limit in [shadow](crate::Limit::shadow) charges what it admits and lets through what it would have refused,
//! without charging that: so it continues to decide as if it were enforced, and
//! [`would_refuse`](crate::snapshot::LimitCounts::would_refuse) counts what it would have refused of the traffic as it
//! came. Clients that are really refused come back later, or not at all; a limit in shadow cannot know which. It uses
//! up rows, not refusals.
//!
//! # Sliding windows
//!
//! The log of a [sliding window](crate::Algorithm::SlidingWindow) has a fixed number of [entries](crate::Limit::entries):
//! 1024, or for each key of a keyed set as many as the capacity, at most 64. If there are more requests in a window, units come
//! back late, by up to a 1024th of the window, or a 64th, and requests may be refused for that much longer. It never admits more
//! than the capacity in any window.
//!
//! # Time zones
//!
//! A calendar window with a [time zone](crate::Limit::time_zone) follows the changes of its offset that are stored in
//! the segment: from the year 2000 to twenty years after somebody looked them up. Before and after, the first and the
//! last offset hold. If a government changes its mind, the segment learns of it when a process with a newer database
//! opens it with its declaration. `limitctl doctor` warns in the last year that is stored. If clocks skip midnight, the
//! day begins when they are set forward; if they show the time around midnight twice, the second time belongs to the
//! later day.
//!
//! # Live changes
//!
//! [`Segment::apply`](crate::Segment::apply) is in force for the next operation of every process. The layout of a
//! segment cannot change: kinds, units, the number and the order of limits and sets, keys, holds, waiters, the
//! [entries](crate::Limit::entries) of sliding windows, and algorithms other than `gcra`, `token_bucket` and
//! `leaky_bucket`, which may become one another, need a new segment. Each set changes as a whole and by itself, shard
//! by shard as its shards are next used, so of two sets that change, one may already decide by its new limits and the
//! other still by its old ones.
//!
//! A bucket keeps what it has left, at most its new burst, and fills at the new rate from then on; a window keeps what
//! it has counted. Lowering a limit below what is used or held takes nothing back: nothing more is admitted until there
//! is room. A permit, reservation or batch from before a change of its set gets nothing back of any rate or calls
//! limit, not even of one that has not changed, because no definition prices what another one charged. Usage above what
//! was reserved is charged to the new limit. Concurrency is always given back. Holds from before a change get the whole
//! length of the new lease, from the change on.
//!
//! Workers of two releases that are started in turn with [`OnMismatch::Apply`](crate::declare::OnMismatch::Apply), and without
//! [versions](crate::Declaration::version), undo each other's changes. With versions only the newer declaration is in force,
//! even for the workers of the old release. What an operator has changed stays in force while programs of the same version start,
//! and is lost with the next version. A segment that is recreated begins with nothing counted.
//!
//! # Adaptive capacities
//!
//! The estimate of an [adaptive](crate::Limit::adaptive) limit belongs to the set, or the key, and is shared by all
//! processes: one that is slower than the others, or that never reports that work was
//! [dropped](crate::Permit::release_failed), moves it for all. It learns when permits are given back, from how long
//! they were held; it learns nothing from what a dead process held.
//!
//! # Leases
//!
//! A lease that has run out is ended by the first request that needs what it covers, so a late holder may continue as
//! long as no such request comes. Nothing here stops what it does to the outside after its lease: have the outside
//! compare [fencing numbers](crate::Permit::fencing_number). They rise over all lives of a segment. If the file itself
//! is kept, as when a segment on a disk outlives a reboot, they always do. If the segment is recreated, or restored
//! from a checkpoint or a copy, they continue from the wall clock in microseconds: so the clock must be right, and
//! fewer than a million permits a second must have been given on average.
//!
//! Leases may be changed while they run. Those that are renewed [in the background](crate::Permit::heartbeat_in_background) follow
//! the lease in force, and no longer protect against a holder that hangs while its process runs on; whoever renews by hand has to do
//! so in time for the new lease.
//!
//! # Death is noticed by need
//!
//! There is no daemon. What a dead process held is given back by a process that is refused because of it, which looks
//! at most once a millisecond and for at most a twentieth of its time; by a waiter, which the kernel notifies of the
//! death (Linux 5.3) or which looks every 50 ms; by a process that opens the segment; or by `limitctl recover`. Until
//! then snapshots, `peek` and `forecast` leave out the concurrency that it held, and count as used what it had drawn or
//! was granted of a rate. A process that hangs but lives keeps what it holds until its lease runs out.
//!
//! What a dead process had taken or reserved of a rate stays charged; only what it was granted and had not collected,
//! and the part of a batch that it had not spent, come back if the algorithm still refunds them. A charge may stand
//! even though its caller died before learning of it. The reverse does not happen.
//!
//! # Processes that close all descriptors
//!
//! Daemonising libraries close descriptors that they do not know. To others, such a process still counts as alive,
//! because the lock that shows this needs no descriptor. To see who else is alive it opens the file again by its path;
//! if that is gone it asks the process table about processes of its own PID namespace, and if `/proc` is hidden too, it
//! takes no one for dead.
//!
//! # Locks without an owner
//!
//! A slot lock is always taken over from the dead. When a holder of a robust mutex dies, the kernel hands the lock on. Two things
//! leave a robust mutex locked by nobody: a holder that the kernel cannot see, because it was made by a bare `clone` without a list
//! of robust locks, and a file that is restored from a copy made in the middle of an operation. Others then get
//! [`SegmentError::LockStuck`](crate::SegmentError::LockStuck) until the last process has detached; the next one to attach,
//! `limitctl recover` for instance, recreates the lock.
//!
//! # Time
//!
//! Limits count on a clock that includes suspended time and never runs backwards within a shard. Windows aligned to UTC
//! or the calendar read the wall clock: setting it forward ends a window early, setting it back grants nothing.
