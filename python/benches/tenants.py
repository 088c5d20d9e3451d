"""Three tenants behind one quota: the tokens that each was served, second by second, from a real run.

    python python/benches/tenants.py [--seconds 60] [--picture docs/images/tenants.svg]

Three processes serve a tenant that asks as often as it can, one that pays and weighs four times as much, and one that
asks now and then. After a third of the time the provider answers one request with 429; after two thirds, a process is
killed and replaced. First all tenants wait in one queue, as they would for a semaphore; then each is a key of a set in
which all keys share the quota.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import multiprocessing
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import chart
import provider

import shmlimit as sl
from shmlimit import llm

TOKENS = 4_000  # a second
PLACES = 48
LONGEST_ANSWER = 800
PROCESSES = 3
# How many seconds the provider wants no requests after its 429.
RETRY_AFTER = 2
# The tier of each tenant, how many tasks of each process ask on its behalf, and how long these pause in between.
TENANTS = {"noisy": ("default", 30, 0.0), "pays": ("paid", 10, 0.0), "now and then": ("default", 1, 4.0)}
COLOURS = {"noisy": "#c2410c", "pays": "#1d4ed8", "now and then": "#15803d"}


def declared(shared: bool) -> sl.LimitSet:
    """The quota: that of all keys of a keyed set, or of a set without keys."""
    scope: Any = "all_keys" if shared else "key"
    limits = [
        sl.Rate("tokens", TOKENS, "1s", algorithm="gcra", burst=2 * TOKENS, scope=scope),
        sl.Concurrency("in_flight", PLACES, scope=scope),
    ]
    if not shared:
        return sl.LimitSet("provider", limits)
    return sl.LimitSet("provider", limits, keyed=1_000, tiers=[sl.Tier("paid", weight=4)])


def serve(line: Connection, refuses_after: float) -> None:
    """The main function of the provider's process: sends its port and, at the end, whom it served and when."""
    begun = time.monotonic()
    served: list[tuple[str, float, int]] = []
    refusals_left = 1

    def answer(question: tuple[str, int]) -> dict[str, Any]:
        nonlocal refusals_left
        tenant, prompt = question
        now = time.monotonic() - begun
        if now >= refuses_after and refusals_left:
            refusals_left -= 1
            return {"status": 429, "retry_after": str(RETRY_AFTER)}
        output = random.randint(1, LONGEST_ANSWER)
        served.append((tenant, now, prompt + output))
        return {"status": 200, "usage": {"prompt_tokens": prompt, "completion_tokens": output}}

    provider.serve(line, answer, (0.2, 0.8), lambda: served)


def work(directory: Path, shared: bool, port: int, seconds: float) -> None:
    """The main function of each process that makes requests for the tenants."""
    limits = sl.open(directory / "provider.limits", declared(shared))["provider"]
    until = time.monotonic() + seconds

    async def task(tenant: str, tier: str, pause: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        client: Any = {"key": tenant, "tier": tier} if shared else {}
        while (left := until - time.monotonic()) > 0:
            prompt = random.randint(50, 300)
            with suppress(sl.AcquireTimeout):
                waits = limits.acquire_async({"tokens": prompt + LONGEST_ANSWER}, timeout=left, **client)
                async with llm.Call(waits) as call:
                    call.note(await provider.ask(reader, writer, (tenant, prompt)))
            await asyncio.sleep(pause)
        writer.close()

    async def main() -> None:
        await asyncio.gather(
            *(task(tenant, tier, pause) for tenant, (tier, tasks, pause) in TENANTS.items() for _ in range(tasks))
        )

    asyncio.run(main())


Series = dict[str, list[int]]


def run(shared: bool, seconds: float) -> Series:
    """The tokens that each tenant was served in each second."""
    context = multiprocessing.get_context("spawn")
    line, providers_end = context.Pipe()
    server = context.Process(target=serve, args=(providers_end, seconds / 3))
    server.start()
    port = line.recv()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        until = time.monotonic() + seconds

        def start() -> multiprocessing.process.BaseProcess:
            process = context.Process(target=work, args=(Path(directory), shared, port, until - time.monotonic()))
            process.start()
            return process

        workers = [start() for _ in range(PROCESSES)]
        time.sleep(2 * seconds / 3)
        workers[0].kill()
        workers[0].join()
        workers[0] = start()
        for worker in workers:
            worker.join()
        limits = sl.open(Path(directory) / "provider.limits")["provider"]
        client: Any = {"key": "noisy"} if shared else {}
        with limits.acquire({"tokens": 0, "in_flight": PLACES}, timeout=60, **client):
            pass  # no place is lost
    line.send("stop")
    served = line.recv()
    server.join()
    series: Series = {tenant: [0] * int(seconds) for tenant in TENANTS}
    for tenant, at, tokens in served:
        if at < int(seconds):
            series[tenant][int(at)] += tokens
    return series


def smooth(values: Sequence[int], width: int = 3) -> list[float]:
    """Means over a few seconds, so that single requests do not hide the shares."""
    return [sum(values[max(0, end - width) : end]) / min(width, end) for end in range(1, len(values) + 1)]


def picture(panels: dict[str, Series]) -> str:
    """The series as a picture, a panel for each."""
    most = max(max(smooth(values)) for series in panels.values() for values in series.values())
    lines = []
    for number, (title, series) in enumerate(panels.items()):
        seconds = len(next(iter(series.values())))
        highest = 2_000 * math.ceil(most / 2_000)
        panel = chart.Panel(left=56 + number * 460, width=400, height=190, seconds=seconds, highest=highest)
        lines += panel.axes(title, every_second=10, every_value=2_000)
        for share, event in ((1 / 3, "429"), (2 / 3, "worker killed")):
            x, y = panel.at(seconds * share, highest)
            lines.append(f'<path d="M{x:.1f} {y:g}v{panel.height}" stroke="#888" stroke-dasharray="3 3"/>')
            lines.append(f'<text x="{x + 4:.1f}" y="{y + 10:g}">{event}</text>')
        for tenant, values in series.items():
            lines.append(panel.curve(enumerate(smooth(values), 1), COLOURS[tenant]))
    for number, (tenant, colour) in enumerate(COLOURS.items()):
        x = 56 + number * 150
        lines.append(f'<path d="M{x} 260h24" stroke="{colour}" stroke-width="3"/>')
        lines.append(f'<text x="{x + 30}" y="264">{tenant}</text>')
    lines.append('<text x="526" y="264">tokens a second, means over 3 s</text>')
    return chart.picture(976, 276, lines)


def main() -> None:
    """Runs both, prints what each tenant got, and draws it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each runs")
    parser.add_argument("--picture", type=Path, help="where to draw it")
    arguments = parser.parse_args()
    panels: dict[str, Series] = {}
    totals: dict[str, dict[str, int]] = defaultdict(dict)
    for title, shared in (("one queue: first come, first served", False), ("a share for each tenant", True)):
        panels[title] = run(shared, arguments.seconds)
        for tenant, values in panels[title].items():
            totals[tenant][title] = sum(values)
    print(f"{'tokens served':16}" + "".join(f"{title:>40}" for title in panels))
    for tenant, by_title in totals.items():
        print(f"{tenant:16}" + "".join(f"{tokens:40,}" for tokens in by_title.values()))
    print(f"{'all':16}" + "".join(f"{sum(map(sum, series.values())):40,}" for series in panels.values()))
    if arguments.picture:
        arguments.picture.write_text(picture(panels))


if __name__ == "__main__":
    main()
