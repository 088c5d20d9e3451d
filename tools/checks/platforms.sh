#!/bin/sh
# The other platforms. With --thorough, the suite and the crash harness run on x86_64 with musl, and on aarch64 as far
# as an emulator can run them. Otherwise, the library is checked for aarch64 with musl, and programs with glibc and with
# musl share a segment. Targets come from `rustup target add`.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh
thorough=${1:-}

# The Python module and the crates that the benchmarks compare with are only built for the host's platform.
ours="--workspace --exclude shmlimit-python --exclude rivals"
MUSL=x86_64-unknown-linux-musl
ARM=aarch64-unknown-linux-gnu
ARM_MUSL=aarch64-unknown-linux-musl

# What is only compiled. With --thorough, everything, if there is a compiler for the C code that benchmarks and tests
# depend on; nothing is linked, so a compiler for another C library works, too. Otherwise only the library, for the one
# target that differs from the usual host in both processor and C library.
CC_aarch64_unknown_linux_musl=aarch64-linux-gnu-gcc
export CC_aarch64_unknown_linux_musl
compiled_alike=
for target in $MUSL:musl-gcc $ARM:aarch64-linux-gnu-gcc $ARM_MUSL:aarch64-linux-gnu-gcc; do
    compiler=${target#*:} target=${target%:*}
    [ "$thorough" = --thorough ] || [ "$target" = $ARM_MUSL ] || continue
    if ! has_target "$target"; then
        skip "$target" "target $target"
    elif [ "$thorough" = --thorough ] && has "$compiler"; then
        # shellcheck disable=SC2086 # Several arguments.
        step cargo check --locked $ours --all-targets --target "$target"
    else
        compiled_alike="$compiled_alike --target $target"
    fi
done
# Tests and examples use all features, but users need not: this checks the library without any, at least for the host.
# shellcheck disable=SC2086
step cargo clippy --locked --package shmlimit --lib $compiled_alike -- -D warnings

if has_target $MUSL; then
    describe "a program, static, with musl"
    step cargo build --locked --package c_libraries --target $MUSL
    # Together with one of the library's tests, so that nothing of those is built again.
    describe "one segment with slot locks, used by programs with glibc and with musl"
    step env SHMLIMIT_MUSL_HOLDER="${CARGO_TARGET_DIR:-$PWD/target}/$MUSL/debug/holder" \
        cargo test --locked --workspace --test c_libraries --test processes -- c_librar
else
    skip "programs with two C libraries" "target $MUSL"
fi

[ "$thorough" = --thorough ] || exit 0

if has_target $MUSL && has musl-gcc; then
    # A static program loads no libraries: everything except the example that is one, of which other tests load two
    # copies.
    # shellcheck disable=SC2086
    step cargo build --locked --package shmlimit --target $MUSL --example axum_gateway --example keyed_clients \
        --example prefork_server --example quick_start --example worker_fleet
    # shellcheck disable=SC2086
    step cargo test --locked $ours --target $MUSL --lib --bins --tests
    # shellcheck disable=SC2086
    step cargo test --locked --package shmlimit --target $MUSL --doc
    crash_harness "killed at every instruction, with musl" "${SHMLIMIT_ONE_IN:-1}" --target $MUSL
else
    skip "the suite and the crash harness with musl" "target $MUSL with musl-gcc"
fi

if has_target $ARM && has aarch64-linux-gnu-gcc && has qemu-aarch64-static; then
    # The emulator keeps no robust list, so a lock whose holder died stays locked, and it does not pass memory advice on
    # to forked children: tests that need either are left out by name.
    describe "on aarch64, emulated: rules, codecs and unit tests"
    step env CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -L /usr/aarch64-linux-gnu" \
        cargo test --locked --lib --target $ARM -- \
        --skip a_thread_that_dies_with_the_lock_hands_it_on_and_it_stays_usable \
        --skip a_child_is_another_process_and_stays_so \
        --skip the_lock_is_kept_without_a_descriptor_until_it_is_released_and_no_child_keeps_it
else
    skip "the unit tests on aarch64" "target $ARM with aarch64-linux-gnu-gcc and qemu-aarch64-static"
fi
