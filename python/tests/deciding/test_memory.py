"""A process that takes and releases permits for ever does not grow."""

from __future__ import annotations

from pathlib import Path

from observing import output_of, run_role

MEMORY = Path(__file__).parents[2] / "benches" / "memory.py"


def test_a_million_permits_leave_the_process_as_large_as_it_was() -> None:
    code, output, errors = output_of(run_role(MEMORY, "--pairs", 1_000_000))
    assert code == 0, errors
    # One byte per pair would add up to a million; the interpreter itself accounts for a few pages.
    assert int(output.split(": ")[1].split()[0]) < 256 * 1024
