"""Greenlets that wait let the others of their hub run. gevent patches a whole process, so each test has its own."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from observing import output_of, run_role

# Looked for, not imported: in a process that has imported gevent, `acquire` is a different function.
pytestmark = pytest.mark.skipif(find_spec("gevent") is None, reason="needs gevent")

ROLES = Path(__file__).with_name("greenlet_roles.py")


@pytest.mark.parametrize("how", ["acquire", "late", "key", "labelled", "pool", "limited", "wsgi", "executor"])
def test_other_greenlets_run_while_one_waits(segment_path: Path, how: str) -> None:
    code, output, errors = output_of(run_role(ROLES, how, segment_path))
    assert (code, output) == (0, "['held', 'held', 'held'] 0\n"), errors


def test_greenlets_that_are_ended_or_out_of_time_leave_the_queue(segment_path: Path) -> None:
    code, output, errors = output_of(run_role(ROLES, "ended", segment_path))
    assert (code, output) == (0, "0 True\n0\n0\n0\nheld\n"), errors


def test_a_forked_child_does_not_take_what_wakes_its_parents_greenlets(segment_path: Path) -> None:
    code, output, errors = output_of(run_role(ROLES, "forked", segment_path))
    assert (code, output) == (0, "held\n"), errors
