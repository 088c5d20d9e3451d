//! What a set decides by: the compiled form of its declaration.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::limit::Rule;

/// How a limit is taken and given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Kind {
    /// Takes a cost that the request must name and settles to the actual usage.
    Rate,
    /// A rate counted in calls: takes one unless the request names more.
    Calls,
    /// Capacity that is held and given back: takes one unless the request names more.
    Concurrency,
    /// Takes nothing up front: admitted while any budget remains, debited at settle.
    Budget,
}

/// One limit of a set.
#[derive(Clone, Debug)]
pub(crate) struct LimitPlan {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) rule: Rule,
    /// Whether what a dead holder had reserved is given back.
    pub(crate) refund_on_death: bool,
    /// For how long a hold lasts that is not renewed, in nanoseconds.
    pub(crate) lease: Option<u64>,
}

/// One set: its limits in declaration order.
#[derive(Clone, Debug)]
pub(crate) struct SetPlan {
    pub(crate) name: String,
    pub(crate) limits: Vec<LimitPlan>,
    pub(crate) metadata: Arc<BTreeMap<String, String>>,
    /// How many permits with something to give back may be out at once; zero where no limit gives back.
    pub(crate) hold_capacity: u32,
    /// How many requests may wait at once.
    pub(crate) waiters: u32,
}
