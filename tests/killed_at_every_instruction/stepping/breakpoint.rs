//! A breakpoint of the processor for a stopped, traced thread. Without breakpoints, the thread is stepped.

use nix::unistd::Pid;

#[cfg(target_arch = "x86_64")]
mod registers {
    use std::mem::offset_of;

    use nix::libc;
    use nix::sys::ptrace;
    use nix::unistd::Pid;

    const ADDRESS: usize = offset_of!(libc::user, u_debugreg);
    const CONTROL: usize = ADDRESS + 7 * 8;

    /// Breaks for this thread where the instruction at the first address is executed.
    const ENABLED: i64 = 1;

    pub fn set(pid: Pid, address: u64) -> bool {
        let offset = |offset: usize| offset as *mut libc::c_void;
        ptrace::write_user(pid, offset(ADDRESS), address.cast_signed())
            .and_then(|()| ptrace::write_user(pid, offset(CONTROL), ENABLED))
            .is_ok()
    }

    /// Breaks after a store to eight bytes, at each of the first four addresses.
    pub fn watch(pid: Pid, addresses: &[u64]) -> bool {
        let watched = |index: usize| 1 << (2 * index) | 0b1001 << (16 + 4 * index);
        let mut control = 0;
        for (index, address) in addresses.iter().take(4).enumerate() {
            let offset = (ADDRESS + 8 * index) as *mut libc::c_void;
            if ptrace::write_user(pid, offset, address.cast_signed()).is_err() {
                return false;
            }
            control |= watched(index);
        }
        ptrace::write_user(pid, CONTROL as *mut libc::c_void, control).is_ok()
    }

    pub fn go_on_at(pid: Pid, address: u64) {
        let offset = offset_of!(libc::user, regs) + offset_of!(libc::user_regs_struct, rip);
        let written = ptrace::write_user(pid, offset as *mut libc::c_void, address.cast_signed());
        written.expect("a stopped child");
    }

    pub fn clear(pid: Pid) {
        ptrace::write_user(pid, CONTROL as *mut libc::c_void, 0).expect("was set");
    }

    pub fn next_instruction(pid: Pid) -> u64 {
        let offset = offset_of!(libc::user, regs) + offset_of!(libc::user_regs_struct, rip);
        let address = ptrace::read_user(pid, offset as *mut libc::c_void);
        address.expect("a stopped child").cast_unsigned()
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod registers {
    use nix::unistd::Pid;

    pub fn set(_: Pid, _: u64) -> bool {
        false
    }

    pub fn watch(_: Pid, _: &[u64]) -> bool {
        false
    }

    pub fn go_on_at(_: Pid, _: u64) {}

    pub fn clear(_: Pid) {}

    pub fn next_instruction(_: Pid) -> u64 {
        0
    }
}

/// Makes a thread stop before it executes what is at an address; returns false if that is not possible.
pub fn set(pid: Pid, address: u64) -> bool {
    registers::set(pid, address)
}

/// Makes a thread stop after an instruction that stores to the eight bytes at one of the addresses; returns false if
/// that is not possible.
pub fn watch(pid: Pid, addresses: &[u64]) -> bool {
    registers::watch(pid, addresses)
}

/// Makes a stopped thread go on with the instruction at an address.
pub fn go_on_at(pid: Pid, address: u64) {
    registers::go_on_at(pid, address);
}

/// Removes the breakpoints.
pub fn clear(pid: Pid) {
    registers::clear(pid);
}

/// The address of the next instruction of a stopped thread; zero if the processor's breakpoints are not supported.
pub fn next_instruction(pid: Pid) -> u64 {
    registers::next_instruction(pid)
}
