"""The first hour of a new user, each step as it is typed: `pytest -s test_newcomer.py` prints what they see.

Each step comes with what it showed before it was improved, which is printed, too. PATH is the path of the segment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", Path(__file__).parents[3] / "target"))

QUICKSTART = """
import sys
import shmlimit as sl

limits = sl.open(sys.argv[1], sl.LimitSet("api", [
    sl.Calls("requests", int(sys.argv[2]), "1h", algorithm="sliding_window"),
]))["api"]
for call in range(7):
    result = limits.try_acquire()
    if result:
        with result:
            print("call", call, "goes, and", result.remaining, "remain")
    else:
        print("call", call, "is refused:", result)
"""

CELL = """
segment = sl.open(path, sl.LimitSet("notebook", [sl.Calls("requests", {number}, "1h", algorithm="sliding_window")]))
print("allowed:", sum(bool(segment["notebook"].check()) for _ in range(9)))
"""

WRONG = """
import sys, traceback
import shmlimit as sl

def see(typed):
    print(">>>", typed)
    try:
        print(eval(typed))
    except Exception:
        print(traceback.format_exc(limit=0).strip())

path = sys.argv[1]
see('sl.open(path, sl.LimitSet("api", [sl.Calls("requests", -5, "1h")]))')
see('sl.open(path, sl.LimitSet("api", [sl.Calls("requests", 5, "an hour")]))')
see('sl.open(path, sl.LimitSet("api", [sl.Calls("requests", 5, "1h", algorithm="bucket")]))')
see('sl.open(path, sl.LimitSet("api", [sl.Calls("requests")]))')
see('sl.open("/nowhere/api.limits", sl.LimitSet("api", [sl.Calls("requests", 5, "1h")]))')
see('sl.open(path)')
api = sl.open(path, sl.LimitSet("api", [sl.Calls("requests", 5, "1h"), sl.Rate("tokens", 100, "1h")]))["api"]
see('api.try_acquire(5)')
see('api.try_acquire({"token": 5})')
see('api.try_acquire()')
see('api.try_acquire({"tokens": -1})')
see('api.try_acquire({"tokens": 500})')
see('api.try_acquire({"tokens": 5}, key="me")')
see('sl.open(path)["apis"]')
see('sl.open(path, sl.LimitSet("api", sl.Calls("requests", 5, "1h")))')
see('sl.open(path, sl.LimitSet("api", [sl.Calls(b"requests", 5, "1h")]))')
see('sl.open(path, sl.LimitSet("api", [sl.Calls("requests", 10**30, "1h")]))')
see('sl.open(path, sl.LimitSet("api", [sl.Calls("requests", 5, "1h")], keyed="address"))')
see('sl.open(path, sl.LimitSet("api", [sl.Calls("requests", 5, "1h")], keyed=-3))')
see('sl.open(path, sl.LimitSet("api", [sl.Calls("requests", 5, "1h")]), mode="rw")')
see('api.peek()')
see('api.limited(5)')
see('api.acquire_async(5)')
see('api.acquire({"tokens": 5}, timeout=-1)')
see('sl.remove("/nowhere/api.limits")')
"""

MODE = """
import sys
import shmlimit as sl

path = sys.argv[1]
limits = sl.LimitSet("api", [sl.Calls("requests", 5, "1h", algorithm="sliding_window")])
sl.open(path, limits)
for mismatch in sl.open(path, limits, mode=0o660).mismatches:
    print("a mismatch:", mismatch["outcome"], mismatch["differences"])
"""

CONCURRY = """
import sys
from shmlimit.concurry import CallLimit, LimitSet

for capacity in (10, 20):
    try:
        limits = LimitSet([CallLimit(window=60, capacity=capacity)], shared=True, path=sys.argv[1], name="api")
        print(capacity, "calls:", sum(limits.try_acquire().successful for _ in range(30)), "go")
    except Exception as error:
        print(capacity, "calls:", type(error).__name__, error)
"""

RAISED = """
import sys
import shmlimit as sl

def open_of(capacity):
    declared = sl.LimitSet("api", [sl.Calls("requests", capacity, 60, algorithm="sliding_window")])
    return sl.open(sys.argv[1], declared, clock=clock)["api"]

clock = sl.VirtualClock(0)
open_of(2)
limits, admitted = open_of(60), 0
for second in range(600):
    admitted += bool(limits.check())
    clock.advance(1)
print(admitted, "of 600 calls, one a second, go by a limit of 60 a minute that was 2")
"""

OTHER_USER = """
import os, sys
import shmlimit as sl
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    print(sl.open(sys.argv[1])["api"].try_acquire())
except PermissionError as error:
    print("PermissionError:", error)
"""


REDEPLOYED_BEFORE = """
Traceback (most recent call last):
  ...
shmlimit._errors.ConfigMismatch: PATH was created with another declaration: set "api" / limit "requests" / capacity:
declared 8, in the segment 5, set "api" / limit "requests" / entries: declared 8, in the segment 5
"""

NOTEBOOK_BEFORE = """
allowed: 5
Traceback (most recent call last):
  ...
shmlimit._errors.ConfigMismatch: PATH was created with another declaration: set "notebook" / limit "requests" /
capacity: declared 8, in the segment 5, set "notebook" / limit "requests" / entries: declared 8, in the segment 5
"""

CONCURRY_BEFORE = """
10 calls: 10 go
20 calls: ConfigMismatch PATH has another declaration: set "api" / limit "call_count" / entries: declared 20, in the
segment 10, set "api" / limit "call_count" / capacity: declared 20, in the segment 10 (this could change in the live
segment); this cannot change in a live segment: end the processes that use it and remove it with `limitctl remove PATH`,
or open it with on_mismatch = recreate_if_unused when they have ended; what was counted is lost then
"""

RAISED_BEFORE = """
PATH: set `api` was changed to another declaration of the same version, ...: declared 60, in the segment 2
426 of 600 calls, one a second, go by a limit of 60 a minute that was 2
"""

OTHER_USER_BEFORE = """
Traceback (most recent call last):
  ...
shmlimit._errors.SegmentError: cannot open PATH: Permission denied (os error 13)
"""


def show(step: str, now: str, before: str = "the same") -> None:
    """Prints what a step shows now, and what it showed before."""
    for when, shown in [("now", now), ("before", before)]:
        sys.stdout.write(f"\n--- {step}, {when}:\n{shown.strip() or '(nothing)'}\n")


@pytest.fixture
def path(segment_path: Path) -> str:
    return str(segment_path)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., str]:
    """Saves a script, runs it, and returns what a user sees of it."""

    def run(title: str, script: str, *arguments: object, python: str = sys.executable) -> str:
        file = tmp_path / f"{title.replace(' ', '_')}.py"
        file.write_text(script)
        command = [python, str(file), *map(str, arguments)]
        ended = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False
        )
        assert ended.returncode == 0, ended.stdout
        return ended.stdout

    return run


@pytest.fixture
def installed(tmp_path: Path) -> str:
    """An interpreter of a new environment, into which a wheel was installed."""
    if not list((TARGET / "wheels").glob("shmlimit-*.whl")):
        pytest.skip(f"no wheel in {TARGET / 'wheels'}: python/check and python/wheels build them")
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=True)
    command = [environment / "bin" / "pip", "install", "--no-index", "--find-links", TARGET / "wheels", "shmlimit"]
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0
    return str(environment / "bin" / "python")


def test_what_is_installed_runs_the_first_example(installed: str, run: Callable[..., str], path: str) -> None:
    shown = run("quickstart", QUICKSTART, path, 5, python=installed)
    assert shown.count("goes") == 5


def test_the_first_example_and_a_redeploy_with_another_number(run: Callable[..., str], path: str) -> None:
    first = run("app", QUICKSTART, path, 5).splitlines()
    assert first[0] == "call 0 goes, and 4 remain"
    assert first[4] == "call 4 goes, and 0 remain"
    assert "call 5 is refused" in first[5]
    assert "requests" in first[5]
    again = run("app", QUICKSTART, path, 5)
    assert again.count("is refused") == 7, "the limit outlives its process"
    redeployed = run("app", QUICKSTART, path, 8)
    show("the first example", "\n".join(first))
    show("a redeploy with another number", redeployed, REDEPLOYED_BEFORE)
    assert "Traceback" not in redeployed
    assert "capacity: declared 8, in the segment 5" in redeployed, "a warning says what was changed"
    assert redeployed.count("goes") == 3, "what was counted counts still"


def test_a_cell_of_a_notebook_that_is_run_again_with_another_number(run: Callable[..., str], path: str) -> None:
    cells = (
        f"import shmlimit as sl\npath = {path!r}\n{CELL.format(number=5)}{CELL.format(number=8)}{CELL.format(number=8)}"
    )
    shown = run("notebook", cells)
    show("a cell of a notebook, three times", shown, NOTEBOOK_BEFORE)
    assert [line for line in shown.splitlines() if line.startswith("allowed")] == [
        "allowed: 5",
        "allowed: 3",
        "allowed: 0",
    ]
    assert shown.count("capacity: declared 8, in the segment 5") == 1


def test_wrong_values_say_what_is_wrong_and_what_to_write(run: Callable[..., str], path: str) -> None:
    shown = run("wrong", WRONG, path)
    answers = [block.strip().split("\n", 1) for block in shown.split(">>> ")[1:]]
    says = [
        (
            "DeclarationError",
            'set "api" / limit "requests" / capacity',
            "DeclarationError: this is not a declaration: invalid value: integer `-5`, expected a whole number ...",
        ),
        (
            "DeclarationError",
            'set "api" / limit "requests" / window',
            'DeclarationError: this is not a declaration: "an hour" is not a window: write a length such as "60s", ...',
        ),
        (
            "DeclarationError",
            "algorithm",
            "DeclarationError: this is not a declaration: unknown variant `bucket`, expected one of `gcra`, ...",
        ),
        (
            "DeclarationError",
            "missing field `capacity`",
            "TypeError: Calls.__init__() missing 1 required positional argument: 'capacity'",
        ),
        (
            "NotFound",
            "/nowhere",
            "SegmentError: cannot create /nowhere/api.limits: No such file or directory (os error 2)",
        ),
        (
            "NotFound",
            "give `open` a `config`",
            "NotFound: there is no segment at PATH: create it with `limitctl create` or open_or_create",
        ),
        ("TypeError", "limits", "AttributeError: 'int' object has no attribute 'items'"),
        (
            "UnknownLimit",
            "`token`",
            "UnknownLimitWarning: set `api` has no limit `token`, which is skipped; <Permit of api: {'requests': 1}>",
        ),
        ("CostRequired", "tokens", "CostRequired: limit `tokens` of set `api` is a rate: the request must name a cost"),
        ("InvalidAmount", "-1", "ValueError: -1 is not an amount: choose from 0 to 18446744073709551615"),
        ("NeverAdmissible", "can never be admitted", "the same"),
        ("InvalidKey", "not keyed", "the same"),
        ("UnknownName", "apis", "the same"),
        ("TypeError", 'set "api" / limits is Calls(', "TypeError: 'Calls' object is not iterable"),
        (
            "TypeError",
            "set \"api\" / limit b'requests' / name",
            "TypeError: Object of type bytes is not JSON serializable",
        ),
        (
            "DeclarationError",
            "is more than 18446744073709551615 units",
            'DeclarationError: this is not a declaration: 1000... without quotes is a binary fraction: write "1000..."',
        ),
        (
            "TypeError",
            "give a Keyed, or how many keys there is room for",
            "TypeError: 'address' is not a declaration: give a LimitSet of Rate, Calls, Budget and Concurrency",
        ),
        (
            "DeclarationError",
            'set "api" / keyed / max_keys is -3',
            "DeclarationError: this is not a declaration: invalid value: integer `-3`, expected u64",
        ),
        ("DeclarationError", "octal digits", "ValueError: Unknown format code 'o' for object of type 'str'"),
        (
            "CostRequired",
            "forecast",
            "CostRequired: limit `tokens` of set `api` is a rate: the request must name a cost",
        ),
        ("TypeError", "5 is not a function", "<function wrap.<locals>.wrapper at 0x7fa5bd54c040>"),
        ("TypeError", "5 names no limits", "<shmlimit._acquisition.Acquisition object at 0x7fa5bd6eada0>"),
        ("ValueError", "timeout is -1", "<Permit of api: {'requests': 1, 'tokens': 5}>"),
        (
            "NotFound",
            "nothing was removed",
            "NotFound: there is no segment at /nowhere/api.limits: create it with `limitctl create` or open_or_create",
        ),
    ]
    assert len(answers) == len(says)
    for (typed, answer), (error, words, before) in zip(answers, says, strict=True):
        show(f">>> {typed}", answer, before)
        assert error in answer.splitlines()[-1], f"{typed}: {answer}"
        assert words in answer, f"{typed}: {answer}"


def test_a_mode_for_a_file_that_exists_is_not_ignored_silently(run: Callable[..., str], path: str) -> None:
    shown = run("mode", MODE, path)
    show("a mode for a file that exists", shown, "")
    assert shown.count(f"chmod 0660 {path}") == 2, "a warning says it, and so does `mismatches`"


def test_a_set_with_concurrys_names_starts_again_with_another_number(run: Callable[..., str], path: str) -> None:
    shown = run("concurry", CONCURRY, path)
    show("Concurry's names and another number", shown, CONCURRY_BEFORE)
    assert "10 calls: 10 go" in shown
    assert "20 calls: 10 go" in shown


def test_a_sliding_window_that_is_raised_admits_its_new_number(run: Callable[..., str], path: str) -> None:
    shown = run("raised", RAISED, path)
    show("a sliding window that is raised", shown, RAISED_BEFORE)
    assert "600 of 600 calls" in shown


@pytest.mark.skipif(os.geteuid() != 0, reason="two users: only root may become another one")
def test_another_user_is_told_whose_the_file_is_and_how_to_share_it(run: Callable[..., str], path: str) -> None:
    run("app", QUICKSTART, path, 5)
    refused = run("other user", OTHER_USER, path)
    show("another user", refused, OTHER_USER_BEFORE)
    assert refused.startswith("PermissionError:")
    assert "run all its users as one user, or let a group have it" in refused
    os.chown(path, 0, 65534)
    os.chmod(path, 0o660)
    shared = run("other user of the group", OTHER_USER, path)
    show("another user of the group", shared)
    assert "api" in shared
    assert "PermissionError" not in shared
