//! The declarations in `examples/` are ones that this version accepts and works by.

use std::path::Path;

use shmlimit::{Declaration, Segment};

#[test]
fn the_gateway_declaration_makes_a_segment_that_admits() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/gateway.toml");
    let declaration = Declaration::from_toml_file(&path).expect("a declaration");
    let directory = tempfile::tempdir().expect("a directory");
    let segment = Segment::create(directory.path().join("gateway.limits"), &declaration).expect("a segment");
    let chat = segment.set("chat").expect("declared");
    let request = chat.request().with("tokens", 1_500).expect("declared");
    assert!(chat.try_acquire(&request).expect("works").is_admitted());
    let batch = segment.set("batch").expect("declared");
    let mut permit = batch
        .try_acquire(&batch.request())
        .expect("works")
        .into_result()
        .expect("a full budget");
    permit.settle([("dollars", 12)]).expect("twelve cents");

    let tenants = segment.set("tenants").expect("declared");
    let request = tenants.request().with("requests", 60).expect("declared");
    for (tenant, expected) in [("acme", true), ("acme", false), ("globex", true)] {
        let key = tenants.key(tenant).expect("keyed");
        assert_eq!(key.check(&request).expect("works").is_admitted(), expected);
    }
}
