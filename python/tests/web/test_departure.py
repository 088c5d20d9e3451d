"""Decisions whose task is cancelled at an unfavourable moment."""

from __future__ import annotations

import asyncio
from typing import Any

from shmlimit._web.departure import Departures

from .conftest import DEADLINE


def test_a_decision_made_in_the_step_that_cancels_its_task_is_taken_back() -> None:
    taken_back: list[str] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        decided: asyncio.Future[str] = loop.create_future()
        receives = asyncio.Event()

        async def decide() -> str:
            return await decided

        async def receive() -> dict[str, Any]:
            receives.set()
            return await loop.create_future()

        departures = Departures(receive)
        waiting = asyncio.create_task(departures.unless_left(decide(), taken_back.append))
        await asyncio.wait_for(receives.wait(), DEADLINE)
        decided.set_result("a permit")
        # After one step the decision is made, and the task that awaits it has not run yet.
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        departures.stop()

    asyncio.run(scenario())
    assert taken_back == ["a permit"]
