#!/bin/sh
# Runs the contents of packaging/ for real: the Compose example with gunicorn in two containers, segments with both
# kinds of locks between containers, the Kubernetes pod in podman, and the systemd units in a container that boots and
# reboots; with traffic, with workers that are killed, and with limitctl's commands inside and outside of the
# containers.
#
# Needs root, dockerd, python3 and curl, and for one part each the plugin compose, podman, and systemd-nspawn with
# debootstrap. If no daemon runs, it starts its own. The base image, python:3.13-slim, is pulled or, without a registry,
# made by debootstrap. Everything that is made is removed at the end.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh

MUSL=x86_64-unknown-linux-musl
what="packaging/ in containers"
if [ "$(id -u)" -ne 0 ]; then
    skip "$what" root
    exit 0
fi
if ! has docker || { ! has dockerd && ! docker info >/dev/null 2>&1; }; then
    skip "$what" "container engine"
    exit 0
fi
for tool in python3 curl; do
    if ! has "$tool"; then
        skip "$what" "$tool"
        exit 0
    fi
done
parts=locks
if docker compose version >/dev/null 2>&1; then
    # The example's ports on this host.
    if python3 -c 'import socket; [socket.create_server(("127.0.0.1", port)) for port in (8000, 8001, 9464)]' 2>/dev/null; then
        parts="compose $parts"
    else
        skip "$what: Compose" "free ports 8000, 8001 and 9464"
    fi
else
    skip "$what: Compose" "docker compose"
fi
if has podman; then parts="$parts pod"; else skip "$what: a pod" podman; fi
if has systemd-nspawn && has debootstrap; then
    parts="$parts units"
else
    skip "$what: units of systemd" "systemd-nspawn with debootstrap"
fi

step cargo build --locked --release --package limitctl
if has_target $MUSL; then
    step cargo build --locked --release --package limitctl --target $MUSL
else
    skip "$what: a program with musl" "target $MUSL"
fi
step python/wheels "$(rustc -vV | sed -n 's/^host: //p')"
describe "$what: $parts"
# shellcheck disable=SC2086 # Several arguments.
step tools/checks/containers/run $parts
