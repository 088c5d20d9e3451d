"""Notices when a client leaves while it waits in the queue, or while its response is being sent."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, TypeAlias, TypeVar

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]

Decided = TypeVar("Decided")


class ClientGone(OSError):
    """Raised on sending to a client that has left, as ASGI specifies; some servers silently accept the data instead."""


class Departures:
    """Sits between the server and the application's `receive`, and looks ahead while the application is not receiving.

    Only one of the two receives at a time, and the application later gets what was received early, in order. If the
    application ignores the request's body, this looks ahead to its end, but never buffers a body that is still coming.
    On trio it does not look ahead: there is no background task that could.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._ahead: deque[Message] = deque()
        self._looking: asyncio.Task[Message] | None = None
        self._application_receives = False
        self._received: asyncio.Future[None] | None = None
        """Done when the application has received what it waits for."""

    async def receive(self) -> Message:
        """The next message, for the application."""
        if self._ahead:
            return self._ahead.popleft()
        self._application_receives = True
        try:
            if self._looking is None:
                return await self._receive()
            # The look-ahead survives if the application gives up meanwhile, and stays if its message is the last one.
            message = await asyncio.shield(self._looking)
            if message["type"] != "http.disconnect":
                self._looking = None
            return message
        finally:
            self._application_receives = False
            if self._received is not None and not self._received.done():
                self._received.set_result(None)

    async def body(self) -> bytes:
        """Reads the whole body of the request. The application receives it all the same.

        Raises:
            ClientGone: The client has left before its end.
        """
        messages: list[Message] = []
        try:
            while not messages or messages[-1].get("more_body", False):
                messages.append(await self.receive())
                if messages[-1]["type"] == "http.disconnect":
                    raise ClientGone("the client has left before the end of its request")
        finally:
            self._ahead.extendleft(reversed(messages))
        return b"".join(message.get("body", b"") for message in messages)

    def has_left(self) -> bool:
        """Whether the client is known to have left. Starts looking ahead if it is not."""
        if self._application_receives:
            # The application itself sees the client leave, and acts on it.
            return False
        while self._looking is not None and self._looking.done():
            if self._looking.cancelled() or self._looking.exception() is not None:
                return False
            message = self._looking.result()
            if message["type"] == "http.disconnect":
                return True
            self._ahead.append(message)
            self._looking = None
        is_body_coming = bool(self._ahead) and self._ahead[-1].get("more_body", False)
        if self._looking is None and not is_body_coming and _is_on_asyncio():
            self._looking = asyncio.ensure_future(self._receive())
        return False

    async def unless_left(
        self, decision: Coroutine[Any, Any, Decided], undo: Callable[[Decided], None]
    ) -> Decided | None:
        """Waits for a decision that may take long; returns None if the client leaves first.

        Args:
            decision: The decision; cancelled if the client leaves.
            undo: Reverses a decision that was made all the same.
        """
        if not _is_on_asyncio():
            return await decision
        deciding = asyncio.ensure_future(decision)
        is_handed_over = False
        try:
            while not deciding.done():
                if self.has_left():
                    return None
                waiting: list[asyncio.Future[Any]] = [deciding]
                if self._application_receives:
                    # The decision itself is reading the body. Looks ahead again once it has.
                    self._received = asyncio.get_running_loop().create_future()
                    waiting.append(self._received)
                elif self._looking is not None and not self._looking.done():
                    waiting.append(self._looking)
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            is_handed_over = True
            return deciding.result()
        finally:
            if not is_handed_over:
                # The decision may have been made in the very step in which this task is cancelled. A callback undoes
                # it, because the task may be cancelled again while it waits here.
                deciding.add_done_callback(lambda decided: _take_back(decided, undo))
                deciding.cancel()
                if not deciding.done():
                    await asyncio.wait([deciding])

    def stop(self) -> None:
        """Stops looking ahead."""
        if self._looking is not None and not self._looking.cancel() and not self._looking.cancelled():
            # Marks an error in it as retrieved: nobody needs to hear of it any more.
            self._looking.exception()


def _take_back(decided: asyncio.Task[Decided], undo: Callable[[Decided], None]) -> None:
    if not decided.cancelled() and decided.exception() is None:
        undo(decided.result())


def _is_on_asyncio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
