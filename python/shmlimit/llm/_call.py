"""A call to a model under a permit: what it used is settled when it ends."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from shmlimit import AlreadyReleased, AlreadySettled, Permit
from shmlimit._by_arguments import Costs
from shmlimit._callables import answered, awaited, refuse_asynchronous
from shmlimit.llm._failures import Failure
from shmlimit.llm._stream import UsageReader
from shmlimit.llm._usage import Usage

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger("shmlimit")

_BY_NAME: dict[str, Callable[[Usage], int]] = {
    "tokens": lambda usage: usage.total_tokens,
    "total_tokens": lambda usage: usage.total_tokens,
    "input_tokens": lambda usage: usage.input_tokens,
    "output_tokens": lambda usage: usage.output_tokens,
    "uncached_tokens": lambda usage: usage.uncached_tokens,
}

# The sets for which it was already logged that a call reported no usage.
_warned: set[str] = set()


class Call:
    """Holds a permit during one call to a model, and settles what the call used.

    Entered with `async with`, it waits for its permit, and leaves the queue if the task is cancelled. At the end of the
    block the permit is released. What it reserved is

    - settled to the usage, as soon as a response or stream that went through `note` or `watch` has reported it;
    - given back in full, if the call cost nothing: the connection was never made, the provider answered 4xx (other
      than 408 and 499), 503 or 529, limits of this package refused, or `refund` was called;
    - left charged in full otherwise, because nothing says what the provider counted: the stream was not read to its
      end, the answer was lost, or it reported no usage. The last of these is logged, once for each set.

    What the provider says with 429, 529 or 503 holds for all processes, as with `Permit.respect`. It is read from
    exceptions that leave the block, and from responses and streams that go through `note` and `watch`.

    Attributes:
        permit: The permit, once entered.
    """

    permit: Permit

    def __init__(
        self,
        admission: Permit | Awaitable[Permit],
        *,
        costs: Callable[[Usage], Costs | Awaitable[Costs]] | None = None,
    ) -> None:
        """Prepares a call.

        Args:
            admission: What to wait for, such as `limits.acquire_async({"tokens": 1500}, timeout=30)`; or a permit, such
                as that of `shmlimit.fastapi.Limited`.
            costs: A function that returns what a usage costs of each limit. By default, of the limits that were
                reserved, `tokens` and `total_tokens` count input and output, `input_tokens`, `output_tokens` and
                `uncached_tokens` count what their names say, and others keep what was reserved. May be asynchronous
                with `async with`.
        """
        self._admission = admission
        self._costs = costs
        self._reader: UsageReader | None = None
        self._is_settled = False
        self._failed: Failure | None = None

    @property
    def usage(self) -> Usage | None:
        """The usage that the call has reported so far; None if it has reported none."""
        return None if self._reader is None else self._reader.usage

    def note(self, response: object) -> None:
        """Reads the status of a response, and the usage that it reports.

        If the status is an error, the limits are told at once, and the permit may be released before the block ends.

        Args:
            response: The response of a client library, or of an HTTP client, before or after its body was read; or its
                body, as text, bytes or a dictionary.

        Raises:
            AlreadySettled: Another response has reported its usage. Each response needs a call of its own.
        """
        failure = Failure.of_response(response)
        if failure is not None:
            self._fail(failure)
            return
        reader = UsageReader()
        reader.read(response)
        if reader.failure is not None:
            self._fail(reader.failure)
        elif reader.usage is not None:
            self._begin(reader)
            reader.is_complete = True
            if self._costs is None:
                self._settle(self._cost())

    def watch(self, stream: Any) -> Any:
        """Passes a stream on, and reads the usage that its parts report.

        Args:
            stream: An iterable or asynchronous iterable of chunks, events, lines or bytes.

        Returns:
            An iterator of the same parts, asynchronous if the stream is. Its first step raises `AlreadySettled` if
            another response has reported its usage.
        """
        return self._watch_async(stream) if hasattr(stream, "__aiter__") else self._watch(stream)

    def refund(self) -> None:
        """Gives back everything that was reserved, because the call cost nothing. The permit is still held."""
        if not self._is_settled:
            self._settle(dict.fromkeys(self.permit.taken, 0))

    def __enter__(self) -> Self:
        if not isinstance(self._admission, Permit):
            raise TypeError(f"{type(self._admission).__name__!r} is not a permit: enter this with `async with`")
        refuse_asynchronous(costs=self._costs)
        self.permit = self._admission
        return self

    def __exit__(self, _type: object, exception: BaseException | None, _traceback: object) -> None:
        try:
            self._look_at(exception)
            if self._is_known():
                self._settle(answered("costs", self._cost()))
        finally:
            self._release(exception)

    async def __aenter__(self) -> Self:
        self.permit = self._admission if isinstance(self._admission, Permit) else await self._admission
        return self

    async def __aexit__(self, _type: object, exception: BaseException | None, _traceback: object) -> None:
        try:
            self._look_at(exception)
            if self._is_known():
                self._settle(await awaited("costs", self._cost()))
        finally:
            self._release(exception)

    async def _watch_async(self, stream: Any) -> AsyncIterator[Any]:
        reader = self._begin(UsageReader())
        async for part in stream:
            reader.read(part)
            if reader.is_complete and self._is_known():
                self._settle(await awaited("costs", self._cost()))
            yield part
        reader.is_complete = True
        if self._is_known():
            self._settle(await awaited("costs", self._cost()))

    def _watch(self, stream: Any) -> Iterator[Any]:
        reader = self._begin(UsageReader())
        for part in stream:
            reader.read(part)
            if reader.is_complete and self._is_known():
                self._settle(answered("costs", self._cost()))
            yield part
        reader.is_complete = True
        if self._is_known():
            self._settle(answered("costs", self._cost()))

    def _begin(self, reader: UsageReader) -> UsageReader:
        if self._is_settled and self._failed is None:
            raise AlreadySettled("a call is one request, and this one has reported what it used: begin another call")
        self._reader = reader
        return reader

    def _is_known(self) -> bool:
        """Whether what the call used is known and not yet settled. Tells the limits if the stream had an error."""
        reader = self._reader
        if reader is None or self._is_settled or self._failed is not None:
            return False
        if reader.failure is not None:
            self._fail(reader.failure)
            return False
        return reader.is_complete and reader.usage is not None

    def _look_at(self, exception: BaseException | None) -> None:
        """Notes how the block has ended."""
        if exception is not None and not self._is_known():
            failure = Failure.of_exception(exception)
            if failure is not None:
                self._fail(failure)
        has_ended = self._reader is None or self._reader.is_complete
        if self._is_settled or self._failed is not None or exception is not None or not has_ended:
            return
        if self.usage is None and self.permit.set_name not in _warned:
            _warned.add(self.permit.set_name)
            _log.warning(
                "a call under limits of set %r reported no usage, so all that it reserved stays charged: pass its "
                "response to note, or its stream to watch; streams of OpenAI's chat completions report it with "
                'stream_options={"include_usage": True}',
                self.permit.set_name,
            )

    def _fail(self, failure: Failure) -> None:
        if self._failed is not None:
            # Such as the exception for a response that was noted.
            return
        self._failed = failure
        if failure.costs_nothing:
            self.refund()
        elif not self._is_settled:
            # Nothing says what it cost, so all of it stays charged, whatever `respect` gives back on its own.
            self._settle({})
        if failure.status is not None:
            # What was to be given back was given back above.
            self.permit.respect(failure.headers, status=failure.status, refund=False)

    def _cost(self) -> Any:
        usage = self.usage
        assert usage is not None, "it is known"
        if self._costs is not None:
            return self._costs(usage)
        return {name: _BY_NAME[name](usage) for name in self.permit.taken if name in _BY_NAME}

    def _settle(self, costs: Mapping[str, Any]) -> None:
        self._is_settled = True
        try:
            self.permit.settle(costs)
        except AlreadySettled:
            # Whoever did that knows better.
            pass
        except AlreadyReleased:
            _log.warning(
                "a permit of set %r was released before its call was settled, so all that it reserved stays charged: "
                "end the block of the call before whatever holds its permit ends",
                self.permit.set_name,
            )

    def _release(self, exception: BaseException | None) -> None:
        failure = self._failed
        if failure is not None:
            self.permit.release(failed=failure.is_of_the_provider)
        else:
            self.permit.release(failed=isinstance(exception, Exception))
