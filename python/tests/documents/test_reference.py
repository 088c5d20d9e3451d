"""The pages of the reference are what the sources and `limitctl` say."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(shutil.which("limitctl") is None, reason="no limitctl")
def test_the_pages_of_the_reference_are_those_that_are_written_now(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "tools" / "reference", tmp_path], check=True, timeout=120)
    kept, written = (
        {page.name: page.read_text() for page in directory.iterdir()}
        for directory in (ROOT / "docs" / "reference", tmp_path)
    )
    assert kept == written, "tools/reference writes them again"
