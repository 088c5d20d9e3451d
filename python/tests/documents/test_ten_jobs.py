"""Everything that a new user does in a day, with what is installed: `pytest -s` prints the times."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "ten_jobs.py"


@pytest.mark.skipif(find_spec("sqlalchemy") is None, reason="needs the broker of the example for Celery")
def test_a_new_user_gets_through_all_ten_jobs() -> None:
    done = subprocess.run([sys.executable, EXAMPLE, "--installed"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    sys.stdout.write(done.stdout)
    assert [line.split(".")[0].strip() for line in done.stdout.splitlines()] == [str(job) for job in range(1, 11)]
