"""The first hour of a new user, each step as it is typed: `pytest -s test_newcomer.py` prints what they see."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", Path(__file__).parents[2] / "target"))

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


@pytest.fixture
def path(segment_path: Path) -> str:
    return str(segment_path)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., str]:
    """Saves a script, runs it, and shows what a user sees of it."""

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
    assert "Traceback" not in redeployed
    assert "capacity: declared 8, in the segment 5" in redeployed, "a warning says what was changed"
    assert redeployed.count("goes") == 3, "what was counted counts still"


def test_a_cell_of_a_notebook_that_is_run_again_with_another_number(run: Callable[..., str], path: str) -> None:
    cells = (
        f"import shmlimit as sl\npath = {path!r}\n{CELL.format(number=5)}{CELL.format(number=8)}{CELL.format(number=8)}"
    )
    shown = run("notebook", cells)
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
        ("DeclarationError", 'set "api" / limit "requests" / capacity'),
        ("DeclarationError", 'set "api" / limit "requests" / window'),
        ("DeclarationError", "algorithm"),
        ("DeclarationError", "missing field `capacity`"),
        ("NotFound", "/nowhere"),
        ("NotFound", "give `open` a `config`"),
        ("TypeError", "limits"),
        ("UnknownLimit", "`token`"),
        ("CostRequired", "tokens"),
        ("InvalidAmount", "-1"),
        ("NeverAdmissible", "can never be admitted"),
        ("NotKeyed", "not keyed"),
        ("UnknownSet", "apis"),
    ]
    assert len(answers) == len(says)
    for (typed, answer), (error, words) in zip(answers, says, strict=True):
        assert error in answer.splitlines()[-1], f"{typed}: {answer}"
        assert words in answer, f"{typed}: {answer}"


@pytest.mark.skipif(os.geteuid() != 0, reason="two users: only root may become another one")
def test_another_user_is_told_whose_the_file_is_and_how_to_share_it(run: Callable[..., str], path: str) -> None:
    run("app", QUICKSTART, path, 5)
    refused = run("other user", OTHER_USER, path)
    assert refused.startswith("PermissionError:")
    assert "run all its users as one user, or let a group have it" in refused
    os.chown(path, 0, 65534)
    os.chmod(path, 0o660)
    shared = run("other user of the group", OTHER_USER, path)
    assert "api" in shared
    assert "PermissionError" not in shared
