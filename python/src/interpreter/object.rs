//! The objects that every decision makes: each in one allocation, which later objects reuse.
//!
//! Such a class derives from an ordinary pyo3 class without fields, which has the methods and attributes that not every
//! decision uses. That base has no instances of its own.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use once_cell::race::OnceBox;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};
use pyo3::{Borrowed, PyTypeInfo, ffi};

use crate::interpreter::call;
use crate::interpreter::log;
use crate::interpreter::once::once;

/// The content of an object of such a class.
pub trait Content: Send + Sized + 'static {
    /// The base class, with its methods.
    type Methods: PyTypeInfo;
    /// The full name of the class.
    const NAME: &'static CStr;
    const DOC: &'static CStr;
    /// The base's static method that makes an object when the class is called, if it may be called.
    const CONSTRUCTOR: Option<&'static str> = None;

    /// Where the class and unused objects are kept.
    fn class() -> &'static Class;

    /// The methods that every decision calls.
    fn methods() -> Vec<ffi::PyMethodDef> {
        Vec::new()
    }

    /// The object's truth value.
    fn is_true(&self) -> bool;

    /// Called before [`end`](Self::end): returns a warning if the program lost something by dropping its last
    /// reference.
    #[inline]
    fn lose(&self) -> Option<String> {
        None
    }

    /// Finalizes the content when nothing refers to the object any more.
    fn end(self, py: Python<'_>);
}

/// How many unused objects of a class are kept.
const MAX_UNUSED: usize = 32;

/// A class, and the memory of objects that are no longer used.
pub struct Class {
    class: OnceBox<Py<PyType>>,
    unused: [Cell<*mut ffi::PyObject>; MAX_UNUSED],
    unused_count: Cell<usize>,
}

// SAFETY: the cells are only read and written by `take` and `keep`, whose callers hold the GIL, and which do not
// release it.
unsafe impl Sync for Class {}
// SAFETY: as above.
unsafe impl Send for Class {}

impl Class {
    pub const fn new() -> Self {
        Self {
            class: OnceBox::new(),
            unused: [const { Cell::new(ptr::null_mut()) }; MAX_UNUSED],
            unused_count: Cell::new(0),
        }
    }

    /// Takes the memory of a former object of this class, if there is any.
    #[inline]
    fn take(&self, _py: Python<'_>) -> Option<*mut ffi::PyObject> {
        let last = self.unused_count.get().checked_sub(1)?;
        let object = self.unused.get(last)?.get();
        self.unused_count.set(last);
        Some(object)
    }

    /// Keeps the memory of an object; returns whether there was room.
    #[inline]
    fn keep(&self, _py: Python<'_>, object: *mut ffi::PyObject) -> bool {
        let count = self.unused_count.get();
        let Some(place) = self.unused.get(count) else {
            return false;
        };
        place.set(object);
        self.unused_count.set(count + 1);
        true
    }
}

/// An object of such a class, as the interpreter lays it out.
#[repr(C)]
struct Object<T> {
    head: ffi::PyObject,
    content: T,
}

/// The class, made on first use.
#[inline]
pub fn class<T: Content>(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    once(&T::class().class, py, || make_class::<T>(py))
}

#[cold]
fn make_class<T: Content>(py: Python<'_>) -> PyResult<Py<PyType>> {
    let base = T::Methods::type_object(py);
    // `Object` relies on the base having no fields of its own.
    let size_of_base: usize = base.getattr("__basicsize__")?.extract()?;
    if size_of_base != size_of::<ffi::PyObject>() {
        return Err(PyTypeError::new_err(format!("{base} has fields of its own")));
    }
    let mut methods = T::methods();
    methods.push(ffi::PyMethodDef::zeroed());
    let slot = |slot, pfunc| ffi::PyType_Slot { slot, pfunc };
    let mut slots = vec![
        slot(ffi::Py_tp_dealloc, dealloc::<T> as *mut c_void),
        slot(ffi::Py_nb_bool, is_true::<T> as *mut c_void),
        // Leaked, because the interpreter refers to them as long as it runs.
        slot(ffi::Py_tp_methods, methods.leak().as_mut_ptr().cast()),
        slot(ffi::Py_tp_doc, T::DOC.as_ptr().cast_mut().cast()),
    ];
    if T::CONSTRUCTOR.is_some() {
        slots.push(slot(ffi::Py_tp_new, construct::<T> as *mut c_void));
    }
    slots.push(ffi::PyType_Slot::default());
    let mut specification = ffi::PyType_Spec {
        name: T::NAME.as_ptr(),
        basicsize: size_of::<Object<T>>() as c_int,
        itemsize: 0,
        // Without `BASETYPE`, no class can derive from it, so each instance is exactly an `Object<T>`.
        flags: ffi::Py_TPFLAGS_DEFAULT as _,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: the thread is attached. The specification and its slots live until the call returns, and everything that
    // they refer to is static or leaked. The functions in the slots have the types that the interpreter calls them
    // with.
    let class = unsafe {
        let class = ffi::PyType_FromSpecWithBases(&raw mut specification, base.as_ptr());
        Bound::from_owned_ptr_or_err(py, class)?
    };
    Ok(class.cast_into::<PyType>()?.unbind())
}

/// Makes an object.
#[inline(always)]
pub fn make<T: Content>(py: Python<'_>, content: T) -> PyResult<Bound<'_, PyAny>> {
    let class = class::<T>(py)?.as_type_ptr();
    // SAFETY: the thread is attached. `take` returns the memory of an object of this class that `dealloc` put there and
    // that nothing else refers to; as an unused object, it lacks only its head and its content.
    let object = unsafe {
        match T::class().take(py) {
            Some(unused) => ffi::PyObject_Init(unused, class),
            None => ffi::PyType_GenericAlloc(class, 0),
        }
    };
    if object.is_null() {
        let error = PyErr::fetch(py);
        content.end(py);
        return Err(error);
    }
    // SAFETY: by its class, the object has the size of an `Object<T>`, and nothing else refers to it yet. The memory of
    // objects is aligned to 16 bytes, which is at least the content's alignment. Writing the content completes the
    // object.
    unsafe {
        const { assert!(align_of::<T>() <= 16) };
        ptr::write(&raw mut (*object.cast::<Object<T>>()).content, content);
        Ok(Bound::from_owned_ptr(py, object))
    }
}

/// The content of an object.
#[inline]
pub fn content<'a, T: Content>(object: &'a Bound<'_, T::Methods>) -> PyResult<&'a T> {
    let class = class::<T>(object.py())?;
    if !ptr::eq(object.as_any().get_type_ptr(), class.as_type_ptr()) {
        return Err(PyTypeError::new_err(format!(
            "{} is not an instance of {class}",
            object.as_any()
        )));
    }
    // SAFETY: an object of exactly this class was made by `make`, and has its content until `dealloc`, which is called
    // when no reference to it is left. Nothing hands out a mutable reference to the content.
    Ok(unsafe { &(*object.as_ptr().cast::<Object<T>>()).content })
}

/// Called by the interpreter when nothing refers to an object any more.
///
/// # Safety
///
/// Must be called as the interpreter calls it: with the GIL, and with an object of the class that is not used
/// afterwards.
unsafe extern "C" fn dealloc<T: Content>(object: *mut ffi::PyObject) {
    // SAFETY: by the caller's contract. The content is moved out once, and no longer used in its old place. The
    // object's reference to its class ends with it.
    unsafe {
        let py = Python::assume_attached();
        ffi::PyObject_GC_UnTrack(object.cast());
        // A panic must not unwind into the interpreter, as below.
        let content = &(*object.cast::<Object<T>>()).content;
        let lost = catch_unwind(AssertUnwindSafe(|| content.lose())).unwrap_or_default();
        if lost.is_some_and(|warning| warn_of(py, object, &warning)) {
            return;
        }
        let class = ffi::Py_TYPE(object);
        let content = ptr::read(&raw const (*object.cast::<Object<T>>()).content);
        // A panic must not unwind into the interpreter. Its message is already printed, and there is nobody else to
        // tell.
        let _ = catch_unwind(AssertUnwindSafe(|| content.end(py)));
        if !T::class().keep(py, object) {
            ffi::PyObject_GC_Del(object.cast());
        }
        ffi::Py_DECREF(class.cast());
    }
}

/// Whether an object begins with the count of its references, as the stable ABI lays it out: its head is that count and
/// its class. In a build without a GIL the head has more, and begins with the thread that owns the object.
const BEGINS_WITH_COUNT: bool = size_of::<ffi::PyObject>() == 2 * size_of::<usize>();

/// Issues the warning that an object was lost, which says where the object was made if memory is traced. Returns
/// whether something refers to the object now, such as a record of the warning.
///
/// # Safety
///
/// The thread must be attached, and nothing may refer to the object, which is still whole.
#[cold]
unsafe fn warn_of(py: Python<'_>, object: *mut ffi::PyObject, warning: &str) -> bool {
    if !BEGINS_WITH_COUNT {
        log::resource_warning(py, None, warning);
        return false;
    }
    // The warning's source is the object itself: `tracemalloc` knows by its address where it was made. This does what
    // `PyObject_CallFinalizerFromDealloc` does, which the stable ABI lacks. A companion that is traced in the object's
    // place would cost one more allocation for each. Some versions keep flags in the upper bits of the word, which the
    // addition and the subtraction leave alone.
    let references = object.cast::<ffi::Py_ssize_t>();
    // SAFETY: by the caller's contract and `BEGINS_WITH_COUNT`. Under the GIL, nobody else reads or writes the count.
    let none = unsafe { references.read() };
    // SAFETY: as above. With one more reference counted than there are, the object is not deallocated meanwhile.
    let object = unsafe {
        references.write(none + 1);
        Borrowed::from_ptr(py, object)
    };
    log::resource_warning(py, Some(&object), warning);
    // SAFETY: as above. The extra reference was counted nowhere else.
    unsafe {
        let counted = references.read() - 1;
        references.write(counted);
        counted != none
    }
}

/// Called by the interpreter for an object's truth value.
///
/// # Safety
///
/// Must be called as the interpreter calls it: with the GIL, and with an object of the class.
unsafe extern "C" fn is_true<T: Content>(object: *mut ffi::PyObject) -> c_int {
    // SAFETY: by the caller's contract. An object has its content as long as there is a reference to it.
    let content = unsafe { &(*object.cast::<Object<T>>()).content };
    c_int::from(content.is_true())
}

/// Called by the interpreter when the class is called.
///
/// # Safety
///
/// Must be called as the interpreter calls it: with the GIL, with a tuple, and with a dictionary or null.
unsafe extern "C" fn construct<T: Content>(
    _class: *mut ffi::PyTypeObject,
    positional: *mut ffi::PyObject,
    named: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: by the caller's contract; the references outlive the call.
    let (py, positional, named) = unsafe {
        let py = Python::assume_attached();
        (
            py,
            Borrowed::from_ptr(py, positional).cast_unchecked::<PyTuple>(),
            Borrowed::from_ptr_or_opt(py, named).map(|named| named.cast_unchecked::<PyDict>()),
        )
    };
    call::answer(py, || {
        let constructor = T::Methods::type_object(py).getattr(T::CONSTRUCTOR.unwrap_or_default())?;
        constructor.call(positional, named.as_deref())
    })
}
