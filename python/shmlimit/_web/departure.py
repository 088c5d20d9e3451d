"""Notices that a client has left while it waits in the queue, or while its response is being sent."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, TypeAlias, TypeVar

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]

Decided = TypeVar("Decided")


class ClientGone(OSError):
    """What sending raises when the client has left, as ASGI has it: some servers take what is sent, and say nothing."""


class Departures:
    """Stands between a server and an application that receives, and looks ahead while that does not.

    Only one receives at a time, and what is received early the application gets later, in order. It looks ahead to the
    end of the request's body where the application leaves that alone, but never gathers a body that is still coming.
    On trio it does not look: there is no one there to look meanwhile.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._ahead: deque[Message] = deque()
        self._looking: asyncio.Task[Message] | None = None
        self._application_receives = False

    async def receive(self) -> Message:
        """The next message, for the application."""
        if self._ahead:
            return self._ahead.popleft()
        self._application_receives = True
        try:
            if self._looking is None:
                return await self._receive()
            # Kept where the application gives up meanwhile, and for ever where it is the last one.
            message = await asyncio.shield(self._looking)
            if message["type"] != "http.disconnect":
                self._looking = None
            return message
        finally:
            self._application_receives = False

    def has_left(self) -> bool:
        """Whether the client is known to have left. Looks on from now on."""
        if self._application_receives:
            # The application waits for the client to leave, and acts on it.
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
        """What a decision comes to that may take long; none where the client has left before.

        Args:
            decision: Is cancelled then.
            undo: Takes back what was decided all the same.
        """
        if not _is_on_asyncio():
            return await decision
        deciding = asyncio.ensure_future(decision)
        is_handed_over = False
        try:
            while not deciding.done():
                if self.has_left():
                    return None
                looking = [] if self._looking is None or self._looking.done() else [self._looking]
                await asyncio.wait([deciding, *looking], return_when=asyncio.FIRST_COMPLETED)
            is_handed_over = True
            return deciding.result()
        finally:
            if not is_handed_over:
                # Also where the decision was made in the step in which this task is cancelled; and by a callback,
                # because the task may be cancelled again while it waits here.
                deciding.add_done_callback(lambda decided: _take_back(decided, undo))
                deciding.cancel()
                if not deciding.done():
                    await asyncio.wait([deciding])

    def stop(self) -> None:
        """Looks no more."""
        if self._looking is not None and not self._looking.cancel() and not self._looking.cancelled():
            # What went wrong in it is no one's concern any more.
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
