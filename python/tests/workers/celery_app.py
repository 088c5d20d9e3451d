"""The Celery application that the workers of test_celery run, over directories instead of a broker."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import celery_directories  # noqa: F401  (registers the broker's scheme, and has the results)
from celery import Celery  # type: ignore[import-untyped, import-not-found, unused-ignore]

import shmlimit as sl
from shmlimit.celery import LimitedTask, limited

DIRECTORY = Path(os.environ["SHMLIMIT_CELERY_DIRECTORY"])
SEGMENT = DIRECTORY / "jobs.limits"
LIMITS = [
    sl.LimitSet("two_places", [sl.Concurrency("places", 2)]),
    sl.LimitSet("killed", [sl.Concurrency("places", 2)]),
    sl.LimitSet("taken", [sl.Concurrency("places", 1)]),
    sl.LimitSet("failing", [sl.Concurrency("places", 1)]),
    sl.LimitSet("revoked", [sl.Concurrency("places", 1)]),
    sl.LimitSet("late", [sl.Concurrency("places", 1)]),
    sl.LimitSet("by_rate", [sl.Calls("started", 2, 1.0, algorithm="sliding_window")]),
    sl.LimitSet("tenants", [sl.Rate("tokens", 1000, "30d", algorithm="token_bucket")], keyed=100),
]

for directory in ("queue", "control", "results"):
    (DIRECTORY / directory).mkdir(exist_ok=True)

app = Celery(
    "celery_app", broker="directories://", backend=f"celery_directories.Results+file://{DIRECTORY / 'results'}"
)
app.conf.update(
    broker_transport_options={
        "data_folder_in": str(DIRECTORY / "queue"),
        "data_folder_out": str(DIRECTORY / "queue"),
        "control_folder": str(DIRECTORY / "control"),
        "polling_interval": 0.02,
    },
    broker_connection_retry_on_startup=True,
    result_backend_always_retry=False,
    task_default_queue="shared",
    worker_lost_wait=0.5,
    worker_prefetch_multiplier=1,
)
segment = sl.open(SEGMENT, config=LIMITS)
REMOVED = DIRECTORY / "removed.limits"
removed = sl.open(REMOVED, config=LIMITS[0])


def hold_until(name: str) -> int:
    """Stay busy until the test creates a file of this name."""
    while not (DIRECTORY / name).exists():
        time.sleep(0.005)
    return os.getpid()


@app.task(base=limited(segment["two_places"]))
def hold_one_of_two() -> int:
    return hold_until("two_places")


@app.task(base=limited(removed["two_places"], retry_delay=0.05))
def run_in_what_was_removed() -> str:
    return "ran"


@app.task(base=limited(segment["killed"]), acks_late=True, reject_on_worker_lost=True)
def hold_and_be_killed() -> int:
    return hold_until("killed")


@app.task(base=limited(segment["revoked"]))
def hold_and_be_revoked() -> int:
    return hold_until("revoked")


@app.task(bind=True, base=limited(segment["by_rate"], timeout=0), max_retries=0)
def count_retries(self: Any) -> int:
    retries: int = self.request.retries
    return retries


@app.task(base=limited(segment["taken"], timeout=0.01, max_refusals=2, retry_delay=0.01))
def give_up_after_two_refusals() -> str:
    return "ran"


@app.task(base=limited(segment["taken"], timeout=0, retry_delay=0.01))
def come_back_until_admitted() -> str:
    return "ran"


@app.task
def follow(before: str) -> list[str]:
    return [before, "followed"]


@app.task(base=limited(segment["taken"], timeout=0, when_refused="fail"))
def fail_when_refused() -> str:
    return "ran"


@app.task(base=limited(segment["late"]), soft_time_limit=1)
def wait_longer_than_allowed() -> str:
    return "ran"


@app.task(base=limited(segment["failing"]))
def fail() -> None:
    raise LookupError("as it was asked to")


@app.task(bind=True, base=limited(segment["failing"]), max_retries=1)
def fail_then_succeed(self: Any) -> int:
    if self.request.retries == 0:
        raise self.retry(countdown=0)
    retries: int = self.request.retries
    return retries


class Context(app.Task):  # type: ignore[misc, name-defined, unused-ignore]
    """An application's own class of tasks, of the kind that sets something up around each task."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return ["in context", super().__call__(*arguments, **keywords)]


@app.task(bind=True, base=limited(segment["failing"], base=Context))
def run_in_context(self: Any) -> bool:
    return self.permit is not None


class Spend(limited(segment["tenants"], lambda tenant, **_: {"tokens": 100}, key=lambda tenant, **_: tenant)):  # type: ignore[misc]
    """A task as a class, which settles what it used."""

    name = "spend"

    def run(self, tenant: str, *, used: int) -> int:
        assert self.permit is not None
        settled = self.permit.settle(tokens=used)
        refunded: int = settled.refunded["tokens"]
        return refunded


spend = app.register_task(Spend())
assert isinstance(spend, LimitedTask)
