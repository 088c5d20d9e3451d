"""What the documentation shows runs."""

import logging
import re
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[2] / "docs" / "python.md"


def test_the_examples_of_the_documentation_run(segment_path, tmp_path, capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 10

    class Answer:
        usage = 900

    names = {"path": segment_path, "directory": tmp_path, "call_the_model": Answer}
    logger = logging.getLogger("shmlimit")
    level, handlers = logger.level, list(logger.handlers)
    try:
        for block in blocks:
            exec(compile(block, str(DOCUMENT), "exec"), names)
    finally:
        logger.setLevel(level)
        logger.handlers[:] = handlers
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", DOCUMENT.read_text()))))
def test_the_documentation_links_to_what_is_there(link):
    assert (DOCUMENT.parent / link).exists()
