"""The page about the web names what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "python" / "web.md"


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#]+)\)", PAGE.read_text()))))
def test_a_link_leads_somewhere(link: str) -> None:
    assert (PAGE.parent / link).exists()


def test_the_code_is_python_and_imports_what_there_is() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert blocks
    for block in blocks:
        compile(block, str(PAGE), "exec")
        for line in re.findall(r"^(?:from shmlimit|import shmlimit).*$", block, flags=re.MULTILINE):
            exec(line, {})
