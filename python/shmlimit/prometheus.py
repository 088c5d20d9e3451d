"""A collector for `prometheus_client` that is right with any number of workers.

```python
import shmlimit as sl
from prometheus_client import REGISTRY
from shmlimit.prometheus import SegmentCollector

REGISTRY.register(SegmentCollector(sl.open("/dev/shm/api.limits", config="limits.toml")))
```

The counters are in the segment and cover all processes: every worker that is scraped answers the same, and there is
nothing to add up. They need no `PROMETHEUS_MULTIPROC_DIR`. Names and labels are those of `limitctl export`, listed in
`docs/reference/metrics.md`; a key is never a label.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from shmlimit import Segment

__all__ = ["SegmentCollector"]


class SegmentCollector(Collector):
    """The metrics of segments, read at each scrape."""

    def __init__(self, *segments: Segment) -> None:
        """Makes a collector for open segments with distinct paths.

        Args:
            *segments: The segments. Give one collector all the segments of a registry.
        """
        self._segments = segments

    def collect(self) -> Iterator[Metric]:
        """Copies the segments, without taking a lock.

        Yields:
            Each metric, with the samples of all segments.
        """
        collected: dict[str, Metric] = {}
        for segment in self._segments:
            for metric in text_string_to_metric_families(segment._exposition()):
                known = collected.setdefault(metric.name, metric)
                if known is not metric:
                    known.samples.extend(metric.samples)
        yield from collected.values()
