//! The methods that every decision calls. The interpreter calls them without pyo3's wrappers, and without building a
//! tuple or a dictionary of arguments.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use pyo3::exceptions::PyTypeError;
use pyo3::panic::PanicException;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};
use pyo3::{Borrowed, PyTypeInfo, ffi};

/// A method of a class.
pub trait Method {
    /// The class that has the method.
    type Of;
    const NAME: &'static CStr;
    /// The signature, in the interpreter's format, and the documentation.
    const DOC: &'static CStr;

    /// Runs the method.
    fn call<'py>(
        this: Borrowed<'_, 'py, Self::Of>,
        arguments: Arguments<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>>;
}

/// The definition by which the interpreter calls a method.
pub const fn definition<M: Method>() -> ffi::PyMethodDef {
    ffi::PyMethodDef {
        ml_name: M::NAME.as_ptr(),
        ml_meth: ffi::PyMethodDefPointer {
            PyCFunctionFastWithKeywords: enter::<M>,
        },
        ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
        ml_doc: M::DOC.as_ptr(),
    }
}

/// Adds a method to its class.
pub fn add_to_class<M: Method<Of: PyTypeInfo>>(py: Python<'_>) -> PyResult<()> {
    let class: Bound<'_, PyType> = M::Of::type_object(py);
    // Leaked, because the interpreter refers to it as long as it runs.
    let definition = Box::leak(Box::new(definition::<M>()));
    // SAFETY: the thread is attached; the class is alive, and the leaked definition never moves. The descriptor makes
    // sure that `enter` is only called with instances of the class.
    let method =
        unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyDescr_NewMethod(class.as_type_ptr(), definition))? };
    class.setattr(PyString::new(py, &M::NAME.to_string_lossy()), method)
}

/// The function that the interpreter calls.
///
/// # Safety
///
/// Must be called as the interpreter calls methods of this kind: with the GIL, with an instance of the class, and with
/// as many objects as it says, of which those after the first `positional` have the names in the tuple `names`, if
/// there is one.
unsafe extern "C" fn enter<M: Method>(
    this: *mut ffi::PyObject,
    given: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the caller holds the GIL.
    let py = unsafe { Python::assume_attached() };
    // SAFETY: the caller passes valid objects, and its references to them outlive the call.
    let (this, names) = unsafe {
        (
            Borrowed::from_ptr(py, this).cast_unchecked::<M::Of>(),
            Borrowed::from_ptr_or_opt(py, names).map(|names| names.cast_unchecked::<PyTuple>()),
        )
    };
    let arguments = Arguments {
        py,
        given,
        positional: usize::try_from(positional).unwrap_or(0),
        names,
    };
    answer(py, || M::call(this, arguments))
}

/// The value to return to the interpreter: the result, or null after raising the exception.
pub fn answer<'py>(
    py: Python<'py>,
    call: impl FnOnce() -> PyResult<Bound<'py, PyAny>>,
) -> *mut ffi::PyObject {
    // A panic becomes an exception, as in pyo3: it must not unwind into the interpreter.
    let error = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(result)) => return result.into_ptr(),
        Ok(Err(error)) => error,
        Err(_) => PanicException::new_err("a panic, whose message is on the standard error output"),
    };
    error.restore(py);
    ptr::null_mut()
}

/// Arguments in the order of the parameters, and the keywords that are not parameters.
pub type Read<'a, 'py, const N: usize> = ([Option<Borrowed<'a, 'py, PyAny>>; N], Option<Bound<'py, PyDict>>);

/// The arguments of a call.
pub struct Arguments<'a, 'py> {
    py: Python<'py>,
    given: *const *mut ffi::PyObject,
    positional: usize,
    names: Option<Borrowed<'a, 'py, PyTuple>>,
}

impl<'a, 'py> Arguments<'a, 'py> {
    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.positional == 0 && self.names.is_none()
    }

    /// The arguments in the order of the parameters, of which the first `by_position` may be positional. An argument
    /// that was not given, or was given as None, is `None`.
    ///
    /// # Errors
    ///
    /// `TypeError` if an argument is unknown or given twice.
    pub fn read<const N: usize>(
        &self,
        method: &str,
        by_position: usize,
        parameters: [&Bound<'py, PyString>; N],
    ) -> PyResult<[Option<Borrowed<'a, 'py, PyAny>>; N]> {
        let (read, others) = self.read_with_others(method, by_position, parameters)?;
        let Some(others) = others else { return Ok(read) };
        let name = others.keys().get_item(0)?;
        Err(PyTypeError::new_err(format!(
            "{method}() has no parameter '{name}'"
        )))
    }

    /// The same, and the keywords that are not parameters, if there are any.
    ///
    /// # Errors
    ///
    /// `TypeError` if an argument is given twice.
    #[inline]
    pub fn read_with_others<const N: usize>(
        &self,
        method: &str,
        by_position: usize,
        parameters: [&Bound<'py, PyString>; N],
    ) -> PyResult<Read<'a, 'py, N>> {
        let mut others: Option<Bound<'py, PyDict>> = None;
        let mut read = [None; N];
        if self.positional > by_position {
            return Err(PyTypeError::new_err(format!(
                "{method}() takes at most {by_position} positional arguments, and {} were given",
                self.positional
            )));
        }
        for (index, place) in read.iter_mut().enumerate().take(self.positional) {
            *place = Some(self.at(index));
        }
        for (index, name) in self.names.iter().flat_map(|names| names.iter()).enumerate() {
            let same = |parameter: &&Bound<'py, PyString>| parameter.as_ptr() == name.as_ptr();
            let found = match parameters.iter().position(same) {
                Some(found) => Some(found),
                // Names in calls are nearly always interned, like those of the parameters.
                None => parameters
                    .iter()
                    .position(|parameter| parameter.as_any().eq(&name).unwrap_or(false)),
            };
            let Some(place) = found.and_then(|found| read.get_mut(found)) else {
                let others = others.get_or_insert_with(|| PyDict::new(self.py));
                others.set_item(name, self.at(self.positional + index))?;
                continue;
            };
            if place.replace(self.at(self.positional + index)).is_some() {
                return Err(PyTypeError::new_err(format!("{method}() got '{}' twice", name)));
            }
        }
        Ok((read.map(|given| given.filter(|given| !given.is_none())), others))
    }

    /// The argument at an index, which must be in range.
    #[inline]
    fn at(&self, index: usize) -> Borrowed<'a, 'py, PyAny> {
        // SAFETY: the caller of `enter` passed more than `index` objects, and keeps them alive during the call.
        unsafe { Borrowed::from_ptr(self.py, *self.given.add(index)) }
    }
}
