"""Draws what each algorithm admits of the same demand, on a virtual clock.

    python python/benches/algorithms.py --picture docs/images/algorithms.svg

A client asks twenty times a second, stops for a while, and asks again. The limit is ten in two seconds. Each panel
shows how many calls were admitted in the two seconds before each instant, which is what a provider that counts sees.
"""

from __future__ import annotations

from typing import Any

import chart

import shmlimit as sl

CAPACITY, WINDOW = 10, 2
STEPS = 20  # a second
# Requests come between these seconds, of SECONDS in all; the first stretch begins in the middle of a window.
DEMAND = ((1, 7), (11, 14))
SECONDS = 15
ALGORITHMS: dict[str, dict[str, Any]] = {
    "gcra, token_bucket": {"algorithm": "gcra"},
    "gcra with burst=1": {"algorithm": "gcra", "burst": 1},
    "fixed_window": {"algorithm": "fixed_window"},
    "sliding_window": {"algorithm": "sliding_window"},
    "sliding_window_counter": {"algorithm": "sliding_window_counter"},
}


def admitted(**options: Any) -> list[int]:
    """The steps at which calls were admitted."""
    clock = sl.VirtualClock()
    with clock:
        limit = sl.Calls("calls", CAPACITY, f"{WINDOW}s", **options)
        calls = sl.anonymous(sl.LimitSet("provider", [limit]))["provider"]
    steps = []
    for step in range(SECONDS * STEPS):
        if any(first * STEPS <= step < last * STEPS for first, last in DEMAND) and calls.check():
            steps.append(step)
        clock.advance(1 / STEPS)
    return steps


def seen(steps: list[int]) -> list[int]:
    """How many were admitted in the window before each step."""
    return [sum(step - WINDOW * STEPS < at <= step for at in steps) for step in range(SECONDS * STEPS)]


def picture() -> str:
    """A panel for each algorithm."""
    lines = []
    for number, (title, options) in enumerate(ALGORITHMS.items()):
        panel = chart.Panel(left=30 + number * 190, width=150, height=120, seconds=SECONDS, highest=2 * CAPACITY)
        lines += panel.axes(title, every_second=5, every_value=CAPACITY)
        lines.append(panel.curve(((0, CAPACITY), (SECONDS, CAPACITY)), "#c2410c"))
        counts = enumerate(seen(admitted(**options)))
        lines.append(panel.curve(((step / STEPS, count) for step, count in counts), "#1d4ed8"))
    return chart.picture(960, 190, lines)


if __name__ == "__main__":
    chart.main(__doc__, picture)
