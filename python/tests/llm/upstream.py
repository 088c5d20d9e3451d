"""A provider that counts requests and tokens over every window, and refuses everything above its quotas."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


class Upstream:
    """The provider and its counts. It is usually asked over HTTP, by `app`; `answer` does the same without HTTP."""

    def __init__(self, requests: int, tokens: int, window: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.requests, self.tokens, self.window, self.clock = requests, tokens, window, clock
        self.taken: deque[tuple[float, int]] = deque()
        self.served = self.refused = self.tokens_served = self.most_tokens = 0

    def answer(self, prompt: int, output: int) -> tuple[int, dict[str, str], dict[str, Any]]:
        """Its answer to a request that uses this much: status, headers, body."""
        now = self.clock()
        while self.taken and self.taken[0][0] <= now - self.window:
            self.taken.popleft()
        used = sum(amount for _, amount in self.taken)
        if len(self.taken) + 1 > self.requests or used + prompt + output > self.tokens:
            self.refused += 1
            wait = self.taken[0][0] + self.window - now if self.taken else self.window
            return 429, {"retry-after": f"{wait:.0f}"}, {"error": {"type": "rate_limit_error"}}
        self.taken.append((now, prompt + output))
        self.served += 1
        self.tokens_served += prompt + output
        self.most_tokens = max(self.most_tokens, used + prompt + output)
        return 200, {}, {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}

    async def complete(self, request: Request) -> Response:
        """Chat completions. The body says how many tokens are in the prompt and the answer, and how long it takes."""
        body = await request.json()
        await asyncio.sleep(body.get("seconds", 0))
        status, headers, answer = self.answer(body["prompt_tokens"], body["output_tokens"])
        if status != 200:
            return JSONResponse(answer, status, headers)
        if not body.get("stream"):
            return JSONResponse({"choices": [{"message": {"content": "word"}}], "usage": answer})

        async def events() -> AsyncIterator[str]:
            for _ in range(3):
                yield f"data: {json.dumps({'choices': [{'delta': {'content': 'word'}}], 'usage': None})}\n\n"
            yield f"data: {json.dumps({'choices': [], 'usage': answer})}\n\ndata: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def counts(self, _: Request) -> Response:
        """What it has counted."""
        return JSONResponse({"served": self.served, "refused": self.refused, "tokens": self.tokens_served})

    @property
    def app(self) -> Starlette:
        """The provider as an ASGI application."""
        return Starlette(
            routes=[Route("/v1/chat/completions", self.complete, methods=["POST"]), Route("/counts", self.counts)]
        )


def served() -> Starlette:
    """The application for uvicorn, with the quotas from the environment."""
    return Upstream(int(os.environ["REQUESTS"]), int(os.environ["TOKENS"]), float(os.environ["WINDOW"])).app
