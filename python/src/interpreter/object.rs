//! Objects that are made for every decision, in one allocation, which is used again for later ones.
//!
//! Such a class has a base that is a class like any other, without a field: it has the methods and the attributes that are
//! not used for every decision, and no object is of it alone.
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
use crate::interpreter::once::once;

/// What an object of such a class consists of.
pub trait Content: Send + Sized + 'static {
    /// The class that has its methods.
    type Methods: PyTypeInfo;
    /// The full name of the class.
    const NAME: &'static CStr;
    const DOC: &'static CStr;
    /// The static method of the methods' class that makes an object where the class is called, for classes that can be.
    const CONSTRUCTOR: Option<&'static str> = None;

    /// Where the class and unused objects are kept.
    fn class() -> &'static Class;

    /// The methods that are called for every decision.
    fn methods() -> Vec<ffi::PyMethodDef> {
        Vec::new()
    }

    /// Whether the object is true.
    fn is_true(&self) -> bool;

    /// Ends it, when no one has the object any more.
    fn end(self, py: Python<'_>);
}

/// How many unused objects are kept of a class.
const MAX_UNUSED: usize = 32;

/// A class, and memory of objects that are not used any more.
pub struct Class {
    class: OnceBox<Py<PyType>>,
    unused: [Cell<*mut ffi::PyObject>; MAX_UNUSED],
    unused_count: Cell<usize>,
}

// SAFETY: the cells are read and written by `take` and `keep` alone, which are called by who has the interpreter's lock and
// do not release it.
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

    /// The memory of an object that was of this class.
    #[inline]
    fn take(&self, _py: Python<'_>) -> Option<*mut ffi::PyObject> {
        let last = self.unused_count.get().checked_sub(1)?;
        let object = self.unused.get(last)?.get();
        self.unused_count.set(last);
        Some(object)
    }

    /// Keeps the memory of an object; answers whether there was room.
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

/// An object of such a class, as the interpreter has it.
#[repr(C)]
struct Object<T> {
    head: ffi::PyObject,
    content: T,
}

/// The class, which is made when it is first asked for.
#[inline]
pub fn class<T: Content>(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    once(&T::class().class, py, || make_class::<T>(py))
}

#[cold]
fn make_class<T: Content>(py: Python<'_>) -> PyResult<Py<PyType>> {
    let base = T::Methods::type_object(py);
    // What the methods' class says of itself is what this relies on: that it keeps nothing in the object.
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
        // The interpreter refers to them for as long as it runs.
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
        // No class is derived from it, so that each instance is an `Object<T>`.
        flags: ffi::Py_TPFLAGS_DEFAULT as _,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: the thread is attached. The specification and its slots live until the call returns, and what they refer to
    // is static or was leaked. The slots are functions of the types that the interpreter calls them as.
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
    // SAFETY: the thread is attached. What `take` gives is memory of an object of this class, which `dealloc` put there
    // and no one else refers to; as an unused object it has everything but its head and its content.
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
    // SAFETY: the object has the size of an `Object<T>`, by its class, and no one else has it yet; memory of objects is
    // aligned to 16 bytes, which is at least the alignment of the content. With the content written it is whole.
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
            "{} is none of {class}",
            object.as_any()
        )));
    }
    // SAFETY: an object of exactly this class was made by `make`, and has its content until `dealloc`, which is called when
    // there is no reference to it left. Nothing gives out a mutable reference to it.
    Ok(unsafe { &(*object.as_ptr().cast::<Object<T>>()).content })
}

/// What the interpreter calls when nothing refers to an object any more.
///
/// # Safety
///
/// As the interpreter calls it: with its lock, and with an object of the class, which it does not use afterwards.
unsafe extern "C" fn dealloc<T: Content>(object: *mut ffi::PyObject) {
    // SAFETY: by what the caller promises. The content is read once, and not used where it lies any more. An object has a
    // reference to its class, which ends with it.
    unsafe {
        let py = Python::assume_attached();
        ffi::PyObject_GC_UnTrack(object.cast());
        let class = ffi::Py_TYPE(object);
        let content = ptr::read(&raw const (*object.cast::<Object<T>>()).content);
        // The interpreter expects no panic; there is no one to tell, but for the message that it has written.
        let _ = catch_unwind(AssertUnwindSafe(|| content.end(py)));
        if !T::class().keep(py, object) {
            ffi::PyObject_GC_Del(object.cast());
        }
        ffi::Py_DECREF(class.cast());
    }
}

/// What the interpreter calls to learn whether an object is true.
///
/// # Safety
///
/// As the interpreter calls it: with its lock, and with an object of the class.
unsafe extern "C" fn is_true<T: Content>(object: *mut ffi::PyObject) -> c_int {
    // SAFETY: by what the caller promises. An object has its content for as long as there is a reference to it.
    let content = unsafe { &(*object.cast::<Object<T>>()).content };
    c_int::from(content.is_true())
}

/// What the interpreter calls where the class is called.
///
/// # Safety
///
/// As the interpreter calls it: with its lock, with a tuple, and with a dictionary or null.
unsafe extern "C" fn construct<T: Content>(
    _class: *mut ffi::PyTypeObject,
    positional: *mut ffi::PyObject,
    named: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: by what the caller promises; the references outlive the call.
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
