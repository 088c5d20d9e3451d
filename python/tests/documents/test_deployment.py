"""Users, groups and memory where programs are deployed: what the deployment guide says about them."""

import os
import re
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

import shmlimit as sl

DOCUMENTS = Path(__file__).parents[3] / "docs"
GUIDE = DOCUMENTS / "python" / "deployment.md"
SYSTEMD = DOCUMENTS / "how-to" / "run-under-systemd.md"
CONTAINERS = DOCUMENTS / "how-to" / "run-in-containers.md"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="skipped: only root may become another user")

# Modules are loaded before the user is changed, because the new user may not be able to read them.
BECOME = """
import os, sys, traceback
import shmlimit as sl
import limits.strategies
from limits import parse
from shmlimit.limits_storage import ShmStorage

DECLARED = sl.LimitSet("api", [sl.Calls("requests", 5, "1h", algorithm="fixed_window", align="first_use")])

def as_user(uid, gid, act):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([gid])
            os.setgid(gid)
            os.setuid(uid)
            print(act())
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.waitpid(child, 0)
"""


def lines_of(script, *arguments, command=()):
    run = subprocess.run(
        [*command, sys.executable, "-c", BECOME + script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def assert_in_guide(message, *, guide=GUIDE, **named):
    """Asserts that the guide shows this message, although tests have other paths and users than its example."""
    shown = " ".join(guide.read_text().split())
    for there, here in named.values():
        message = message.replace(str(there), str(here))
    assert " ".join(message.split()) in shown, message


@pytest.fixture
def directory():
    path = Path(f"/dev/shm/shmlimit-users-{uuid.uuid4().hex}")
    path.mkdir()
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def test_limits_that_were_opened_before_the_user_changed_are_an_error_that_names_both(directory):
    script = """
limits = sl.open(sys.argv[1], DECLARED)["api"]
as_user(65534, 65534, lambda: bool(limits.check()))
as_user(65534, 65534, lambda: bool(sl.open(sys.argv[1])["api"].check()))
print(bool(limits.check()))
"""
    *refused, own = lines_of(script, directory / "x.limits")
    for line in refused:
        assert line.startswith("PermissionDenied: "), line
        assert "belongs to user 0 and group 0 with mode 0600, and this process runs as user 65534" in line
        assert "opens it after that" in line
    assert own == "True"
    begin = refused[0].split("; ")[0]
    users = ("user 65534 and group 65534", "user 33 and group 33")
    assert_in_guide(f"{begin}; ...", path=(directory / "x.limits", "/dev/shm/myapp.limits"), users=users)


def test_who_opens_after_the_user_changed_needs_nothing_more(directory):
    directory.chmod(0o777)
    script = """
for _ in range(3):
    as_user(65534, 65534, lambda: bool(sl.open(sys.argv[1], DECLARED)["api"].check({"requests": 2})))
"""
    assert lines_of(script, directory / "x.limits") == ["True", "True", "False"]


def test_the_storage_counts_though_it_was_made_before_the_user_changed(directory):
    directory.chmod(0o777)
    script = """
limiter = limits.strategies.FixedWindowRateLimiter(ShmStorage("shm://" + sys.argv[1]))
for _ in range(3):
    as_user(65534, 65534, lambda: limiter.hit(parse("2/hour"), "ann"))
"""
    assert lines_of(script, directory / "counts") == ["True", "True", "False"]
    assert (directory / "counts").stat().st_uid == 65534


def test_a_directory_that_another_user_has_left_is_an_error_that_says_so(directory):
    (directory / "counts").mkdir(mode=0o700)
    script = """
limiter = limits.strategies.FixedWindowRateLimiter(ShmStorage("shm://" + sys.argv[1]))
as_user(65534, 65534, lambda: limiter.hit(parse("2/hour"), "ann"))
"""
    [line] = lines_of(script, directory / "counts")
    assert line.startswith("PermissionError: ")
    assert "belongs to user 0 with mode 0700, and this process runs as user 65534: remove it" in line
    assert_in_guide(line, path=(directory / "counts", "/dev/shm/myapp"), user=("user 65534", "user 33"))


def test_users_of_a_group_share_a_file_that_root_made_for_it(directory):
    os.chown(directory, 0, 2000)
    directory.chmod(0o2750)
    script = """
sl.open(sys.argv[1], DECLARED, mode=0o660)
as_user(1001, 2000, lambda: bool(sl.open(sys.argv[1])["api"].check({"requests": 3})))
as_user(1002, 2000, lambda: bool(sl.open(sys.argv[1], DECLARED, mode=0o660)["api"].check({"requests": 3})))
as_user(1003, 2001, lambda: bool(sl.open(sys.argv[1])["api"].check()))
"""
    one, other, outside = lines_of(script, directory / "x.limits")
    assert (one, other) == ("True", "False")
    assert f"{directory} belongs to user 0 and group 2000 with mode 2750, and this process runs as user 1003" in outside
    paths = {"file": (directory / "x.limits", "/run/myapp/api.limits"), "directory": (directory, "/run/myapp")}
    assert_in_guide(f"{outside.split('; ')[0]}; ...", **paths)


def test_a_file_of_another_user_in_a_directory_that_others_can_write_must_be_trusted(directory):
    os.chown(directory, 0, 2000)
    directory.chmod(0o2770)
    script = """
as_user(1001, 2000, lambda: bool(sl.open(sys.argv[1], DECLARED, mode=0o660)["api"].check()))
as_user(1002, 2000, lambda: bool(sl.open(sys.argv[1])["api"].check()))
as_user(1002, 2000, lambda: bool(sl.open(sys.argv[1], trust_any_owner=True)["api"].check()))
"""
    one, other, trusting = lines_of(script, directory / "x.limits")
    assert (one, trusting) == ("True", "True")
    assert other.startswith("PermissionDenied: ")
    assert f"others may put files into {directory}: do not let its group or others write there" in other
    # The mode of /dev/shm, which nobody should be advised to restrict.
    directory.chmod(0o1777)
    [public] = lines_of("as_user(1002, 2000, lambda: sl.open(sys.argv[1]))", directory / "x.limits")
    assert f"any user may put files into {directory}: leave the mode of that directory as it is" in public
    assert "chmod" not in public
    assert_in_guide(public, file=(directory / "x.limits", "/dev/shm/api.limits"), directory=(directory, "/dev/shm"))


def test_too_small_a_place_for_shared_memory_is_an_error_at_the_beginning(directory):
    mount = f"mount -t tmpfs -o size=1m tmpfs {directory} && exec "
    try:
        subprocess.run(["unshare", "-m", "sh", "-c", mount + "true"], check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("skipped: nothing can be mounted here")
    script = """
try:
    sl.open(sys.argv[1], sl.LimitSet("api", [sl.Calls("requests", 5, 60, algorithm="gcra")], keyed=10_000))
except sl.NoSpace as error:
    print(error)
print(os.listdir(os.path.dirname(sys.argv[1])))
"""
    command = ["unshare", "-m", "sh", "-c", mount + '"$@"', "sh"]
    message, left = lines_of(script, directory / "x.limits", command=command)
    assert re.match(r"no room for \d+ bytes at .*--shm-size", message)
    assert_in_guide(f"NoSpace: {message}", guide=CONTAINERS, path=(directory / "x.limits", "/dev/shm/myapp.limits"))
    assert left == "[]"


def test_a_segment_is_as_large_as_the_guide_says(directory):
    [claimed] = re.findall(
        r"One limit takes ([\d.]+) MB without keys, ([\d.]+) MB for 10,000 keys and ([\d.]+) MB for 100,000",
        CONTAINERS.read_text(),
    )
    for keyed, megabytes in zip([None, 10_000, 100_000], map(float, claimed), strict=True):
        path = directory / f"{keyed}.limits"
        limits = [sl.Calls("requests", 5, 60, algorithm="gcra")]
        sl.open(path, sl.LimitSet("api", limits, keyed=keyed)).close()
        assert path.stat().st_size / 1e6 == pytest.approx(megabytes, rel=0.06)


@pytest.mark.skipif(shutil.which("systemd-tmpfiles") is None, reason="skipped: there is no systemd-tmpfiles")
def test_the_line_for_tmpfiles_makes_the_directory(directory, tmp_path):
    [line] = re.findall(r"^d /run/myapp (.*) limits -$", SYSTEMD.read_text(), flags=re.MULTILINE)
    conf = tmp_path / "myapp.conf"
    conf.write_text(f"d {directory}/myapp {line} 2000 -\n")
    subprocess.run(["systemd-tmpfiles", "--create", str(conf)], check=True, timeout=60)
    status = (directory / "myapp").stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (0, 2000, 0o2750)
