"""The gateway of the examples: two workers before a provider that counts strictly."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
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
    """A server of uvicorn; gives its address."""
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
    return {name: int(verdict.remaining) for name, verdict in limits.peek({"tokens": 0}).items()}


async def ask(gateway: str, count: int, **question: Any) -> list[httpx.Response]:
    """What the gateway answers to many requests at once."""
    async with httpx.AsyncClient(base_url=gateway, timeout=TIMEOUT) as client:
        asked = [client.post("/v1/chat/completions", json={**QUESTION, **question}) for _ in range(count)]
        return await asyncio.gather(*asked)


def test_the_gateway_is_refused_nothing_and_pays_what_was_used(servers: tuple[str, str], segment_path: Path) -> None:
    gateway, provider = servers
    # Each reserves more than 4,000 tokens, so fewer than fifty can be on their way at once.
    answers = asyncio.run(ask(gateway, 60, prompt_tokens=400, output_tokens=100))
    answers += asyncio.run(ask(gateway, 60, prompt_tokens=400, output_tokens=100, stream=True))
    assert [answer.status_code for answer in answers] == [200] * 120
    assert answers[0].json()["usage"]["total_tokens"] == 500
    assert answers[-1].text.endswith("data: [DONE]\n\n")
    assert httpx.get(f"{provider}/counts").json() == {"served": 120, "refused": 0, "tokens": 60_000}
    expected = {"requests": REQUESTS - 120, "tokens": TOKENS - 60_000, "in_flight": PLACES}
    wait_until(lambda: left(segment_path) == expected, "all is settled")


def test_the_gateway_passes_on_what_the_provider_refuses_and_waits(
    servers: tuple[str, str], segment_path: Path
) -> None:
    gateway, _ = servers
    # More than the question says that it may take, and more than the provider has.
    [refused] = asyncio.run(ask(gateway, 1, prompt_tokens=TOKENS, output_tokens=1))
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "60")
    assert refused.json() == {"error": {"type": "rate_limit_error"}}
    limits = sl.open(segment_path)["provider"]
    assert limits.try_acquire({"tokens": 1}).reason == "throttled"
    assert left(segment_path) == {"requests": REQUESTS, "tokens": TOKENS, "in_flight": PLACES}
    limits.reset()
    [served] = asyncio.run(ask(gateway, 1, prompt_tokens=1, output_tokens=1))
    assert served.status_code == 200


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
