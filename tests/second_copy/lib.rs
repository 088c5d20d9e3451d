//! A shared library with a copy of shmlimit of its own, like a Python extension. A test loads two of them into one
//! process.
#![allow(unsafe_code, reason = "a library that C could call")]

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;

use shmlimit::{Permit, Segment};

/// An attached segment with one set, and what is held of it.
pub struct Holder {
    segment: Segment,
    held: Option<Permit<'static>>,
}

/// Opens the segment at `path`. Returns null if that fails.
///
/// # Safety
///
/// `path` is a terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holder_open(path: *const c_char) -> *mut Holder {
    // SAFETY: by this function's contract.
    let path = unsafe { CStr::from_ptr(path) };
    match Segment::open(OsStr::from_bytes(path.to_bytes())) {
        Ok(segment) => Box::into_raw(Box::new(Holder { segment, held: None })),
        Err(_) => std::ptr::null_mut(),
    }
}

/// Tries to take what every limit of the first set has by default. Returns 1 if that was admitted, 0 if it was refused,
/// -1 if it failed.
///
/// # Safety
///
/// `holder` was returned by [`holder_open`] and is not closed, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holder_try_take(holder: *mut Holder) -> c_int {
    // SAFETY: by this function's contract.
    let holder = unsafe { &mut *holder };
    let Some(set) = holder.segment.sets().next() else {
        return -1;
    };
    match set.request().try_acquire() {
        Ok(admission) => match admission.into_result() {
            Ok(permit) => {
                holder.held = Some(permit.into_owned());
                1
            }
            Err(_) => 0,
        },
        Err(_) => -1,
    }
}

/// Gives back what is held and detaches.
///
/// # Safety
///
/// The same as for [`holder_try_take`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holder_close(holder: *mut Holder) {
    // SAFETY: by this function's contract the pointer came out of `Box::into_raw`, and is not used again.
    drop(unsafe { Box::from_raw(holder) });
}
