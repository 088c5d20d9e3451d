"""The examples of worker fleets run as their own first lines say, and show what they promise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from observing import output_of, run_role

EXAMPLES = Path(__file__).parents[2] / "examples"


def output_of_example(name: str, *arguments: object) -> str:
    """What an example prints."""
    code, output, errors = output_of(run_role(EXAMPLES / name, *arguments))
    assert code == 0, errors
    return output


def numbers_in(output: str, pattern: str) -> list[int]:
    """The numbers in the place that matches."""
    found = re.search(pattern, output)
    assert found, output
    return [int(number) for number in found.groups()]


def assert_at_most_two(output: str) -> None:
    """Checks how many ran at once by the output: two, or one if a busy machine ran them in turn."""
    assert numbers_in(output, r"ran at once: (\d+)")[0] in {1, 2}


def test_the_language_model_never_answers_429_and_its_quota_is_used() -> None:
    # With more slack than any machine needs, however busy it is with other tests.
    output = output_of_example("llm_client.py", "--seconds", 6, "--window", 2, "--slack", 1)
    assert numbers_in(output, r"answered 429 (\d+) times") == [0]
    requests, tokens = numbers_in(output, r"used: (\d+) % of the requests, (\d+) % of the tokens")
    # Windows longer by a slack of half their length make the rates two thirds of the quotas.
    assert max(requests, tokens) >= 50


def test_four_processes_use_the_quota_up_and_not_more() -> None:
    code, output, errors = output_of(run_role(EXAMPLES.parents[1] / "examples" / "llm_quota.py"))
    assert code == 0, errors
    [used] = numbers_in(output, r"used (\d+) of 20000 tokens")
    # The four processes leave less than a reservation unused, while time adds tokens, 20,000 in an hour.
    assert 19_000 <= used <= 22_000


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


def test_concurrys_workers_are_admitted_as_much_by_either_library() -> None:
    pytest.importorskip("concurry")
    lines = output_of_example("moving/from_concurry.py").splitlines()
    assert [line.split(" (")[0].split() for line in lines] == [
        [mode, module, "admitted", "5", "of", "20"]
        for mode in ("thread", "process")
        for module in ("concurry", "shmlimit.concurry")
    ]


def test_a_bucket_drains_as_that_of_the_actor_on_ray() -> None:
    pytest.importorskip("ray", reason="ray has no release for this version of Python")
    actor, ours, bound = output_of_example("moving/from_ray_actor.py").splitlines()
    assert bound == "the declaration says: at most 5 in any 1s"
    for line in (actor, ours):
        quarters = [float(word) for word in line.split()[1:]]
        # Two at once, and then not before each quarter of a second; a busy machine may be later.
        assert all(quarter >= turn - 1.1 for turn, quarter in enumerate(quarters)), line


def test_the_axes_of_throttlekit_answer_as_documented_there() -> None:
    output = output_of_example("moving/from_throttlekit.py")
    for line in (
        "allowed 20 of 21",
        "rate retry after 0.6 s",
        "[False, True, True]",
        "19 remaining",
        "True and counts in full",
        "False until the window ends",
        "the third is refused by concurrency",
        "25 admitted from batches of 10",
    ):
        assert line in output


def test_the_limiters_of_sidekiq_have_their_like_here() -> None:
    output = output_of_example("moving/from_sidekiq.py")
    assert output.count("True") == 4
    assert "over the limit by running" in output
    assert "5 of 9 for a user" in output
    assert "60 of 70 at once" in output


def test_buckets_for_each_entity_are_charged_all_or_none() -> None:
    output = output_of_example("moving/from_entity_buckets.py")
    assert "the class requests left after ten refusals for want of tokens: False" in output
    assert "shmlimit  requests left after ten refusals for want of tokens: True" in output
    assert "shmlimit  admitted of 10 with 20 threads at once: 10" in output
    assert "check_and_wait: False" in output
