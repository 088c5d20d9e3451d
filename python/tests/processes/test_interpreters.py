"""The package in several interpreters of one process, as some servers have them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from observing import output_of, run_role

INTERPRETERS = Path(__file__).with_name("interpreters.py")

pytestmark = pytest.mark.skipif(sys.version_info >= (3, 13), reason="its module is another in later versions")


@pytest.mark.parametrize("first", ["main", "sub"])
def test_a_second_interpreter_is_refused_and_told_what_to_configure(first: str) -> None:
    code, output, errors = output_of(run_role(INTERPRETERS, first))
    assert code == 0, errors
    imported, *refused = output.splitlines()
    assert imported == "imported"
    assert len(refused) == 2
    for error in refused:
        assert error.startswith("ImportError: ")
        assert "--single-interpreter" in error
        assert "application-group=%{GLOBAL}" in error
