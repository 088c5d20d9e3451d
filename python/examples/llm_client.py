"""Requests and tokens per minute of a language model, shared by four processes, without a single 429.

    python python/examples/llm_client.py

Each call reserves the most that it may cost, waits in the queue for exactly as long as that takes, and settles what
it cost. If the server refuses a call, nobody asks it again before it takes requests. A "minute" is 4 seconds here.
The server is a process of its own, counts over every window, and refuses what is over its quotas.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import multiprocessing
import os
import random
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import shmlimit as sl

QUOTA_REQUESTS = 200
QUOTA_TOKENS = 60_000
PROCESSES = 4
THREADS = 6
LONGEST_ANSWER = 400


@dataclass
class Outcome:
    """What the server counted."""

    served: int
    tokens: int
    refused: int
    requests_used: float
    tokens_used: float


def declaration(window: float, slack: float) -> sl.LimitSet:
    """Limits within the quotas, although a request may arrive `slack` seconds after it was admitted.

    In any window at most `capacity + burst` are admitted, and in `window + slack` seconds correspondingly more of
    `capacity`.
    """
    stretched = 1 + slack / window
    burst_requests, burst_tokens = QUOTA_REQUESTS // 20, QUOTA_TOKENS // 20
    return sl.LimitSet(
        "model",
        [
            sl.Calls("requests", int((QUOTA_REQUESTS - burst_requests) / stretched), window, burst=burst_requests),
            sl.Rate("tokens", int((QUOTA_TOKENS - burst_tokens) / stretched), window, burst=burst_tokens),
        ],
    )


def work(model: sl.SetHandle, port: int, until: float) -> None:
    """Ask the model one question after the other. This is the part that an application would have."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    while (left := until - time.monotonic()) > 0:
        prompt = random.randint(20, 200)
        try:
            permit = model.acquire({"tokens": prompt + LONGEST_ANSWER}, timeout=left)
        except sl.AcquireTimeout:
            return
        with permit:
            connection.request("POST", "/", json.dumps({"prompt_tokens": prompt, "max_tokens": LONGEST_ANSWER}))
            response = connection.getresponse()
            answer = json.load(response)
            # Needed where others use the same quota: all processes hold back for as long as the server says.
            if not permit.respect(response):
                permit.settle(tokens=answer["total_tokens"])


def work_in_threads(model: sl.SetHandle, port: int, until: float) -> None:
    """The main function of each client process."""
    threads = [threading.Thread(target=work, args=(model, port, until)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Quota:
    """The server's own count, over the window that ends now, whenever that is."""

    def __init__(self, capacity: int, window: float) -> None:
        self.capacity, self.window = capacity, window
        self.taken: deque[tuple[float, int]] = deque()
        self.sum = 0

    def admits(self, amount: int, now: float) -> bool:
        """Whether this amount fits beside what the window has seen."""
        while self.taken and self.taken[0][0] <= now - self.window:
            self.sum -= self.taken.popleft()[1]
        return self.sum + amount <= self.capacity

    def take(self, amount: int, now: float) -> None:
        """Count this amount."""
        self.taken.append((now, amount))
        self.sum += amount


def serve(line: Connection, window: float) -> None:
    """The main function of the server process: sends its port and, at the end, what it counted."""
    requests, tokens = Quota(QUOTA_REQUESTS, window), Quota(QUOTA_TOKENS, window)
    counted = {"served": 0, "tokens": 0, "refused": 0}

    def answer(question: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        now = time.monotonic()
        used = question["prompt_tokens"] + random.randint(1, question["max_tokens"])
        if not (requests.admits(1, now) and tokens.admits(used, now)):
            counted["refused"] += 1
            return "429 Too Many Requests\r\nRetry-After: 1", {"error": "over quota"}
        requests.take(1, now)
        tokens.take(used, now)
        counted["served"] += 1
        counted["tokens"] += used
        return "200 OK", {"total_tokens": used}

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:")
                status, content = answer(json.loads(await reader.readexactly(length)))
                await asyncio.sleep(random.uniform(0.02, 0.08))
                body = json.dumps(content)
                writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        except (asyncio.IncompleteReadError, ConnectionResetError):
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        line.send(server.sockets[0].getsockname()[1])
        await asyncio.to_thread(line.recv)
        line.send(counted)

    asyncio.run(main())


def run(seconds: float, window: float, slack: float) -> Outcome:
    """Let the clients ask as much as they may for a while, and return what the server counted."""
    line, servers_end = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(servers_end, window))
    server.start()
    port = line.recv()
    with tempfile.TemporaryDirectory() as directory:
        model = sl.open(os.path.join(directory, "model.limits"), config=declaration(window, slack))["model"]
        until = time.monotonic() + seconds
        clients = [multiprocessing.Process(target=work_in_threads, args=(model, port, until)) for _ in range(PROCESSES)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
    line.send("stop")
    counted = line.recv()
    server.join()
    windows = seconds / window
    return Outcome(
        **counted,
        requests_used=counted["served"] / (QUOTA_REQUESTS * windows),
        tokens_used=counted["tokens"] / (QUOTA_TOKENS * windows),
    )


def main() -> None:
    """Run with the options of the command line, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=12.0, help="how long to ask")
    parser.add_argument("--window", type=float, default=4.0, help="how long a minute is")
    parser.add_argument("--slack", type=float, default=0.25, help="how late a request may reach the server")
    arguments = parser.parse_args()
    print(f"{PROCESSES} processes of {THREADS} threads ask for {arguments.seconds:g} s.")
    print(f"The server allows {QUOTA_REQUESTS} requests and {QUOTA_TOKENS} tokens in {arguments.window:g} s.")
    outcome = run(arguments.seconds, arguments.window, arguments.slack)
    requests, tokens = 100 * outcome.requests_used, 100 * outcome.tokens_used
    print(f"It served {outcome.served} requests with {outcome.tokens} tokens.")
    print(f"It answered 429 {outcome.refused} times.")
    print(f"Of its quotas were used: {requests:.0f} % of the requests, {tokens:.0f} % of the tokens.")


if __name__ == "__main__":
    main()
