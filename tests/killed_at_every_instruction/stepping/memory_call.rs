//! System calls by which an allocator gets memory and gives it back: one run makes more of them than another, depending
//! on the layout of what the forking process has allocated, and no other process sees any of it.

use nix::unistd::Pid;

#[cfg(target_arch = "x86_64")]
mod registers {
    use std::mem::offset_of;

    use nix::libc;
    use nix::sys::ptrace;
    use nix::unistd::Pid;

    pub fn is_at_memory_call(pid: Pid) -> bool {
        let read = |register: usize| {
            let offset = offset_of!(libc::user, regs) + register;
            ptrace::read_user(pid, offset as *mut libc::c_void).expect("a stopped child")
        };
        match read(offset_of!(libc::user_regs_struct, orig_rax)) {
            libc::SYS_brk | libc::SYS_madvise | libc::SYS_mprotect | libc::SYS_mremap | libc::SYS_munmap => {
                true
            }
            libc::SYS_mmap => {
                read(offset_of!(libc::user_regs_struct, r10)) & i64::from(libc::MAP_ANONYMOUS) != 0
            }
            _ => false,
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod registers {
    use nix::unistd::Pid;

    pub fn is_at_memory_call(_: Pid) -> bool {
        false
    }
}

/// Whether a thread that has stopped before or after a system call is at one of these. If the registers are not known,
/// none counts as one.
pub fn is_at_memory_call(pid: Pid) -> bool {
    registers::is_at_memory_call(pid)
}
