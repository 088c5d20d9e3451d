# Read by tools/check and by the scripts beside this one: steps that say what they do and how long it took.
# shellcheck shell=sh

# Runs a command under its own name; `describe "what it shows"` before it gives it a better one.
step() {
    printf '\n== %s\n' "${description:-$*}"
    step_began=$(date +%s)
    "$@"
    printf '== took %s s: %s\n' "$(($(date +%s) - step_began))" "${description:-$*}"
    description=
}

describe() {
    description=$1
}

# For what a machine lacks: skip "what is left out" "what it would need".
skip() {
    printf '\n== %s\nskipped: no %s\n' "$1" "$2"
}

has() {
    command -v "$1" >/dev/null 2>&1
}

# Whether a toolchain can build for a target.
has_target() {
    [ -d "$(rustc --print sysroot)/lib/rustlib/$1/lib" ]
}
