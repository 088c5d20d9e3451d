"""The examples of worker fleets run as their own first lines say, and show what they promise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from observing import output_of, run_role

EXAMPLES = Path(__file__).parent.parent / "examples"


def output_of_example(name: str, *arguments: object) -> str:
    """What an example prints."""
    code, output, errors = output_of(run_role(EXAMPLES / name, *arguments))
    assert code == 0, errors
    return output


def numbers_in(output: str, pattern: str) -> list[int]:
    """The numbers of the only place that matches."""
    found = re.search(pattern, output)
    assert found, output
    return [int(number) for number in found.groups()]


def assert_at_most_two(output: str) -> None:
    """That it says how many ran at once, and no more did than may; a busy machine may have run them in turn."""
    assert numbers_in(output, r"ran at once: (\d+)")[0] in {1, 2}


def test_the_language_model_never_answers_429_and_its_quota_is_used() -> None:
    # With a slack of which no machine is in need, however busy with other tests.
    output = output_of_example("llm_client.py", "--seconds", 6, "--window", 2, "--slack", 1)
    assert numbers_in(output, r"answered 429 (\d+) times") == [0]
    requests, tokens = numbers_in(output, r"used: (\d+) % of the requests, (\d+) % of the tokens")
    # A third of a window longer makes the rates two thirds of the quotas.
    assert max(requests, tokens) >= 50


def test_the_process_pools_run_two_at_once() -> None:
    assert_at_most_two(output_of_example("process_pool.py"))


def test_the_multiprocessing_pools_admit_twelve_each() -> None:
    output = output_of_example("multiprocessing_pool.py")
    assert output == "".join(f"{method}: 12 of 200 were admitted\n" for method in ("fork", "spawn", "forkserver"))


def test_joblib_runs_two_at_once() -> None:
    pytest.importorskip("joblib")
    assert_at_most_two(output_of_example("joblib_loky.py"))


def test_ray_runs_two_at_once() -> None:
    pytest.importorskip("ray", reason="ray has no release for this version of Python")
    assert_at_most_two(output_of_example("ray_actors.py"))


def test_celery_runs_two_at_once() -> None:
    pytest.importorskip("celery")
    assert_at_most_two(output_of_example("celery_workers.py"))
