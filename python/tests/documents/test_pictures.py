"""The pictures that come out the same each time are those in the documents."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_what_each_algorithm_admits_is_what_the_picture_shows(tmp_path: Path) -> None:
    drawn = tmp_path / "algorithms.svg"
    program = ROOT / "python" / "benches" / "algorithms.py"
    subprocess.run([sys.executable, program, "--picture", drawn], check=True)
    kept = ROOT / "docs" / "images" / "algorithms.svg"
    assert drawn.read_text() == kept.read_text(), "docs/images/renew draws it again"
