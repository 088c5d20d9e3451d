#!/bin/sh
# Builds the fuzz target with the coverage that libFuzzer needs, on a stable compiler and without cargo-fuzz, and runs
# it. Arguments go to libFuzzer: `fuzz/run.sh -max_total_time=60`.
set -eu
cd "$(dirname "$0")"
host=$(rustc -vV | sed -n 's/^host: //p')
RUSTFLAGS="${RUSTFLAGS:-} --cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Coverflow-checks -Ccodegen-units=1"
export RUSTFLAGS
cargo build --quiet --release --target "$host"
mkdir -p corpus/damaged_segment artifacts/damaged_segment
# An input is run alone, anything else adds to the corpus.
case "${*:-}" in
*artifacts/* | *corpus/*) ;;
*) set -- "$@" corpus/damaged_segment ;;
esac
exec "${CARGO_TARGET_DIR:-target}/$host/release/damaged_segment" \
    -artifact_prefix=artifacts/damaged_segment/ -timeout=10 -max_len=4096 -rss_limit_mb=1024 \
    "$@"
