//! Limits that all keys of a set have together.

use super::Limit;
use crate::choices::Scope;

impl Limit {
    /// Whose limit it is in a [keyed](crate::SetDeclaration::keyed) set: [each key's](Scope::Key), which is the default,
    /// or [that of all keys together](Scope::AllKeys). A request takes the limits of its key and those of all keys in
    /// one step, or nothing: so a tenant is not charged for a request that the quota of all tenants refuses.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use shmlimit::declare::Scope;
    /// use shmlimit::{Declaration, Keyed, Limit, Segment, SetDeclaration};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let minute = Duration::from_secs(60);
    /// let declaration = Declaration::new().add_set(
    ///     SetDeclaration::new("model")
    ///         .keyed(Keyed::new(10_000))
    ///         .add_limit(Limit::calls("requests", 2, minute)) // of each tenant
    ///         .add_limit(Limit::calls("upstream", 3, minute).scope(Scope::AllKeys)), // of all of them
    /// );
    /// let segment = Segment::create(directory.path().join("limits"), &declaration)?;
    /// let model = segment.set("model")?;
    /// let request = model.request();
    /// assert!(request.for_key("a")?.check()?.is_admitted());
    /// assert!(request.for_key("a")?.check()?.is_admitted());
    /// assert!(request.for_key("b")?.check()?.is_admitted());
    /// let refused = request.for_key("b")?.check()?; // b has one left, but all of them together have none
    /// assert_eq!(refused.binding(), Some("upstream"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Keys that wait for such a limit share it equally, or by the [weights](crate::Tier::weight) of their tiers, however much
    /// each asks for.
    ///
    /// A set that has such limits has one lock for all its keys, where other keyed sets have up to 256. Neither a tier nor
    /// a key's own capacity changes such a limit for a key, and it cannot be [reserved](crate::Request::reserve),
    /// counted by [networks](Self::prefix), drawn as [credit](Self::credit) or shared by [hosts](Self::fleet). The scope of a
    /// limit cannot change in a live segment.
    pub fn scope(mut self, scope: Scope) -> Self {
        self.scope = Some(scope);
        self
    }

    /// Whether all keys have it together.
    pub(in crate::declaration) fn is_overall(&self) -> bool {
        self.scope == Some(Scope::AllKeys)
    }
}
