"""The gateway of the examples: two workers in front of a provider that counts strictly."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import TIMEOUT, wait_until

import shmlimit as sl

EXAMPLES = Path(__file__).parents[2] / "examples"
REQUESTS, TOKENS, PLACES = 500, 200_000, 48
QUESTION = {"messages": [{"role": "user", "content": "How many?"}], "max_tokens": 4000}


@contextmanager
def running(*application: str, log: Path, **environment: str) -> Iterator[str]:
    """A uvicorn server; returns its address."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener, log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "--fd", str(listener.fileno()), *application],
            env={**os.environ, **environment},
            pass_fds=[listener.fileno()],
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        port = listener.getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def servers(tmp_path: Path, segment_path: Path) -> Iterator[tuple[str, str]]:
    """The addresses of the gateway and of the provider."""
    with ExitStack() as stack:
        provider = stack.enter_context(
            running(
                *("--factory", "--app-dir", str(Path(__file__).parent), "upstream:served"),
                log=tmp_path / "provider.log",
                REQUESTS=str(REQUESTS),
                TOKENS=str(TOKENS),
                WINDOW="60",
            )
        )
        gateway = stack.enter_context(
            running(
                *("--workers", "2", "--timeout-worker-healthcheck", "60"),
                *("--app-dir", str(EXAMPLES), "llm_gateway:app"),
                log=tmp_path / "gateway.log",
                LIMITS=str(segment_path),
                PROVIDER=provider,
            )
        )
        yield gateway, provider


def left(path: Path) -> dict[str, int]:
    """What is left, by limit."""
    limits = sl.open(path)["provider"]
    verdicts = limits.peek({"tokens": 0}, key="unknown")
    return {name: int(verdict.remaining) for name, verdict in verdicts.items() if name != "of_tenant"}


async def ask(gateway: str, count: int, tenant: str = "unknown", **question: Any) -> list[httpx.Response]:
    """The gateway's answers to many requests of a tenant at once."""
    headers = {"x-api-key": tenant}
    async with httpx.AsyncClient(base_url=gateway, headers=headers, timeout=TIMEOUT) as client:
        asked = [client.post("/v1/chat/completions", json={**QUESTION, **question}) for _ in range(count)]
        return await asyncio.gather(*asked)


def test_the_gateway_is_refused_nothing_and_pays_what_was_used(servers: tuple[str, str], segment_path: Path) -> None:
    gateway, provider = servers
    begun = time.monotonic()
    # Each reserves more than 4,000 tokens, so fewer than fifty can be in progress at once.
    answers = asyncio.run(ask(gateway, 60, prompt_tokens=400, output_tokens=100))
    answers += asyncio.run(ask(gateway, 60, prompt_tokens=400, output_tokens=100, stream=True))
    assert [answer.status_code for answer in answers] == [200] * 120
    assert answers[0].json()["usage"]["total_tokens"] == 500
    assert answers[-1].text.endswith("data: [DONE]\n\n")
    assert httpx.get(f"{provider}/counts").json() == {"served": 120, "refused": 0, "tokens": 60_000}
    expected = {"requests": REQUESTS - 120, "tokens": TOKENS - 60_000, "in_flight": PLACES}

    def is_settled() -> bool:
        now = left(segment_path)
        # After a minute, the window forgets the first of them.
        is_late = time.monotonic() > begun + 60
        return now == expected or (is_late and all(now[name] >= amount for name, amount in expected.items()))

    wait_until(is_settled, "all is settled")


def test_the_gateway_passes_on_what_the_provider_refuses_and_waits(
    servers: tuple[str, str], segment_path: Path
) -> None:
    gateway, _ = servers
    # The answer takes more than the question allows, and more than the provider has.
    [refused] = asyncio.run(ask(gateway, 1, prompt_tokens=TOKENS, output_tokens=1))
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "60")
    assert refused.json() == {"error": {"type": "rate_limit_error"}}
    limits = sl.open(segment_path)["provider"]
    assert limits.try_acquire({"tokens": 1}, key="unknown").reason == "throttled"
    assert left(segment_path) == {"requests": REQUESTS, "tokens": TOKENS, "in_flight": PLACES}
    limits.reset()
    [served] = asyncio.run(ask(gateway, 1, prompt_tokens=1, output_tokens=1))
    assert served.status_code == 200


def test_a_tenant_that_asks_for_much_keeps_no_other_waiting_for_its_turn(servers: tuple[str, str]) -> None:
    gateway, _ = servers
    question = {"prompt_tokens": 10, "output_tokens": 10, "seconds": 0.3}
    much = 300

    async def main() -> tuple[httpx.Response, int]:
        noisy = [asyncio.create_task(ask(gateway, 10, "noisy", **question)) for _ in range(much // 10)]
        # Some have been answered, so all others are in progress or waiting.
        await asyncio.wait(noisy, return_when=asyncio.FIRST_COMPLETED, timeout=TIMEOUT)
        [quiet] = await ask(gateway, 1, "quiet", **question)
        unanswered = sum(10 for task in noisy if not task.done())
        assert {answer.status_code for task in noisy for answer in await task} == {200}
        return quiet, unanswered

    quiet, unanswered = asyncio.run(main())
    assert quiet.status_code == 200
    # In order of arrival, it would have been among the last to get a place.
    assert unanswered > 2 * PLACES


def test_the_gateway_gives_everything_back_when_the_provider_is_gone(tmp_path: Path, segment_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nobody = f"http://127.0.0.1:{listener.getsockname()[1]}"
    log = tmp_path / "gateway.log"
    with running(
        *("--app-dir", str(EXAMPLES), "llm_gateway:app"), log=log, LIMITS=str(segment_path), PROVIDER=nobody
    ) as gateway:
        answers = asyncio.run(ask(gateway, 70))
        malformed = httpx.post(f"{gateway}/v1/chat/completions", content=b"no json", timeout=TIMEOUT)
    assert [answer.status_code for answer in answers] == [502] * 70, log.read_text()
    assert malformed.status_code == 400, "it costs nobody knows what"
    wait_until(
        lambda: left(segment_path) == {"requests": REQUESTS, "tokens": TOKENS, "in_flight": PLACES}, "all is given back"
    )
