# Sourced by tools/check and by the scripts next to this one: steps that report what they do and how long they took.
# shellcheck shell=sh

# One line for each step that has ended: of tools/check and everything that it starts, or of a single script.
if [ -z "${STEPS:-}" ]; then
    STEPS=$(mktemp)
    export STEPS
    trap 'end_of_steps $?' EXIT
else
    trap end_aside EXIT
fi
trap 'exit 130' INT
trap 'exit 143' TERM

# Runs a command as a step named after it, or by the text of a preceding `describe "what it shows"`.
step() {
    # If a parallel command has failed, there is no need to wait for it.
    if [ -e "$STEPS.aside" ]; then gather; fi
    description=${description:-$*}
    printf '\n== %s\n' "$description"
    step_began=$(date +%s)
    count_processors
    processors_began=$processors
    if "$@"; then
        end_step took
    else
        step_result=$?
        end_step "FAILED after"
        exit "$step_result"
    fi
}

end_step() {
    step_took=$(($(date +%s) - step_began))
    count_processors
    printf '== %s %s s: %s\n' "$1" "$step_took" "$description"
    printf '%s\t%s\t%s\n' "$step_took" "$((processors - processors_began))" "$description" >>"$STEPS"
    description=
}

describe() {
    description=$1
}

# The processor time, in seconds, of everything that this shell has started and waited for.
count_processors() {
    # Not in a subshell, which has started nothing.
    times >"$STEPS.times.$$"
    processors=$(processors_of_children <"$STEPS.times.$$")
}

# The second line of what `times` prints, in seconds.
processors_of_children() {
    tr 'ms' '  ' | awk 'NR == 2 { printf "%d\n", 60 * ($1 + $3) + $2 + $4 }'
}

# Runs a command in parallel with the following steps. Its output is shown when `gather` waits for it, which fails if it
# does, or before the next step once it has ended.
beside() {
    aside=${description:-$*}
    description=
    aside_began=$(date +%s)
    printf '\n== begins, beside what follows: %s\n' "$aside"
    # In its own process group, so that all of it can be ended. It notes the time of its end itself.
    # shellcheck disable=SC2016
    setsid sh -c '"$@"; result=$?; { times; date +%s; } >"$0"; exit "$result"' "$STEPS.aside" "$@" \
        >"$STEPS.beside" 2>&1 </dev/null &
    aside_pid=$!
}

gather() {
    if [ -z "${aside_pid:-}" ]; then return; fi
    aside="$aside (beside other steps)"
    printf '\n== %s\n' "$aside"
    aside_result=0
    wait "$aside_pid" || aside_result=$?
    aside_pid=
    cat "$STEPS.beside"
    mv "$STEPS.aside" "$STEPS.gathered"
    aside_outcome=took
    if [ "$aside_result" -ne 0 ]; then aside_outcome="FAILED after"; fi
    step_took=$(($(tail -n 1 "$STEPS.gathered") - aside_began))
    printf '== %s %s s: %s\n' "$aside_outcome" "$step_took" "$aside"
    printf '%s\t%s\t%s\n' "$step_took" "$(processors_of_children <"$STEPS.gathered")" "$aside" >>"$STEPS"
    return "$aside_result"
}

# If a step has failed, the commands that run in parallel are ended as well.
end_aside() {
    if [ -n "${aside_pid:-}" ]; then
        kill -- "-$aside_pid" 2>/dev/null || :
        cat "$STEPS.beside"
    fi
}

end_of_steps() {
    end_aside
    printf '\n%9s %11s  %s\n' seconds processors step
    awk -F '\t' '{ printf "%9d %11s  %s\n", $1, $2, $3 }' "$STEPS"
    printf '%9d %11s  %s\n' "$(($(date +%s) - steps_began))" "" "in all"
    rm -rf "$STEPS" "$STEPS".*
    exit "$1"
}

steps_began=$(date +%s)

# For what a machine lacks: skip "what is left out" "what it would need".
skip() {
    printf '\n== %s\nskipped: no %s\n' "$1" "$2"
    printf '0\t\tskipped, no %s: %s\n' "$2" "$1" >>"$STEPS"
}

# Which one of $1 a sample begins with: another one with each commit, or SHMLIMIT_PHASE.
phase_of() {
    echo "$((${SHMLIMIT_PHASE:-0x$(git rev-parse --short=4 HEAD 2>/dev/null || echo 0)} % $1))"
}

# crash_harness WHAT ONE_IN [CARGO_ARGUMENTS...]: the crash harness, which tries one in ONE_IN of the states that it tries
# by default, or with ONE_IN "everything" leaves out no state of the segment.
crash_harness() {
    what=$1 one_in=$2
    shift 2
    if [ "$one_in" = everything ]; then
        phase=$(phase_of 16)
        describe "$what, no state left out, phase $phase"
        set -- SHMLIMIT_THOROUGH=1 SHMLIMIT_PHASE="$phase" cargo run "$@"
    else
        phase=$(phase_of "$one_in")
        describe "$what: 1 in $one_in, phase $phase"
        set -- SHMLIMIT_ONE_IN="$one_in" SHMLIMIT_PHASE="$phase" cargo run "$@"
    fi
    step env "$@" --locked --release --package killed_at_every_instruction
}

has() {
    command -v "$1" >/dev/null 2>&1
}

# Whether the Python package is installed where its tests run, which is what python/check does first.
has_python_tests() {
    [ -x "${CARGO_TARGET_DIR:-$PWD/target}/python-environment/bin/pytest" ]
}

# Whether a toolchain can build for a target.
has_target() {
    [ -d "$(rustc --print sysroot)/lib/rustlib/$1/lib" ]
}
