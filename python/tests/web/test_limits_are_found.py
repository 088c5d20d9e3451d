"""The scheme `shm` is known to `limits` without anybody importing this package."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import PURELIB


def _run(interpreter: Path, program: str, *arguments: str) -> str:
    ran = subprocess.run(
        [str(interpreter), "-c", program, *arguments], capture_output=True, text=True, check=False, cwd="/"
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    return ran.stdout


def test_nothing_is_imported_before_it_is_needed(interpreter: Path) -> None:
    program = """
import json, sys
from_the_start = sorted(name for name in sys.modules if name.partition(".")[0] in ("limits", "shmlimit"))
import limits
print(json.dumps([from_the_start, "shmlimit" in sys.modules, "limits.storage" in sys.modules]))
"""
    plain = json.loads(_run(interpreter, "import json, sys; print(json.dumps(sorted(sys.modules)))"))
    from_the_start, has_package, has_storage = json.loads(_run(interpreter, program))
    assert "_shmlimit_limits_storage" in plain
    assert from_the_start == []
    assert not has_package
    assert has_storage


@pytest.mark.parametrize("scheme", ["shm", "async+shm"])
def test_a_storage_is_made_by_its_uri_alone(interpreter: Path, folder: Path, scheme: str) -> None:
    program = """
import sys
from limits.storage import storage_from_string
storage = storage_from_string(sys.argv[1], wrap_exceptions=True)
print(type(storage).__name__, storage.wrap_exceptions)
"""
    name = {"shm": "ShmStorage", "async+shm": "AsyncShmStorage"}[scheme]
    assert _run(interpreter, program, f"{scheme}://{folder}/limits") == f"{name} True\n"


def test_the_storage_module_is_loaded_as_ever(interpreter: Path) -> None:
    program = """
import importlib, sys
import limits.storage
from limits.storage import storage_from_string
loader = limits.storage.__spec__.loader
print(type(loader).__name__, "exec_module" in vars(loader), [f for f in sys.meta_path if "shmlimit" in str(f)])
importlib.reload(limits.storage)
print(limits.storage.SCHEMES["memory"].__name__)
"""
    assert _run(interpreter, program) == "SourceFileLoader False []\nMemoryStorage\n"


def test_python_starts_as_ever_where_the_hook_cannot_be_loaded(interpreter: Path, tmp_path: Path) -> None:
    home = tmp_path / "broken"
    shutil.copytree(interpreter.parents[1], home, symlinks=True)
    [packages] = home.glob("lib/python*/site-packages")
    (packages / "_shmlimit_limits_storage.py").write_text("raise RuntimeError\n")
    assert _run(home / "bin" / "python", "print('started')") == "started\n"
    (packages / "_shmlimit_limits_storage.py").unlink()
    assert _run(home / "bin" / "python", "print('started')") == "started\n"


def test_without_the_package_limits_fails_as_it_does_for_other_missing_ones(interpreter: Path, tmp_path: Path) -> None:
    home = tmp_path / "without"
    shutil.copytree(interpreter.parents[1], home, symlinks=True)
    program = """
import sys
sys.modules["shmlimit"] = None
from limits.storage import storage_from_string
assert type(storage_from_string("memory://")).__name__ == "MemoryStorage"
try:
    storage_from_string("shm:///dev/shm/never")
except ImportError:
    print("missing")
"""
    assert _run(home / "bin" / "python", program) == "missing\n"


def test_what_the_wheel_adds_is_one_line_of_python_and_one_module() -> None:
    assert sorted(file.name for file in PURELIB.iterdir() if file.is_file()) == [
        "_shmlimit_limits_storage.py",
        "shmlimit_limits_storage.pth",
    ]
    [line] = (PURELIB / "shmlimit_limits_storage.pth").read_text().splitlines()
    assert line.startswith("import ")
