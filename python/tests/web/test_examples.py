"""The examples show what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "web").glob("with_*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_an_example_shows_one_limit_across_four_workers(example: Path) -> None:
    ran = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0].endswith("4 workers, 40 requests:")
    assert [line.split() for line in lines[1:3]] == [["5", "x", "200"], ["35", "x", "429"]]
