#!/bin/sh
# What a registry would be given: each published package is packed. With --thorough, each is also unpacked where no clone
# is, and built with the examples of its documentation from what is in its archive alone.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh

packages="--package shmlimit --package shmlimit-fleet --package shmlimit-reqwest-middleware --package limitctl"
target=${CARGO_TARGET_DIR:-$PWD/target}
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)

rm -rf "$target/package"
describe "the archives of the packages"
# shellcheck disable=SC2086 # Several arguments.
step cargo package --locked --quiet --allow-dirty --no-verify $packages

[ "${1:-}" = --thorough ] || exit 0

# Each names the others by version, which no registry knows yet.
unpacked=$target/unpacked
rm -rf "$unpacked"
mkdir "$unpacked"
for archive in "$target/package/"*.crate; do
    tar -xzf "$archive" -C "$unpacked"
done
cat >"$unpacked/Cargo.toml" <<END
[workspace]
resolver = "3"
members = ["*-$version"]

[patch.crates-io]
shmlimit = { path = "shmlimit-$version" }
shmlimit-fleet = { path = "shmlimit-fleet-$version" }
END
cp Cargo.lock "$unpacked"
export CARGO_TARGET_DIR="$target/archives"
describe "the packages, built from their archives"
step cargo build --offline --manifest-path "$unpacked/Cargo.toml" --workspace --all-features
describe "the examples of their documentation, from their archives"
step cargo test --offline --manifest-path "$unpacked/Cargo.toml" --workspace --exclude limitctl --all-features --doc
