"""Calls of a language model under quotas of requests and tokens: what is served, what is refused, and what it takes.

    python python/benches/llm_retries.py [--seconds 31] [--window 10]

A provider counts requests and tokens over every window, and answers 429 with `Retry-After` to what is over. Four
processes of 24 tasks ask it as often as they may: each task on its own, by a loop that retries as clients do; with
`shmlimit.llm`; with token-throttle on SQLite, if that is installed (it needs Python 3.12); and with LiteLLM's router
on Redis, if `litellm`, `redis` and `redis-server` are. LiteLLM's quotas are per minute, so it only knows the rate. The
processor's time is that of the four processes.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import logging
import multiprocessing
import os
import random
import resource
import shutil
import socket
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import provider

import shmlimit as sl
from shmlimit import llm

REQUESTS, TOKENS = 400, 150_000
PROCESSES, TASKS = 4, 24
LONGEST_ANSWER = 800
# How late a request may reach the provider after it was admitted.
SLACK = 0.1


class Provider:
    """Counts what it served in the window that ends now, at every instant."""

    def __init__(self, window: float) -> None:
        self.window = window
        self.taken: deque[tuple[float, int]] = deque()
        self.served = self.tokens = self.refused = 0

    def answer(self, prompt: int) -> dict[str, Any]:
        """The status, and what was used or when to try again."""
        now = time.monotonic()
        while self.taken and self.taken[0][0] <= now - self.window:
            self.taken.popleft()
        output = random.randint(1, LONGEST_ANSWER)
        if len(self.taken) >= REQUESTS or sum(used for _, used in self.taken) + prompt + output > TOKENS:
            self.refused += 1
            return {"status": 429, "retry_after": "1"}
        self.taken.append((now, prompt + output))
        self.served += 1
        self.tokens += prompt + output
        return {"status": 200, "usage": {"prompt_tokens": prompt, "completion_tokens": output}}


def serve(line: Connection, window: float) -> None:
    """The main function of the provider's process: sends its port, and at the end what it counted."""
    counts = Provider(window)
    provider.serve(line, counts.answer, (0.05, 0.3), lambda: (counts.served, counts.tokens, counts.refused))


Send = Callable[[int], Awaitable[Any]]
Ask = Callable[[Send, int, float], Awaitable[None]]


async def retries(send: Send, prompt: int, _left: float) -> None:
    """As clients do: waits as long as the provider says, or longer with each attempt, and a random time more."""
    for attempt in range(20):
        answer = await send(prompt)
        if answer.status_code != 429:
            return
        await asyncio.sleep(
            max(float(answer.headers["retry-after"]), 0.5 * 2 ** min(attempt, 4)) * random.uniform(1, 1.5)
        )


def with_shmlimit(directory: Path, window: float) -> Ask:
    """This package, on a file in memory."""
    stretched = window + SLACK
    declared = sl.LimitSet(
        "provider",
        [
            sl.Calls("requests", REQUESTS, stretched, algorithm="sliding_window"),
            sl.Rate("tokens", TOKENS, stretched, algorithm="sliding_window"),
            # A sliding window takes back what is settled before a few dozen others have come.
            sl.Concurrency("in_flight", 48),
        ],
    )
    limits = sl.open(directory / "provider.limits", declared)["provider"]

    async def ask(send: Send, prompt: int, left: float) -> None:
        async with llm.Call(limits.acquire_async({"tokens": prompt + LONGEST_ANSWER}, timeout=left)) as call:
            call.note(await send(prompt))

    return ask


def with_token_throttle(directory: Path, window: float) -> Ask:
    """token-throttle, on SQLite."""
    throttle: Any = importlib.import_module("token_throttle")
    quotas = throttle.UsageQuotas(
        [
            throttle.Quota(metric="requests", limit=REQUESTS, per_seconds=round(window)),
            throttle.Quota(metric="tokens", limit=TOKENS, per_seconds=round(window)),
        ]
    )
    limiter = throttle.RateLimiter(
        throttle.PerModelConfig(quotas=quotas),
        backend=throttle.SqliteBackendBuilder(str(directory / "provider.sqlite"), key_prefix="provider"),
    )

    async def ask(send: Send, prompt: int, _left: float) -> None:
        reserved = {"requests": 1, "tokens": prompt + LONGEST_ANSWER}
        async with limiter.reserve(reserved, model="model") as handle:
            answer = await send(prompt)
            if answer.status_code == 429:
                handle.set_actual_usage({"requests": 1, "tokens": 0})
                await asyncio.sleep(float(answer.headers["retry-after"]))
            else:
                handle.set_actual_usage({"requests": 1, "tokens": sum(answer.usage.values())})

    return ask


def with_litellm(directory: Path, window: float) -> Ask:
    """LiteLLM's router, on Redis, with a model that asks the same provider."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    litellm: Any = importlib.import_module("litellm")
    logging.disable()
    asked: ContextVar[tuple[Send, int]] = ContextVar("asked")

    class Model(litellm.CustomLLM):  # type: ignore[misc]
        async def acompletion(self, *_: object, **__: object) -> Any:
            send, prompt = asked.get()
            answer = await send(prompt)
            if answer.status_code == 429:
                raise litellm.RateLimitError("429", llm_provider="bench", model="model")
            return litellm.ModelResponse(usage=litellm.Usage(**answer.usage, total_tokens=sum(answer.usage.values())))

    litellm.custom_provider_map = [{"provider": "bench", "custom_handler": Model()}]
    quotas = {"rpm": int(REQUESTS * 60 / window), "tpm": int(TOKENS * 60 / window)}
    router = litellm.Router(
        model_list=[{"model_name": "model", "litellm_params": {"model": "bench/model", **quotas}}],
        redis_host="127.0.0.1",
        redis_port=int((directory / "port").read_text()),
        routing_strategy="usage-based-routing-v2",
        num_retries=0,
        disable_cooldowns=True,
    )

    async def ask(send: Send, prompt: int, _left: float) -> None:
        asked.set((send, prompt))
        while True:
            with suppress(litellm.RateLimitError):
                await router.acompletion(model="model", messages=[{"role": "user", "content": "word " * prompt}])
                return
            await asyncio.sleep(1)

    return ask


@contextmanager
def redis(directory: Path) -> Iterator[None]:
    """A Redis server, whose port is in a file that its clients read."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    (directory / "port").write_text(port)
    options = ["--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", str(directory)]
    server = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        server.terminate()
        server.wait()


CONTENDERS: dict[str, Callable[[Path, float], Ask]] = {
    "a loop that retries": lambda _directory, _window: retries,
    "shmlimit.llm": with_shmlimit,
    "token-throttle": with_token_throttle,
    "LiteLLM's router": with_litellm,
}
NEEDS = {"token-throttle": ["token_throttle"], "LiteLLM's router": ["litellm", "redis"]}


def work(contender: str, directory: Path, port: int, seconds: float, window: float) -> None:
    """The main function of each client process."""
    ask = CONTENDERS[contender](directory, window)
    until = time.monotonic() + seconds

    async def task() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def send(prompt: int) -> Any:
            return await provider.ask(reader, writer, prompt)

        # In Python 3.10, asyncio raises one of its own.
        with suppress(TimeoutError, asyncio.TimeoutError):
            while (left := until - time.monotonic()) > 0:
                await asyncio.wait_for(ask(send, random.randint(50, 300), left), left)
        writer.close()

    async def main() -> None:
        await asyncio.gather(*(task() for _ in range(TASKS)))

    asyncio.run(main())


def measure(contender: str, seconds: float, window: float) -> None:
    """Lets the clients ask for a while, and prints what the provider counted."""
    context = multiprocessing.get_context("spawn")
    line, providers_end = context.Pipe()
    server = context.Process(target=serve, args=(providers_end, window))
    server.start()
    port = line.recv()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory, ExitStack() as servers:
        if contender == "LiteLLM's router":
            servers.enter_context(redis(Path(directory)))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        arguments = (contender, Path(directory), port, seconds, window)
        clients = [context.Process(target=work, args=arguments) for _ in range(PROCESSES)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    line.send("stop")
    served, tokens, refused = line.recv()
    server.join()
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{contender:22}{served:10,}{tokens:12,}{refused:10,}{processor:12.1f} s", flush=True)


def main() -> None:
    """Measures each contender in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=31.0, help="how long each asks")
    parser.add_argument("--window", type=float, default=10.0, help="how long the provider's window is")
    arguments = parser.parse_args()
    print(f"The provider allows {REQUESTS:,} requests and {TOKENS:,} tokens in {arguments.window:g} s.")
    print(f"{'':22}{'served':>10}{'tokens':>12}{'429':>10}{'processor':>14}")
    for contender in CONTENDERS:
        if any(importlib.util.find_spec(module) is None for module in NEEDS.get(contender, ())):
            continue
        if contender == "LiteLLM's router" and shutil.which("redis-server") is None:
            continue
        measure(contender, arguments.seconds, arguments.window)


if __name__ == "__main__":
    main()
