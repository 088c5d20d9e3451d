"""A provider of a language model on a loopback port: a line of JSON for each question, and one for its answer."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any


def serve(
    line: Connection, answer: Callable[[Any], dict[str, Any]], seconds: tuple[float, float], counted: Callable[[], Any]
) -> None:
    """Tells its port, answers until it is told to stop, then says what it counted. An answer of 200 takes a while."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A client may leave or be killed before it is answered, and asyncio would report how that ended.
        with suppress(asyncio.CancelledError, ConnectionError):
            while question := await reader.readline():
                reply = answer(json.loads(question))
                await asyncio.sleep(random.uniform(*seconds) if reply["status"] == 200 else 0)
                writer.write(json.dumps(reply).encode() + b"\n")
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        line.send(server.sockets[0].getsockname()[1])
        await asyncio.to_thread(line.recv)
        line.send(counted())

    asyncio.run(main())


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, question: Any) -> Any:
    """The answer, as a client library would return it."""
    writer.write(json.dumps(question).encode() + b"\n")
    answer = json.loads(await reader.readline())
    headers = {"retry-after": answer["retry_after"]} if "retry_after" in answer else {}
    return SimpleNamespace(status_code=answer["status"], headers=headers, usage=answer.get("usage"))
