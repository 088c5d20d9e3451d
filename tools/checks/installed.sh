#!/bin/sh
# Installs what is built for users where nothing else is installed, uses it there, and removes it again: the Debian package
# in a root that debootstrap makes, and the wheel for glibc by the Python of that root.
#
# Needs root, debootstrap and a mirror of Debian. SHMLIMIT_RELEASE is the release of Debian, by default this host's: the
# package needs the C library that it was built with, or a later one.
set -eu
cd "$(dirname "$0")/../.."
. tools/checks/steps.sh

what="the Debian package and the wheel, installed in a root of their own"
if [ "$(id -u)" -ne 0 ]; then
    skip "$what" root
    exit
fi
for tool in debootstrap dpkg-deb unshare; do
    if ! has "$tool"; then
        skip "$what" "$tool"
        exit
    fi
done
release=${SHMLIMIT_RELEASE:-$(. /etc/os-release && echo "${VERSION_CODENAME:-stable}")}
target=${CARGO_TARGET_DIR:-$PWD/target}
# Removed with the notes of the steps, however they end.
scratch=$STEPS.installed
mkdir "$scratch"
host=$scratch/host

if ! debootstrap --variant=minbase --include=systemd,python3-venv,man-db "$release" "$host" >"$scratch/log" 2>&1; then
    skip "$what" "mirror from which $release can be installed: $(tail -n 1 "$scratch/log")"
    exit
fi

# Runs a script in the root, with file systems of its own.
inside() {
    # shellcheck disable=SC2016 # The inner shell expands the words.
    unshare --mount --pid --fork sh -euc '
        mount -t proc proc "$1/proc"
        mount -t tmpfs tmpfs "$1/dev/shm"
        exec chroot "$1" sh -euxc "$2"
    ' sh "$host" "$1"
}

step cargo build --locked --release --package limitctl
LIMITCTL=$target/release/limitctl packaging/deb "$scratch" >/dev/null
mv "$scratch"/limitctl_*.deb "$host/root/limitctl.deb"
describe "the Debian package, in $release: installed, used and removed"
# shellcheck disable=SC2016
step inside '
    dpkg --install /root/limitctl.deb
    limitctl selftest /dev/shm
    limitctl create --set jobs --concurrency running=1 /run/shmlimit/jobs.limits
    limitctl exec --timeout 0 /run/shmlimit/jobs.limits jobs -- true
    limitctl doctor /run/shmlimit/jobs.limits
    limitctl remove /run/shmlimit/jobs.limits
    test "$(stat --format %G /run/shmlimit)" = limits
    man --where limitctl limitctl-doctor limitctl-fleet-drain
    bash -n /usr/share/bash-completion/completions/limitctl
    systemd-analyze verify --man=no shmlimit.service shmlimit-doctor.timer
    dpkg --purge limitctl
    test -z "$(find / -xdev -path /root -prune -o -path /var/lib/dpkg -prune -o -path /var/log -prune -o \
        -name "*limitctl*" -print)"
'

step python/wheels "$(rustc -vV | sed -n 's/^host: //p')"
mv "$target"/wheels/*manylinux*.whl "$host/root/"
cp python/README.md "$host/root/"
describe "the wheel for glibc, in $release: installed and used"
# shellcheck disable=SC2016
step inside '
    python3 -m venv /root/venv
    cd /root
    venv/bin/pip install --no-index --quiet *.whl
    sed -n "/^\`\`\`python/,/^\`\`\`/p" README.md | sed "/^\`\`\`/d" >example.py
    venv/bin/python example.py
    venv/bin/limitctl inspect /dev/shm/openai.limits.d
    venv/bin/limitctl selftest /dev/shm
    venv/bin/pip uninstall --quiet --yes shmlimit
'
