"""A gateway to a language model: all workers of a host stay within the provider's limits, and use them up.

    OPENAI_API_KEY=... PAID=key-1,key-2 uvicorn --app-dir python/examples --workers 4 llm_gateway:app

A request reserves the most that it may cost, waits in the queue until the provider takes it, and pays what it cost.
Tenants are told apart by their API keys. They share what the provider allows, and a tenant that pays gets ten times as
much as one that does not while both wait.
"""

import os
from collections.abc import AsyncIterator
from typing import Annotated, Any

import httpx
from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import StreamingResponse

import shmlimit as sl
from shmlimit import llm
from shmlimit.fastapi import Header, Limited, LimitRefused, problem_response

# What the provider allows all tenants in a minute. The window is a second longer, for requests on their way to it.
REQUESTS = sl.Calls("requests", 500, "61s", algorithm="sliding_window", scope="all_keys")
TOKENS = sl.Rate("tokens", 200_000, "61s", algorithm="sliding_window", scope="all_keys")
IN_FLIGHT = sl.Concurrency("in_flight", 48, scope="all_keys")
OF_TENANT = sl.Calls("of_tenant", 400, "60s")
TENANTS = sl.Keyed(10_000, store_keys=False)  # API keys are secrets
PROVIDER = sl.LimitSet(
    "provider", [REQUESTS, TOKENS, IN_FLIGHT, OF_TENANT], keyed=TENANTS, tiers=[sl.Tier("paid", weight=10)]
)
limits = sl.open(os.environ.get("LIMITS", "/dev/shm/provider.limits"), PROVIDER)["provider"]
PAID = frozenset(os.environ.get("PAID", "").split(","))
provider = httpx.AsyncClient(base_url=os.environ.get("PROVIDER", "https://api.openai.com"), timeout=300)
AUTHORIZATION = {"authorization": f"Bearer {os.environ.get('OPENAI_API_KEY')}", "content-type": "application/json"}
app = FastAPI()
app.add_exception_handler(LimitRefused, problem_response)


@app.exception_handler(httpx.TransportError)
async def no_answer(_: Request, error: Exception) -> Response:
    """Says that the provider is gone; what was reserved was given back if the request never reached it."""
    return Response(f"The provider gives no answer: {type(error).__name__}.", 502)


@app.exception_handler(ValueError)
async def no_question(_: Request, error: Exception) -> Response:
    """Says what is wrong with a body whose cost cannot be estimated."""
    return Response(f"The body is not a request: {error}.", 400)


async def costs(request: Request) -> dict[str, Any]:
    """The most that a request may cost."""
    return {"tokens": llm.estimate(await request.json(), max_output=4096)}


def tier(request: Request) -> str:
    """The tenant's tier, and so its weight."""
    return "paid" if request.headers.get("x-api-key") in PAID else "default"


queue = Limited(limits, key=Header("x-api-key", default="unknown"), tier=tier, costs=costs, timeout=60)


async def exchange(
    request: Request, permit: Annotated[sl.Permit, Depends(queue)]
) -> AsyncIterator[tuple[llm.Call, httpx.Response]]:
    """Asks the provider, and settles when its answer has been passed on."""
    asking = provider.stream("POST", request.url.path, content=await request.body(), headers=AUTHORIZATION)
    async with llm.Call(permit) as call, asking as answer:
        call.note(answer)
        yield call, answer


@app.post("/v1/chat/completions")
async def complete(exchange: Annotated[tuple[llm.Call, httpx.Response], Depends(exchange)]) -> StreamingResponse:
    """Passes the answer on as it comes."""
    call, answer = exchange
    kept = {name: answer.headers[name] for name in ("content-type", "retry-after") if name in answer.headers}
    return StreamingResponse(call.watch(answer.aiter_bytes()), answer.status_code, kept)
