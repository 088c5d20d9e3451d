//! Requests, from the arguments in Python.

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Mutex;

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use shmlimit::{LimitSet, Request};

use crate::arguments::amount::{Amount, counts_in_parts};
use crate::arguments::key;
use crate::handle::Handle;
use crate::interpreter::error::{OrRaise, exception};
use crate::interpreter::log;

/// What a call takes of limits: a mapping of names to amounts, keywords, or both.
#[derive(Clone, Copy, Default)]
pub struct Costs<'a, 'py> {
    pub mapping: Option<&'a Bound<'py, PyAny>>,
    pub named: Option<&'a Bound<'py, PyDict>>,
}

impl<'a, 'py> Costs<'a, 'py> {
    /// The costs of a call whose other keywords name limits.
    pub fn new(mapping: Option<&'a Bound<'py, PyAny>>, named: Option<&'a Bound<'py, PyDict>>) -> Self {
        let named = named.filter(|named| !named.is_empty());
        Self { mapping, named }
    }

    #[inline]
    fn is_empty(self) -> bool {
        self.mapping.is_none() && self.named.is_none()
    }

    /// Calls `visit` with each name and amount.
    ///
    /// # Errors
    ///
    /// `TypeError` if a keyword is none of the `known` limits, since it may be a misspelt parameter, or if a limit is
    /// named twice.
    pub fn for_each<'k>(
        self,
        set: impl Fn() -> String,
        known: impl Fn() -> Vec<&'k str>,
        mut visit: impl FnMut(&str, &Bound<'_, PyAny>) -> PyResult<()>,
    ) -> PyResult<()> {
        let Some(named) = self.named else {
            return self.mapping.map_or(Ok(()), |mapping| for_each(mapping, visit));
        };
        let mut in_mapping = HashSet::new();
        if let Some(mapping) = self.mapping {
            for_each(mapping, |name, amount| {
                in_mapping.insert(name.to_owned());
                visit(name, amount)
            })?;
        }
        for_each(named, |name, amount| {
            if !known().contains(&name) {
                return Err(PyTypeError::new_err(format!(
                    "there is no parameter '{name}', and {} has no limit of that name: it has {}",
                    set(),
                    known().join(", ")
                )));
            }
            if in_mapping.contains(name) {
                return Err(PyTypeError::new_err(format!(
                    "limit '{name}' is named twice, in the mapping and by a keyword"
                )));
            }
            visit(name, amount)
        })
    }
}

/// What a call asks for.
#[derive(Clone, Copy, Default)]
pub struct Asked<'a, 'py> {
    pub costs: Costs<'a, 'py>,
    pub key: Option<&'a Bound<'py, PyAny>>,
    pub tier: Option<&'a str>,
    /// The key's own capacities.
    pub overrides: Option<&'a Bound<'py, PyAny>>,
}

/// Makes the request of a call.
#[inline]
pub fn prepare<'s>(
    py: Python<'_>,
    handle: &Handle,
    set: &'s LimitSet,
    asked: Asked<'_, '_>,
) -> PyResult<Request<'s>> {
    let mut request = handle.request(set);
    if let Some(key) = asked.key {
        match handle.is_by_address {
            false => request.set_key(key::bytes(key)?).or_raise(py)?,
            true => request.set_address(key::address(key)?).or_raise(py)?,
        }
    }
    if !asked.costs.is_empty() {
        set_costs(handle, asked.costs, &mut request)?;
    }
    if let Some(tier) = asked.tier {
        request.set_tier(tier).or_raise(py)?;
    }
    if let Some(overrides) = asked.overrides {
        for_each(overrides, |name, capacity| {
            warn_of_unknown(handle, name, capacity)?;
            let own = match capacity.is_none() {
                true => None,
                false => Some(units(handle, name, capacity)?),
            };
            request.set_override(name, own).or_raise(py)
        })?;
    }
    Ok(request)
}

fn set_costs(handle: &Handle, costs: Costs<'_, '_>, request: &mut Request<'_>) -> PyResult<()> {
    let set = || format!("set `{}`", handle.set.name());
    costs.for_each(
        set,
        || handle.set.limits().collect(),
        |name, amount| {
            warn_of_unknown(handle, name, amount)?;
            let units = units(handle, name, amount)?;
            request.set_cost(name, units).or_raise(amount.py())
        },
    )
}

/// Reads what was used, in units, by limit name. Unknown names are kept: the library handles them.
pub fn amounts_used(
    handle: &Handle,
    named: &Bound<'_, PyAny>,
    into: &mut Vec<(String, u64)>,
) -> PyResult<()> {
    for_each(named, |name, amount| {
        warn_of_unknown(handle, name, amount)?;
        let units = units_used(handle, name, amount)?;
        into.push((name.to_owned(), units));
        Ok(())
    })
}

/// Converts an amount of a limit to units.
pub fn units(handle: &Handle, name: &str, amount: &Bound<'_, PyAny>) -> PyResult<u64> {
    let limit = handle.limit(name);
    match Amount::from_object(amount)? {
        Amount::Whole(whole) if !limit.is_some_and(counts_in_parts) => Ok(whole),
        // The library skips limits that the set does not have.
        _ if limit.is_none() => Ok(0),
        natural => handle.set.units(name, &natural.into_text()).or_raise(amount.py()),
    }
}

/// Converts what was used of a limit to units, rounded up so that none of it is lost. A float that exceeds a whole
/// number of units by no more than a rounding error counts as that number.
pub fn units_used(handle: &Handle, name: &str, amount: &Bound<'_, PyAny>) -> PyResult<u64> {
    const NOISE: f64 = 1e-9;
    let limit = handle.limit(name);
    let amount_given = Amount::from_object(amount)?;
    match &amount_given {
        Amount::Whole(whole) if !limit.is_some_and(counts_in_parts) => return Ok(*whole),
        _ if limit.is_none() => return Ok(0),
        _ => {}
    }
    let is_float = matches!(amount_given, Amount::Float(_));
    let natural = amount_given.into_text();
    let covering = handle.set.units_to_cover(name, &natural).or_raise(amount.py())?;
    let (Some(limit), true) = (limit, is_float && covering > 1) else {
        return Ok(covering);
    };
    if handle.set.units(name, &natural).is_ok() {
        return Ok(covering);
    }
    let below = limit.format_units(covering - 1).parse::<f64>();
    let above = natural
        .parse::<f64>()
        .ok()
        .zip(below.ok())
        .map(|(used, below)| (used - below) / used);
    Ok(if above.is_some_and(|above| above <= NOISE) {
        covering - 1
    } else {
        covering
    })
}

/// Calls `visit` with each name and value of a mapping.
fn for_each(
    mapping: &Bound<'_, PyAny>,
    mut visit: impl FnMut(&str, &Bound<'_, PyAny>) -> PyResult<()>,
) -> PyResult<()> {
    if let Ok(mapping) = mapping.cast::<PyDict>() {
        // Taken out first, because reading an amount may run code that changes the mapping.
        if mapping.len() == 1 {
            let only = mapping.iter().next();
            return only.map_or(Ok(()), |(name, value)| visit(&limit_name(&name)?, &value));
        }
        let items: Vec<_> = mapping.iter().collect();
        for (name, value) in items {
            visit(&limit_name(&name)?, &value)?;
        }
        return Ok(());
    }
    let Ok(items) = mapping.getattr(intern!(mapping.py(), "items")) else {
        return Err(PyTypeError::new_err(format!(
            "{} names no limits: give a mapping of names to amounts, such as {{\"tokens\": 1500}}",
            mapping.repr()?
        )));
    };
    for item in items.call0()?.try_iter()? {
        let item = item?;
        let item = item.cast::<PyTuple>()?;
        visit(&limit_name(&item.get_item(0)?)?, &item.get_item(1)?)?;
    }
    Ok(())
}

/// Reads the name of a limit.
fn limit_name<'a>(name: &'a Bound<'_, PyAny>) -> PyResult<Cow<'a, str>> {
    let Ok(text) = name.cast::<PyString>() else {
        return Err(PyTypeError::new_err(format!(
            "{} is not a name of a limit: give a str",
            name.repr()?
        )));
    };
    // The names of limits are Unicode.
    text.to_cow().or_else(|_| {
        let message = format!("there is no limit {}", name.repr()?);
        Err(exception(name.py(), "UnknownLimit", message))
    })
}

/// Warns of a limit that the set does not have, once per name and process.
fn warn_of_unknown(handle: &Handle, name: &str, at: &Bound<'_, PyAny>) -> PyResult<()> {
    static WARNED: Mutex<Option<HashSet<(PathBuf, String, String)>>> = Mutex::new(None);
    if handle.strict || handle.limit(name).is_some() {
        return Ok(());
    }
    let set = handle.set.name().to_owned();
    // Only locked while the GIL is held, so it is free. If it is taken all the same, as in a child that was forked
    // while another thread held it, the warning is skipped.
    let is_first = WARNED.try_lock().is_ok_and(|mut warned| {
        let named = (handle.path.clone(), set.clone(), name.to_owned());
        warned.get_or_insert_default().insert(named)
    });
    if is_first {
        let py = at.py();
        let category = py.import("shmlimit._errors")?.getattr("UnknownLimitWarning")?;
        let known: Vec<&str> = handle.set.limits().collect();
        let message = format!(
            "set `{set}` has no limit `{name}`, which is skipped; it has {}",
            known.join(", ")
        );
        log::warning_beside_another(py, &message)?;
        py.import("warnings")?.call_method1("warn", (message, category))?;
    }
    Ok(())
}
