//! What to know before relying on it.
//!
//! # Trust
//!
//! Everyone who may write a segment is one trust domain: anyone who can write the file can make every process that uses it wait
//! for ever, or admit what should be refused, or crash it, by making the file shorter. Where its locks are declared to be
//! robust mutexes, the links between the locks that a thread holds lie in the file as well, and a writer can make others store
//! anywhere in their memory. So a segment is created with mode 0600 unless the declaration says otherwise, and a symbolic link in its
//! place is refused. A file that anyone may write, or that another user could have planted, is refused unless
//! [`OpenOptions::trust_any_owner`](crate::OpenOptions::trust_any_owner) is set.
//!
//! Against damage, as opposed to malice, every value is checked before it is used. The
//! [layout specification](crate::documentation::layout_specification) says how.
//!
//! # Containers and namespaces
//!
//! The locks of a segment are one of two implementations of a process-shared robust mutex, as it declares
//! ([`LockKind`](crate::LockKind)): ours, the slot lock, or pthread's. With either a process that dies with the lock leaves it to the
//! next, which learns of the death and undoes what was half done.
//!
//! With **slot locks** (`lock = "slot"`, the default) processes of any PID namespaces and C libraries use one segment: containers that
//! share a directory, a host and its containers. The word of a lock names the process that holds it by its place in the segment.
//!
//! - The kernel says nothing when a process dies with the lock. The process that waits for it asks whether the owner lives, at once
//!   and every 5 ms from then on, and takes over: see the [figures](#locks-and-deaths).
//! - A process of the same PID namespace is seen to be dead in `/proc` as soon as the kernel ends it. One of another namespace, or of
//!   another user where `/proc` is mounted with `hidepid`, counts as alive until the kernel has taken its memory apart, and others may
//!   get `LockStuck` until then.
//! - A thread that ends with the lock, without its process, keeps it for as long as the process lives: for others the lock is
//!   stuck. No safe code ends a thread there; `pthread_cancel` from another language does, and so does a panic that aborts no
//!   process in a callback of another library that it crosses.
//! - Ids of processes of another namespace are shown with it: `pid 7 in namespace 4026532201`, which is the inode of
//!   `/proc/PID/ns/pid`. No process is taken for dead because of its id.
//!
//! Of pthread's **robust mutex** (`lock = "robust"`) the kernel names the holder by a thread id, which means something else in
//! another PID namespace: a process killed there can make a lock that is held here look abandoned. So processes of two PID
//! namespaces cannot use such a segment at the same time; the second gets
//! [`OpenError::ForeignNamespace`](crate::OpenError::ForeignNamespace). Share the namespace: `--pid=host` or
//! `--pid=container:...` with Docker, `shareProcessNamespace: true` in a Kubernetes pod. The same holds for a child that is
//! forked after its parent called `unshare`: it gets the error from each operation, although it inherited its handles. All
//! processes must also have the same C library (glibc or musl); otherwise
//! [`OpenError::Incompatible`](crate::OpenError::Incompatible).
//!
//! With either kind what waits in a queue is not notified of deaths in another PID namespace, and looks every 50 ms; and what a dead
//! process held, other than the lock, is given back once the kernel has taken its memory apart.
//!
//! What a process is not told is not taken for different: a unit of systemd with `ProcSubset=pid`, which hides the id of the boot,
//! shares segments with other units. A process without any `/proc` cannot tell its namespaces, and gets
//! [`OpenError::ForeignNamespace`](crate::OpenError::ForeignNamespace), which says so, while others use the segment.
//!
//! In either case the processes share one **time namespace**, because its clock is the segment's; others get
//! `ForeignNamespace`, too. (Docker and Kubernetes make none.) A process that moves itself to another one with `setns` must open
//! its segments after that. And they must agree on the word size and the layout; otherwise `Incompatible`.
//!
//! ## Locks and deaths
//!
//! | | slot lock, `"slot"` | robust mutex, `"robust"` |
//! |---|---|---|
//! | processes | of any PID namespaces and C libraries | of one PID namespace and one C library |
//! | a death with the lock is noticed by one that waits | by asking: after 6 ms (median), 15 ms (of a hundred, the slowest but one), however much memory it had | as the kernel ends the process |
//! | the same in another PID namespace | when its memory has been given back | there is none |
//! | a thread that ends with the lock | its process keeps it | as the kernel ends the thread |
//! | a process that is stopped with the lock | keeps it | keeps it |
//! | a damaged or hostile file | limits and waits | also stores outside of the segment |
//! | a file that was copied or kept with a lock held | the next process takes it over | all locks are made anew, once no process is attached |
//!
//! Keep slot locks unless all processes are of one namespace and one C library, and one of two things is more to you than that:
//! that a waiter goes on within a tenth of a millisecond of a death, or that threads are ended by code that is not yours. An operation
//! takes about as long with either.
//!
//! Measured on two busy processors of x86-64, Linux 6.18; `tests/processes/slot_lock.rs` prints the times of a death on any machine.
//!
//! How long the kernel takes to give memory back, on the same machine, idle: 0.16 s for each GiB that was written in pages of 4 KiB,
//! 0.06 s for each GiB of shared memory that is mapped, less than 0.01 s for each GiB in huge pages; three to four times as long on
//! busy processors. So of 16, 32 and 64 GiB that were written it takes 2.6, 5 and 10 s. That is more than the
//! [lock timeout](crate::OpenOptions::lock_timeout) of 2 s from 12 GiB on: where a process of another PID namespace dies with the lock
//! and had so much, some of those who wait get `LockStuck`. In the same namespace it is seen to be past its end within a
//! millisecond. `cargo bench --bench recovery` measures both.
//!
//! # File systems
//!
//! Use `/dev/shm` (tmpfs) or a local disk. Network and cluster file systems and FUSE are refused: a mapping there is not
//! shared by all who can open the file. So are ZFS, bcachefs and NILFS, where a change of the file may need space and fail;
//! on btrfs a segment is exempted from copy-on-write when it is created, and a copy of it without the exemption is refused.
//! On a disk an operation may have to wait while its page is written back, and with it every process that waits for the
//! lock: where latency matters, `/dev/shm` is the place. A segment on tmpfs is gone after a reboot, but for its
//! [checkpoint](crate::Checkpoint) where one is declared. One on a disk starts cold: locks and
//! holders of the old boot are void, limits go on from the wall-clock time that passed. After a power failure the pages
//! of the file may be of different ages; run `limitctl recover`, or create a new segment.
//!
//! A container's own files (`/tmp`, `/run`, `/var`, its home directories) are on an overlay, and there is no segment there: the lock by
//! which a process shows that it lives would end with its descriptor, so that all live processes counted as dead. Creating and opening
//! one is [`OpenError::LocksNotKept`](crate::OpenError::LocksNotKept), and so it is on whatever file system does the same, which each
//! process finds out by trying as it joins. Put it in `/dev/shm`, or in a volume: a directory of the host or a tmpfs that is mounted into
//! the container. `limitctl selftest DIRECTORY` tries a directory out. What lies on an overlay all the same, because it was copied
//! there, can be looked at and is removed by force only.
//!
//! Programs that remove what was not used for long, such as systemd-tmpfiles with an age, go by the times of a file, which stores
//! into a mapping leave alone on tmpfs. So a process that uses a segment sets them, about once a minute: with an operation that takes
//! something, and while one waits. A process that is attached and does nothing does not. Where a segment may rest for longer than such
//! a program allows, leave it out (`x /dev/shm/api.limits` in `tmpfiles.d`).
//!
//! # Who may only read
//!
//! Mode 0644 or 0640 lets others look: monitors, exporters. They cannot change a word, but the system lets whoever may read a file take
//! locks for reading on it. Such a lock keeps no dead process alive, and those that are attached go on as ever. But it can keep others
//! from opening the segment, or from writing its checkpoint, for as long as it is there: they get
//! [`OpenError::LockedByReader`](crate::OpenError::LockedByReader), which names its process, as `limitctl doctor` does. Nothing of this
//! library takes such a lock there. Programs that lock all of a file before they copy it do; so give the right to read to those alone
//! who may delay a start.
//!
//! # Space
//!
//! The file's space is allocated at creation, so a full file system is an error then and not a bus error later. What the kernel
//! would answer by a signal is asked before: the largest file size of the process (`ulimit -f`), and for a file in memory what its
//! memory cgroup and those above it have left; both are [`OpenError::NoSpace`](crate::OpenError::NoSpace). A cgroup of which the
//! process cannot see the files, or that others fill in the same moment, still has the kernel kill. A process that is ended while it
//! creates may leave a file of a reserved name, which the next one that creates the segment removes; `limitctl` defers the signals of
//! terminals and service managers until it is done. But do
//! not truncate a segment: a process that touches a page beyond the end of the file gets SIGBUS. To get rid of one, use
//! `limitctl remove`, which tells attached processes at once. Copy one
//! with `cp --sparse=never --reflink=never`: a file with holes is refused ([`OpenError::Sparse`](crate::OpenError::Sparse)), and one
//! that shares its blocks with another may need space for a change.
//!
//! # Files that are deleted, moved or replaced
//!
//! A segment whose file is deleted (`rm`, `mv` of another over it, `RemoveIPC` of systemd) is retired by the first process
//! that notices: its handles, in all processes, answer [`SegmentError::Removed`](crate::SegmentError::Removed) from then on, so that the
//! limit is not counted in two files. No thread watches for it, and a process that does nothing is not woken: an operation
//! that takes something looks first, by two system calls, unless this process has looked within a second; so may an
//! operation that failed. What waits looks once a second. For up to a second after the deletion the former file admits
//! what it has left. With the feature `tracing` the first error in a process is an event as well.
//!
//! A file that is moved to another path stays in use by all who have it open; new processes find it by the new path. Where
//! another segment is then created at the former path, processes that opened the file by that path get `Removed`, and those that
//! opened it by the new one do not. A path that leads nowhere, or to a file that is no segment, ends nothing: no process can
//! count in another file. Bind mounts and hard links are seen through: a file is deleted when it has no name left anywhere.
//! A process whose descriptors were closed by other code cannot ask the file; it gets the answer from the others that have it
//! open, or finds another segment at the path.
//!
//! Permits that are out are settled and released as ever. For what is to come,
//! [`Segment::successor`](crate::Segment::successor) is what is at the path by then. The layer for HTTP services asks it by
//! itself.
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
//! A child finds the file by `/proc/self/fd`, so also after the file or its directory was renamed, after something was mounted over it
//! and after `chroot`. Where there is no `/proc`, or something closed the descriptor, it needs the path, and where that leads
//! elsewhere it gets [`OpenError::Moved`](crate::OpenError::Moved) from each operation. A child never waits for a thread of its parent
//! that was in the middle of something at the fork.
//!
//! A process that moves itself to another time namespace, by `setns`, must not go on using what it opened before.
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
//! command that has it go on.
//!
//! Giving back does not depend on the lock. Calls without a result (a release, a drop, a cancelled wait) wait for it
//! for 10 ms at most: then they leave a mark, and the process that has the lock next finishes the return, the stopped process itself
//! if it goes on. Until then others find it held. A return that is finished so is no sample for an adaptive limit,
//! unless the work failed. Calls with a result ([`settle`](crate::Permit::settle), cancelling
//! a [reservation](crate::Reservation::cancel)) wait and get `LockStuck`; they have changed nothing then and can
//! be repeated. A lease is renewed without the lock.
//!
//! # Refunds out of order
//!
//! Under GCRA, token bucket and leaky bucket a refund gives back no more than what time has not replenished since the
//! reservation. A permit does not learn of refunds of others: where an earlier one is settled to less, time replenishes a later one sooner than its permit knows, and
//! settled to less it may be given back what was replenished already. A window may then see more than its bound, by as much
//! as was refunded ahead of that permit. Reserve close to what is used where the bound must hold to the unit, or count in a
//! window: there a refund comes out of what the window counted of that very reservation, in whatever order.
//!
//! # Waiting in the queue
//!
//! [`LimitSet::acquire`](crate::LimitSet::acquire) and [`acquire_async`](crate::LimitSet::acquire_async) wait in one queue
//! for each set, and only its first is served: a request that needs much holds up those behind it that need little. Put
//! into one set what should wait together. [`try_acquire`](crate::LimitSet::try_acquire) is refused while others wait.
//!
//! Two threads that each wait for what the other holds wait for ever. Take what belongs together in one request, or
//! give a timeout.
//!
//! What a waiter was granted and did not come for, because it was cancelled or killed in that moment, is given back as
//! far as it still [counts](crate::Algorithm#what-comes-back): concurrency always, and what a rate or calls limit was charged
//! unless that says `refund = false`.
//!
//! The first future of a process that has to wait starts a thread, `shmlimit`, which also renews leases and gives back
//! abandoned permits and unused batches. It never waits for a lock, so a segment whose lock is stuck does not keep it from others.
//! The first thread or future that waits for longer than 2 ms starts another, `shmlimit-deaths`, which watches the
//! processes that are waited for: of up to 64 processes for each waiting thread, and as many for all futures
//! of the process in one segment. Where there are more, and before Linux 5.3, waiters find out by looking every 50 ms.
//! Both threads block all signals, end when there has been nothing for them to do for 10 seconds, and do not exist in a
//! forked child until it needs them.
//!
//! A process that is stopped while it is first in the queue, or whose event loop does not turn, holds up those behind it
//! for one grace ([`collect_within`](crate::SetDeclaration::collect_within), a second unless declared), or until its own
//! request times out, if that is sooner. What it was granted and does not collect is taken back then, rates included, and
//! its other requests are passed over. With several such processes before it, a request waits for one grace for each.
//! The one that waits looks once a second, so it may notice the end of a grace up to a second late.
//! The requests that were passed over keep their places, and wait on when their process looks again. What a process held before it was stopped it keeps;
//! a lease ends that. Where no other request waits, a grant stays until another request comes.
//!
//! # Keys
//!
//! The table of a [keyed set](crate::SetDeclaration::keyed) has a fixed size. Any
//! [`max_keys`](crate::Keyed::new) keys find room in it (but for one table in a million), and as rows fall unevenly it
//! has somewhat more of them; how many keys fit beyond that is up to their hashes. A row takes 64 bytes where
//! the limits have two words of state together (GCRA, a token bucket and a leaky bucket have two each), 128 for up to ten
//! and so on, and two for its tag, and 48 more where the keys are [kept for people](crate::Keyed::store_keys); divided by
//! the share of rows that are filled when the table is full: 84 to 88 % for 100,000 keys and more, and less for small
//! tables. All of it is allocated when the segment is created.
//!
//! Where the set declares [tiers](crate::Tier), what a key has used migrates when its tier changes, and each change
//! rounds in favour of the limit; what was reserved before stays charged, whatever its permit settles. A window whose
//! length differs by tier may remember usage for longer after each change, up to the longer window from then on, so a
//! full key that changes between them more often than that stays full. A key that was [assigned](crate::Key::assign) to
//! another tier than `default` keeps its row like one that has something used. Where `when_full` evicts, it may lose
//! both; where a request names the tier of its key each time, nothing is lost with the row. Tiers change neither
//! networks, nor adaptive or unlimited limits, nor those with [credit](crate::Limit::credit).
//!
//! Where keys can have [capacities of their own](crate::Keyed::overrides), a row has a word more for each limit that such
//! a capacity makes sense for: with one GCRA limit it takes 128 bytes in place of 64, with one concurrency limit 64 as
//! before, and with both of them 128 as before. Deciding on a key that has such a capacity takes longer, because its
//! rule is worked out anew each time. Each change rounds in favour of the limit. What a key reserved before a change
//! stays charged, whatever its permit settles. A key that has such a capacity keeps its
//! row like one that is assigned to a tier, and loses both to `when_full` alike: with `evict_least_used` only where no other
//! row of its two places may be evicted, and with `evict_oldest` by its age. One key may have no more concurrency, added
//! up over its limits, than its shard has holds, or than was declared. Where a concurrency limit is raised for many keys,
//! declare [`holds`](crate::SetDeclaration::holds) for what they may hold together. A capacity that a later
//! declaration cannot count with exactly is not in force under that. `RateLimit-Policy` of the feature `tower` goes on
//! saying what is declared. A set has such keys or tiers, and not both.
//!
//! A row whose limits are all replenished and of which nothing is held or waited for says nothing: another key may have
//! it from that instant on. Where there is none in either of the two places of a new key, that key is refused
//! ([`TableFull`](crate::RefusalReason::TableFull)), and no limited key regains anything: clients that can invent keys
//! can then keep new ones out. With [`WhenFull::EvictLeastUsed`](crate::WhenFull::EvictLeastUsed) the new key takes the
//! row, among the 64 of its two places, whose key has used the smallest share of its limits. What that key had used is
//! forgotten; keys that are limited, held or waited for stay, and where there are no others the new key is refused. So a
//! flood of new keys pushes out one another and keys that are hardly used. A key that stops just short of its limit can
//! be pushed out and start again: choose a table of more rows than there are such keys. With
//! [`WhenFull::EvictOldest`](crate::WhenFull::EvictOldest) it takes the row that was used the longest ago, limited or
//! not: clients that can invent keys can then replenish others, and themselves. All are counted. Keys that anyone
//! can make up are best checked before they are limited.
//!
//! Keys are distinguished by 128 bits of a hash with a random seed of the segment's own. Two keys that share them would
//! share their limits: among a thousand million keys that is less likely than one in 10^20. Of a key no more than its
//! first 40 bytes are kept, and nothing with `store_keys(false)`; every user with read permission for the file can read them.
//!
//! The table is divided into shards, each with its lock, its [holds](crate::SetDeclaration::holds) and its
//! [tickets](crate::SetDeclaration::waiters), which are declared for one shard: keys that fall into one shard share them,
//! and a shard may run out of them while others have plenty. A [`check_many`](crate::LimitSet::check_many) takes the locks
//! of its shards one after the other: its keys are decided at one instant of the clock, but not in one transaction, and a
//! process that is killed in the middle has charged some of them.
//!
//! # Shadow
//!
//! A limit in [shadow](crate::Limit::shadow) charges what it admits and lets through what it would have refused, without
//! charging that: so it goes on deciding as though it bit, and
//! [`would_refuse`](crate::LimitCounts::would_refuse) is what it would have refused of the traffic as it came. Clients that
//! are really refused come back later, or not at all; a limit in shadow cannot know which. It uses up rows, not refusals.
//!
//! # Live changes
//!
//! [`Segment::apply`](crate::Segment::apply) is in force for the next operation of every process, whichever that is. The
//! memory of a segment cannot change: kinds, algorithms, units, the number and the order of limits and sets, keys, holds,
//! waiters and the [entries](crate::Limit::entries) of sliding windows need a new one. Each set changes as a whole and by itself, part by part as its shards are next used, so of
//! two sets that change, one may be asked by its new limits and the other by its old ones.
//!
//! A bucket keeps what it has left, at most its new burst, and fills at the new rate from then on; a window keeps what it
//! has counted. Who lowers a limit below what is used or held takes nothing back: there is no more until there is room. A
//! permit from before a change settles by what is in force when it settles: usage above what was reserved is charged to the
//! new limit, and of what was not used no more comes back than can still be missing by the new rate, which may be less than
//! all of it. Holds from before a change have the whole time of the new lease from the change on.
//!
//! Workers of two releases that are started in turn with [`OnMismatch::Apply`](crate::OnMismatch::Apply), and without
//! [versions](crate::Declaration::version), undo each other's changes. With versions only the newer declaration is in force,
//! also for the workers of the former release. What an operator has changed stays through starts of the same version, and is
//! lost with the next. A segment that is recreated begins with nothing counted.
//!
//! # Adaptive capacities
//!
//! The estimate of an [adaptive](crate::Limit::adaptive) limit is of the set, or the key, and of all processes: one that is
//! slower than the others, or that never says that work was
//! [dropped](crate::Permit::release_failed), moves it for all. It learns when permits are given back, from how long they
//! were held; what a dead process held tells nothing.
//!
//! # Leases
//!
//! A lease that has run out is ended by the first request that needs what it covers, so a late holder may continue where
//! no request does. What it does to the outside after its lease is not stopped by anything here: have the outside compare
//! [fencing numbers](crate::Permit::fencing_number). They rise over all lives of a segment: also where it is created anew, restored
//! from a checkpoint or copied, as long as the wall clock is right and fewer than a million permits a second were given on average.
//!
//! Leases may be changed while they run. Those that are renewed [in the background](crate::Permit::heartbeat_in_background) go by the
//! lease in force; who renews by hand has to do so in time for it.
//!
//! # Death is noticed by need
//!
//! There is no daemon. What a dead process held is given back by a process that is refused because of it, which looks at most
//! once a millisecond and for at most a twentieth of its time; by a waiter, which the kernel notifies of
//! the death (Linux 5.3) or which looks once a second; or by `limitctl recover`. A process that hangs but lives keeps
//! what it holds until its lease runs out.
//!
//! A charge may stand although its caller died before it learned of it. The reverse does not happen.
//!
//! # Processes that close all descriptors
//!
//! Daemonising libraries close descriptors that they do not know. A process stays alive for the others all the same,
//! because its token is a lock that needs no descriptor. To see who else is alive it opens the file again by its path;
//! where that is gone it asks the process table for those of its own PID namespace, and where `/proc` is hidden too, it takes no
//! one for dead.
//!
//! # Locks without an owner
//!
//! A slot lock is always taken over from the dead. A holder of a robust mutex that dies is seen by the kernel, which hands the lock on. One that the kernel cannot see, because it
//! was made by a bare `clone` without a list of robust locks, leaves the lock taken, and so does a file that is restored from a copy
//! made in the middle of an operation. Others then get [`SegmentError::LockStuck`](crate::SegmentError::LockStuck) until the last process
//! has detached; the next one to attach, `limitctl recover` for instance, makes the lock anew.
//!
//! # Time
//!
//! Limits count on a clock that includes suspended time and never runs backwards within a set. Windows aligned to UTC or
//! the calendar read the wall clock: setting it forward turns a window early, setting it back grants nothing.
