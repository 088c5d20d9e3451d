//! Two copies of the library in one process, each with statics of its own, are two participants.
#![cfg(target_env = "gnu")]
#![allow(unsafe_code, reason = "loads libraries and calls them")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::scene::process::{TIMEOUT, eventually, in_own_process};
use shmlimit::{Declaration, Limit, Segment, SetDeclaration};

/// The example `second_copy`, next to the directory of this test's own binary.
fn library() -> PathBuf {
    let own = std::env::current_exe().expect("a path of the test binary");
    let deps = own.parent().expect("a directory");
    let library = deps.with_file_name("examples").join("libsecond_copy.so");
    assert!(
        library.exists(),
        "`cargo test` builds the example, a single `--test` does not: cargo build --example second_copy"
    );
    library
}

type Open = unsafe extern "C" fn(*const c_char) -> *mut c_void;
type TryTake = unsafe extern "C" fn(*mut c_void) -> c_int;
type Close = unsafe extern "C" fn(*mut c_void);

/// A loaded copy of the library, and a segment that it has opened.
struct Copy {
    try_take: TryTake,
    close: Close,
    holder: *mut c_void,
}

impl Copy {
    /// Loads the library from a file from which no other copy was loaded.
    fn load(file: &Path, segment: &Path) -> Self {
        fs::copy(library(), file).expect("a copy");
        let text = |path: &Path| CString::new(path.as_os_str().as_bytes()).expect("no zero in it");
        // SAFETY: the library's initialisers are those of Rust's standard library.
        let handle = unsafe { libc::dlopen(text(file).as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "cannot load {}", file.display());
        let symbol = |name: &std::ffi::CStr| {
            // SAFETY: the handle was just opened and is never closed.
            let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
            assert!(!address.is_null(), "{name:?} is not there");
            address
        };
        // SAFETY: the function has this type in tests/second_copy/lib.rs.
        let open = unsafe { std::mem::transmute::<*mut c_void, Open>(symbol(c"holder_open")) };
        // SAFETY: a terminated string.
        let holder = unsafe { open(text(segment).as_ptr()) };
        assert!(
            !holder.is_null(),
            "the example cannot open the segment; if it is of an earlier build: cargo build --example second_copy"
        );
        Self {
            // SAFETY: as above.
            try_take: unsafe { std::mem::transmute::<*mut c_void, TryTake>(symbol(c"holder_try_take")) },
            // SAFETY: as above.
            close: unsafe { std::mem::transmute::<*mut c_void, Close>(symbol(c"holder_close")) },
            holder,
        }
    }

    fn try_take(&self) -> bool {
        // SAFETY: the holder is open, and this is the only thread that uses it.
        match unsafe { (self.try_take)(self.holder) } {
            0 => false,
            1 => true,
            failure => panic!("the copy answered {failure}"),
        }
    }

    fn close(self) {
        // SAFETY: as above, and `self` ends here.
        unsafe { (self.close)(self.holder) }
    }
}

/// The second copy must not take the first one's slot for that of an earlier image of the process, and free it.
#[test]
fn two_copies_in_one_process_are_two_participants() {
    let test = "two_copies::two_copies_in_one_process_are_two_participants";
    in_own_process(test, 2 * TIMEOUT, |directory| {
        let path = directory.join("limits");
        let set = SetDeclaration::new("api").add_limit(Limit::concurrency("slots", 1));
        let segment = Segment::create(&path, &Declaration::new().add_set(set)).expect("a segment");
        let first = Copy::load(&directory.join("first.so"), &path);
        assert!(first.try_take());
        let second = Copy::load(&directory.join("second.so"), &path);
        let api = segment.set("api").expect("declared");
        let is_free = || api.request().try_acquire().expect("works").is_admitted();
        for _ in 0..100 {
            assert!(!second.try_take(), "one of one was admitted twice");
            assert!(!is_free(), "one of one was admitted twice");
        }
        let participants = segment.snapshot().expect("a copy").participants;
        assert_eq!(participants.len(), 3);
        assert!(participants.iter().all(|it| it.alive));
        first.close();
        eventually("the second takes what the first gave back", || second.try_take());
        assert!(!is_free());
        second.close();
        assert!(is_free());
        assert_eq!(segment.snapshot().expect("a copy").sets[0].counts.reclaimed, 0);
    });
}
