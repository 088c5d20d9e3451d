#!/bin/sh
# Packs each published package as a registry would be given it, and says how many files are in it. With --thorough, also
# unpacks each, builds it with the examples of its documentation from what is in its archive alone, and checks it with the
# oldest Rust that it names and the oldest versions of its direct dependencies.
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

# What users need: both licences and a page for the registry, and no tests.
contents() {
    for archive in "$target/package/"*.crate; do
        name=$(basename "$archive" .crate)
        tar -tzf "$archive" | sed 's|^[^/]*/||' >"$STEPS.contents"
        page=$(tar -xzOf "$archive" "$name/Cargo.toml" | sed -n 's/^readme = "\(.*\)"/\1/p')
        for needed in LICENSE-APACHE LICENSE-MIT "$page"; do
            if ! grep -q -x -F "$needed" "$STEPS.contents"; then
                echo "$name has no $needed"
                return 1
            fi
        done
        if grep -E '(^|/)(tests|benches)/|tests\.rs$' "$STEPS.contents"; then
            echo "$name has these, which are tests"
            return 1
        fi
        echo "$name: $(wc -l <"$STEPS.contents") files, $(($(wc -c <"$archive") / 1024)) KiB"
    done
}
describe "what is in the archives"
step contents

[ "${1:-}" = --thorough ] || exit 0

# Packages name one another by a version that no registry knows yet.
unpacked=$target/unpacked
rm -rf "$unpacked"
mkdir "$unpacked"
for archive in "$target/package/"*.crate; do
    # -m, because cargo goes by the times of files, and these are the same in every archive.
    tar -xmzf "$archive" -C "$unpacked"
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

rust=$(sed -n '/^\[workspace.package\]/,/^$/s/^rust-version = "\(.*\)"/\1/p' Cargo.toml).0
if cargo "+$rust" --version >/dev/null 2>&1 && cargo +nightly --version >/dev/null 2>&1; then
    # No user builds what only the tests need.
    for manifest in "$unpacked"/*/Cargo.toml; do
        awk '/^\[/ { skip = /^\[dev-dependencies/ } !skip' "$manifest" >"$manifest.new"
        mv "$manifest.new" "$manifest"
    done
    rm "$unpacked/Cargo.lock"
    describe "the oldest versions that the packages name"
    step cargo +nightly update -Z direct-minimal-versions --manifest-path "$unpacked/Cargo.toml"
    describe "the packages with them, by Rust $rust"
    step cargo "+$rust" check --locked --manifest-path "$unpacked/Cargo.toml" --workspace --all-features
else
    skip "the oldest Rust and the oldest versions" "Rust $rust beside a nightly one"
fi
