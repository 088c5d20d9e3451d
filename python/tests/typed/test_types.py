"""Programs that use every public name run, and type checkers find nothing in them."""

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import shmlimit as sl

PROGRAM = Path(__file__).parent / "every_name.py"
OPTIONS = PROGRAM.with_name("web_options.py")


def checked(*command):
    run = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, timeout=280, check=False)
    return run.returncode, run.stdout + run.stderr


def test_every_public_name_is_used():
    used = {
        node.attr
        for node in ast.walk(ast.parse(PROGRAM.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sl"
    }
    assert set(sl.__all__) - used == set()


def test_the_program_runs(tmp_path):
    command = [sys.executable, str(PROGRAM), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    assert sl.__version__ in run.stdout


def test_mypy_finds_nothing_in_it_and_knows_the_options_of_integrations():
    code, said = checked("mypy", "--strict", "--no-incremental", "--config-file=", str(PROGRAM), str(OPTIONS))
    assert code == 0, said


@pytest.mark.skipif(shutil.which("node") is None, reason="skipped: pyright needs node, which is not installed")
def test_pyright_finds_nothing_in_it(tmp_path):
    pytest.importorskip("pyright")
    if checked("pyright", "--version")[0] != 0:
        pytest.skip("skipped: pyright cannot be downloaded")
    settings = tmp_path / "pyrightconfig.json"
    settings.write_text(json.dumps({"include": [str(PROGRAM)], "typeCheckingMode": "strict"}))
    code, said = checked("pyright", "--project", str(settings), "--pythonpath", sys.executable)
    assert code == 0, said
