//! Creates, inspects, repairs and removes shmlimit segments.
fn main() {}
