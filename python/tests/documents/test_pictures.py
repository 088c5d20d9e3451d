"""The pictures are what their programs draw. Where times come from a real run, the texts are compared without them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def drawn(name: str, directory: Path, *options: str) -> str:
    picture = directory / "drawn.svg"
    program = ROOT / "python" / "benches" / f"{name}.py"
    subprocess.run([sys.executable, program, "--picture", picture, *options], check=True, timeout=120)
    return picture.read_text()


def kept(name: str) -> str:
    return (ROOT / "docs" / "images" / f"{name}.svg").read_text()


@pytest.mark.parametrize("name", ["algorithms", "segment"])
def test_the_picture_in_the_documents_is_what_its_program_draws(name: str, tmp_path: Path) -> None:
    assert drawn(name, tmp_path) == kept(name), "docs/images/renew draws it again"


def test_a_death_goes_on_as_the_picture_says(tmp_path: Path) -> None:
    def texts(picture: str) -> set[str]:
        return {re.sub(r"[\d.]+ ms", "ms", text) for text in re.findall(r">([^<\n]+)</text>", picture)}

    assert texts(drawn("death", tmp_path, "--rounds", "1")) == texts(kept("death")), "docs/images/renew draws it again"
