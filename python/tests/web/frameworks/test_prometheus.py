"""A scrape of any one of several workers has the figures of all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

import shmlimit as sl
from shmlimit.prometheus import SegmentCollector

from ..conftest import Serve


def _samples(exposition: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(exposition)
    return {
        (sample.name, frozenset((name, value) for name, value in sample.labels.items() if value)): sample.value
        for family in families
        for sample in family.samples
    }


def _requests(segment: str, result: str, **more: str) -> tuple[str, frozenset[tuple[str, str]]]:
    labels = {"segment": segment, "set": "api", "result": result, **more}
    return "shmlimit_requests_total", frozenset(labels.items())


@pytest.mark.parametrize("options", [[], ["--preload"]], ids=["each-opens", "forked"])
def test_each_of_four_gunicorn_workers_answers_what_all_have_counted(
    serve: Serve, directory: Path, options: list[str]
) -> None:
    path = str(directory / "segment")
    segment = sl.open(path, sl.LimitSet("api", [sl.Calls("requests", 5, "1d", algorithm="fixed_window")]))
    server = serve("gunicorn", "with_prometheus:app", *options)
    replies = server.get_many(200)
    assert sorted(reply.status for reply in replies) == [200] * 5 + [429] * 195
    scrapes = {reply.body for reply in server.get_many(32, "/metrics")}
    assert len(scrapes) == 1, "whichever worker answers"
    samples = _samples(scrapes.pop().decode())
    assert samples[_requests(path, "admitted")] == 5
    assert samples[_requests(path, "refused")] == 195
    assert samples[_requests(path, "refused", limit="requests")] == 195
    [counted] = segment.snapshot()["sets"]
    assert counted["counts"]["admitted"] == 5


def test_one_collector_has_the_segments_of_a_registry_and_never_a_key(directory: Path) -> None:
    tenants = sl.LimitSet("tenants", [sl.Concurrency("in_flight", 2)], keyed=10)
    one = sl.open(directory / "one", sl.LimitSet("api", [sl.Concurrency("in_flight", 2)]))
    other = sl.open(directory / "other", tenants)
    registry = CollectorRegistry(auto_describe=True)
    registry.register(SegmentCollector(one, other))
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(SegmentCollector(one))
    with other["tenants"].acquire(key="secret-tenant", timeout=30):
        exposition = generate_latest(registry).decode()
    samples = _samples(exposition)
    held = {
        dict(labels)["segment"]: value
        for (name, labels), value in samples.items()
        if name == "shmlimit_active_permits" and ("limit", "in_flight") in labels
    }
    assert held == {str(directory / "one"): 0, str(directory / "other"): 1}
    assert "secret-tenant" not in exposition
    assert exposition.count("# TYPE shmlimit_requests_total counter") == 1


def test_what_limitctl_and_the_collector_say_in_openmetrics_is_read_strictly(directory: Path) -> None:
    path = str(directory / "segment")
    segment = sl.open(path, sl.LimitSet("api", [sl.Calls("requests", 5, "1d", algorithm="fixed_window")]))
    for _ in range(7):
        segment["api"].try_acquire()
    limitctl = Path(sys.executable).with_name("limitctl")
    exported = subprocess.run(
        [limitctl, "export", "--openmetrics", path], check=True, capture_output=True, text=True
    ).stdout
    registry = CollectorRegistry()
    registry.register(SegmentCollector(segment))
    collected = openmetrics.generate_latest(registry).decode()
    for text in exported, collected:
        families = {family.name: family for family in openmetrics_families(text)}
        samples = {
            (sample.labels["limit"], sample.labels["result"]): sample.value
            for sample in families["shmlimit_requests"].samples
        }
        assert (samples["", "admitted"], samples["requests", "refused"]) == (5, 2)
        waits = families["shmlimit_wait_seconds"]
        assert waits.type == "histogram"
        assert {sample.name.removeprefix("shmlimit_wait_seconds") for sample in waits.samples} == {
            "_bucket",
            "_count",
            "_sum",
        }
    assert {family.unit for family in openmetrics_families(exported) if family.name.endswith("_seconds")} == {"seconds"}
