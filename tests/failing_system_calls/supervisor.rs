//! Makes one system call of this process fail, as it would on a system that is short of something.
//!
//! A filter passes every system call to a separate thread, which lets it continue or answers in the kernel's place
//! (seccomp_unotify(2)). A filter cannot be removed, so this is for processes that end soon.
#![allow(unsafe_code, reason = "filters the system calls of this process")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU64, Ordering};
use std::{io, mem, thread};

use libc::{c_long, seccomp_data, seccomp_notif, seccomp_notif_resp, sock_filter, sock_fprog};
use nix::errno::Errno;

/// Calls whose errors do not count: memory for the allocator, and calls that cannot fail in this way.
const LEFT_ALONE: &[c_long] = &[
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_ioctl,
    libc::SYS_mprotect,
    libc::SYS_munmap,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
];

/// Calls that can fail with this error and that the library makes, or that a later version may make.
fn fails_with(errno: Errno) -> &'static [c_long] {
    match errno {
        Errno::ENOSPC => &[
            libc::SYS_openat,
            libc::SYS_fallocate,
            libc::SYS_ftruncate,
            libc::SYS_pwrite64,
            libc::SYS_write,
            libc::SYS_renameat2,
            libc::SYS_fsync,
        ],
        Errno::EMFILE | Errno::ENFILE => &[
            libc::SYS_openat,
            libc::SYS_pidfd_open,
            libc::SYS_eventfd2,
            libc::SYS_memfd_create,
            libc::SYS_dup,
        ],
        Errno::ENOMEM => &[
            libc::SYS_openat,
            libc::SYS_mmap,
            libc::SYS_madvise,
            libc::SYS_clone3,
            libc::SYS_clone,
            libc::SYS_fcntl,
            libc::SYS_statx,
            libc::SYS_fstat,
            libc::SYS_newfstatat,
            libc::SYS_pidfd_open,
            libc::SYS_futex_waitv,
            libc::SYS_renameat2,
            libc::SYS_unlinkat,
            libc::SYS_readlinkat,
        ],
        Errno::EINTR => &[
            libc::SYS_openat,
            libc::SYS_fallocate,
            libc::SYS_ftruncate,
            libc::SYS_read,
            libc::SYS_write,
            libc::SYS_pwrite64,
            libc::SYS_pread64,
            libc::SYS_getrandom,
            libc::SYS_fcntl,
            libc::SYS_futex,
            libc::SYS_futex_waitv,
            libc::SYS_clock_nanosleep,
            libc::SYS_ppoll,
            libc::SYS_fstatfs,
            libc::SYS_fsync,
        ],
        Errno::EPERM => &[
            libc::SYS_openat,
            libc::SYS_fcntl,
            libc::SYS_fchmod,
            libc::SYS_fallocate,
            libc::SYS_ftruncate,
            libc::SYS_mmap,
            libc::SYS_madvise,
            libc::SYS_clone3,
            libc::SYS_lseek,
            libc::SYS_fstatfs,
            libc::SYS_statx,
            libc::SYS_kill,
            libc::SYS_pidfd_open,
            libc::SYS_futex_waitv,
            libc::SYS_renameat2,
            libc::SYS_unlinkat,
            libc::SYS_readlinkat,
            libc::SYS_getrandom,
            libc::SYS_prctl,
        ],
        other => panic!("nothing is said to fail with {other}"),
    }
}

/// Calls that have other names on some processors.
#[cfg(target_arch = "x86_64")]
const OLDER_NAMES: &[(c_long, c_long)] = &[
    (libc::SYS_open, libc::SYS_openat),
    (libc::SYS_stat, libc::SYS_newfstatat),
    (libc::SYS_lstat, libc::SYS_newfstatat),
    (libc::SYS_rename, libc::SYS_renameat2),
    (libc::SYS_unlink, libc::SYS_unlinkat),
    (libc::SYS_readlink, libc::SYS_readlinkat),
    (libc::SYS_chmod, libc::SYS_fchmod),
    (libc::SYS_poll, libc::SYS_ppoll),
    (libc::SYS_nanosleep, libc::SYS_clock_nanosleep),
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER_NAMES: &[(c_long, c_long)] = &[];

#[derive(Debug)]
struct Plan {
    errno: Errno,
    /// Which of the calls that can fail with the error is to fail.
    number: u64,
    /// Whether the supervisor has reached its loop, in which it allocates nothing: a call that is waiting for its
    /// answer may hold the allocator's lock.
    is_supervised: AtomicBool,
    listener: AtomicI32,
    is_armed: AtomicBool,
    seen: AtomicU64,
    /// The call that failed; -1 if none has yet.
    failed: AtomicI64,
}

/// Performs `operate` while one of its system calls fails: the `number`th, counting from 1, of those that can fail with
/// `errno`. Returns its result and the call that failed, if it made that many.
pub fn with_a_failing_call<T>(errno: Errno, number: u64, operate: impl FnOnce() -> T) -> (T, Option<c_long>) {
    let plan = Arc::new(Plan {
        errno,
        number,
        is_supervised: AtomicBool::new(false),
        listener: AtomicI32::new(-1),
        is_armed: AtomicBool::new(false),
        seen: AtomicU64::new(0),
        failed: AtomicI64::new(-1),
    });
    // The supervisor starts before the filter is in place, so the filter does not apply to it.
    thread::spawn({
        let plan = Arc::clone(&plan);
        move || plan.supervise()
    });
    while !plan.is_supervised.load(Ordering::SeqCst) {
        thread::yield_now();
    }
    let listener = install_filter().expect("a filter of system calls");
    plan.listener.store(listener, Ordering::SeqCst);
    plan.is_armed.store(true, Ordering::SeqCst);
    let outcome = operate();
    plan.is_armed.store(false, Ordering::SeqCst);
    let failed = plan.failed.load(Ordering::SeqCst);
    (outcome, (failed >= 0).then_some(failed as c_long))
}

impl Plan {
    fn supervise(&self) {
        self.is_supervised.store(true, Ordering::SeqCst);
        let listener = loop {
            match self.listener.load(Ordering::SeqCst) {
                -1 => thread::yield_now(),
                listener => break listener,
            }
        };
        loop {
            // SAFETY: all zeros is a valid value of the type, and what the kernel requires.
            let mut call: seccomp_notif = unsafe { mem::zeroed() };
            // SAFETY: the kernel fills in this one structure, which outlives the call.
            if unsafe { libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_RECV, &mut call) } != 0 {
                continue;
            }
            let fails = self.fails(&call.data);
            let mut answer = seccomp_notif_resp {
                id: call.id,
                val: 0,
                error: if fails { -(self.errno as i32) } else { 0 },
                flags: if fails {
                    0
                } else {
                    libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32
                },
            };
            // SAFETY: the kernel reads this one structure, which outlives the call. If the thread that made the call is
            // gone by now, it needs no answer.
            unsafe { libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_SEND, &mut answer) };
        }
    }

    fn fails(&self, call: &seccomp_data) -> bool {
        if !self.is_armed.load(Ordering::SeqCst) || !can_fail(call, self.errno) {
            return false;
        }
        let fails = self.seen.fetch_add(1, Ordering::SeqCst) + 1 == self.number;
        if fails {
            self.failed.store(i64::from(call.nr), Ordering::SeqCst);
        }
        fails
    }
}

fn can_fail(call: &seccomp_data, errno: Errno) -> bool {
    let number = c_long::from(call.nr);
    let number = OLDER_NAMES
        .iter()
        .find(|(older, _)| *older == number)
        .map_or(number, |(_, name)| *name);
    // Memory that the allocator asks for, or that the standard library asks for to start a thread: without it, a
    // program ends. The C library first asks for a thread's stack without any access to it.
    let is_for_the_allocator = number == libc::SYS_mmap && {
        let (access, flags) = (call.args[2] as i32, call.args[3] as i32);
        flags & libc::MAP_ANONYMOUS != 0 && (flags & libc::MAP_STACK == 0 || access != libc::PROT_NONE)
    };
    // Memory that the allocator gives back.
    let is_given_back = number == libc::SYS_madvise && call.args[2] as i32 == libc::MADV_DONTNEED;
    // Waking is never interrupted.
    let is_a_wake = number == libc::SYS_futex
        && ![libc::FUTEX_WAIT, libc::FUTEX_WAIT_BITSET]
            .contains(&(call.args[1] as i32 & libc::FUTEX_CMD_MASK));
    fails_with(errno).contains(&number) && !is_for_the_allocator && !is_given_back && !is_a_wake
}

/// Makes every system call of this thread, and of those that it starts, wait for an answer on the descriptor.
fn install_filter() -> io::Result<i32> {
    const NUMBER: u32 = mem::offset_of!(seccomp_data, nr) as u32;
    let step = |code: u32, jt: u8, jf: u8, k: u32| sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let mut program = vec![step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, NUMBER)];
    for number in LEFT_ALONE {
        program.push(step(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            *number as u32,
        ));
        program.push(step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW));
    }
    program.push(step(
        libc::BPF_RET | libc::BPF_K,
        0,
        0,
        libc::SECCOMP_RET_USER_NOTIF,
    ));
    let filter = sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the call takes nothing but numbers.
    Errno::result(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: the filter and its program outlive the call, which copies them.
    let listener = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &filter,
        )
    };
    Ok(Errno::result(listener)? as i32)
}
