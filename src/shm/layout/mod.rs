//! The layout of a segment.

pub(crate) mod definition_text;
pub(crate) mod geometry;
pub(crate) mod label;
#[cfg(test)]
pub(super) mod layout_document;
pub(crate) mod places;
pub(crate) mod prefetch;
pub(crate) mod records;
pub(crate) mod row;
pub(crate) mod row_list;
pub(crate) mod row_references;
pub(crate) mod shard_memory;
