"""Admitting or refusing a request: the decision that all integrations share."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, NamedTuple

import shmlimit
from shmlimit import Permit, Refusal, Refused, SetHandle, _native
from shmlimit._by_arguments import ByArguments, Costs, Key, Overrides, Taken, check_timeout
from shmlimit._callables import answered, awaited, refuse_asynchronous
from shmlimit._event_loops import in_thread
from shmlimit._web.client_address import AddressWatch, ClientAddress
from shmlimit._web.head import Head, Request, is_preflight
from shmlimit._web.keys import Header, KeyFinder, check_key
from shmlimit._web.options import Advertise, OnError
from shmlimit._web.refused_inside import announce, tell_outer
from shmlimit.results import Checked

_log = logging.getLogger("shmlimit")


def is_server_error(status: int) -> bool:
    """Whether a status means that the work failed: the default for `fails_with`."""
    return status >= 500


def no_status(_status: int) -> bool:
    """Says that no status gives anything back: the default for `refund_when`."""
    return False


@dataclass
class Admission:
    """What an admitted request holds, and what to add to its response.

    Attributes:
        permit: Held until `release`; None if the request is not limited.
        fields: Header fields to add to the response.
    """

    permit: Permit | None = None
    fields: list[tuple[str, str]] = field(default_factory=list)
    fails_with: Callable[[int], bool | Awaitable[bool]] = is_server_error
    refund_when: Callable[[int], bool | Awaitable[bool]] | None = no_status
    _has_failed: bool = False
    _is_refused_inside: bool = False
    _is_unused: bool = False

    def note_status(self, status: int) -> None:
        """Notes the status that the application has answered with. A failure noted earlier stays."""
        self._has_failed = self._has_failed or bool(answered("fails_with", self.fails_with(status)))
        asked = self.refund_when is not None and answered("refund_when", self.refund_when(status))
        self._note_whether_unused(status, bool(asked))

    async def note_status_async(self, status: int) -> None:
        """Notes the status in a task: `fails_with` and `refund_when` may be asynchronous."""
        self._has_failed = self._has_failed or bool(await awaited("fails_with", self.fails_with(status)))
        asked = self.refund_when is not None and await awaited("refund_when", self.refund_when(status))
        self._note_whether_unused(status, bool(asked))

    def note_refused_inside(self) -> None:
        """Notes that limits further in refused the request: it never happened, unless the application serves it."""
        self._is_refused_inside = self._is_unused = self.refund_when is not None

    def _note_whether_unused(self, status: int, is_asked_to: bool) -> None:
        # An application that serves the request all the same, from a cache for example, has used what was taken.
        is_refusal = self._is_refused_inside and status >= 400
        self._is_unused = is_asked_to or is_refusal

    def release(self, *, failed: bool = False) -> None:
        """Releases the permit, or cancels it if the request never happened. A second call does nothing.

        Args:
            failed: The application gave no answer, or broke off in the middle of one.
        """
        permit, self.permit = self.permit, None
        if permit is None:
            return
        try:
            if self._is_unused:
                permit.cancel()
            else:
                permit.release(failed=failed or self._has_failed)
        except shmlimit.Error as error:
            # This need not spoil the response. The permit's finalizer tries once more.
            _log.error("what a request held could not be given back: %s", error)

    @contextmanager
    def released_by_exceptions(self) -> Iterator[None]:
        """Releases the permit if the application raises, as failed unless it was stopped from outside."""
        try:
            yield
        except BaseException as error:
            self.release(failed=isinstance(error, Exception))
            raise


@dataclass(frozen=True)
class Answer:
    """A response that says why the request did not reach the application.

    Attributes:
        status: The HTTP status.
        body: Problem details as in RFC 9457.
        fields: Header fields other than those that describe the body.
        error: The error behind the response, if any; clients do not see it.
    """

    status: int
    body: bytes
    fields: list[tuple[str, str]]
    error: Exception | None = None

    @property
    def problem(self) -> dict[str, Any]:
        """The problem details in the body."""
        problem: dict[str, Any] = json.loads(self.body)
        return problem

    @property
    def headers(self) -> list[tuple[str, str]]:
        """All header fields."""
        content = [("Content-Type", "application/problem+json"), ("Content-Length", str(len(self.body)))]
        return content + self.fields


def give_back(decision: Admission | Answer) -> None:
    """Releases what was taken for a request that nobody serves any more."""
    if isinstance(decision, Admission):
        decision.release()


_FAILED = 500


def answer_to(error: shmlimit.Error, limits: SetHandle, headers: _native.PolicyHeaders) -> Answer:
    """The answer to a request for which asking the limits has raised an error."""
    if isinstance(error, Refused):
        assert error.refusal is not None, "only a program raises this with a text of its own"
        return Answer(*headers.refusal(error.refusal))
    if isinstance(error, shmlimit.NeverAdmissible):
        return Answer(*headers.never_admissible(error.limit))
    # If the set is not keyed, that is not the client's fault.
    if isinstance(error, shmlimit.InvalidKey) and limits.keyed:
        return Answer(*_native.PolicyHeaders.without_a_key(), error)
    return Answer(*_native.PolicyHeaders.failed(), error)


class _Asked(NamedTuple):
    """The set of limits to ask, and the header fields of its responses."""

    limits: SetHandle
    headers: _native.PolicyHeaders


class _Question(NamedTuple):
    """What a request asks of the limits."""

    key: Key | None
    costs: Costs | None
    tier: str | None
    overrides: Overrides | None
    deadline: float | None
    """Until when it may wait, on the monotonic clock; None if it does not wait."""

    def left(self) -> float | None:
        """How many more seconds it may wait; None if it does not wait."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def ask(self, limits: SetHandle) -> Permit | Refusal | Checked:
        """Asks the limits without waiting."""
        if limits._counts_networks:
            return limits.check(self.costs, key=self.key, tier=self.tier, overrides=self.overrides)
        return limits.try_acquire(self.costs, key=self.key, tier=self.tier, overrides=self.overrides)


class AdmissionControl(Generic[Request]):
    """Asks the limits of one set for requests of one framework."""

    def __init__(
        self,
        limits: SetHandle,
        *,
        key: KeyFinder[Request] | None = None,
        costs: Costs | Callable[[Request], Costs | Awaitable[Costs | None] | None] | None = None,
        timeout: float | timedelta | None = None,
        exempt: Callable[[Request], bool | Awaitable[bool]] | None = None,
        on_error: OnError = "refuse",
        advertise: Advertise = "always",
        fails_with: Callable[[int], bool | Awaitable[bool]] = is_server_error,
        refund_when: Callable[[int], bool | Awaitable[bool]] | None = no_status,
        quota_units: Mapping[str, str] | None = None,
        policy_prefix: str = "",
        tier: str | Callable[[Request], str | Awaitable[str | None] | None] | None = None,
        overrides: Overrides | Callable[[Request], Overrides | Awaitable[Overrides | None] | None] | None = None,
    ) -> None:
        """The options are those of `LimitOptions`."""
        if on_error not in ("refuse", "admit"):
            raise ValueError(f"on_error is {on_error!r}, but must be 'refuse' or 'admit'")
        check_key(key)
        self._finder = key if isinstance(key, (Header, ClientAddress)) else None
        self._takes = ByArguments(costs, None if isinstance(key, (Header, ClientAddress)) else key, tier, overrides)
        # Only needed if clients are told apart by the connection's own address.
        self._watch = AddressWatch() if isinstance(key, ClientAddress) and key.is_of_connection else None
        self._timeout = check_timeout(timeout)
        self._exempt = exempt
        self._on_error = on_error
        self._advertise: Advertise = advertise
        self._fails_with = fails_with
        self._refund_when = refund_when
        self._quota_units = dict(quota_units or {})
        self._policy_prefix = policy_prefix
        self._asked = self._describe(limits)
        if limits._counts_networks and timeout is not None:
            raise ValueError(f"the limits of set {limits.name!r} count networks: no request can wait for those")

    def refuse_asynchronous(self) -> None:
        """Rejects asynchronous options, for an integration that only calls `decide`.

        Raises:
            TypeError: An option is asynchronous.
        """
        self._takes.refuse_asynchronous()
        refuse_asynchronous(exempt=self._exempt, fails_with=self._fails_with, refund_when=self._refund_when)

    @property
    def waits(self) -> bool:
        """Whether a decision may take long."""
        return self._timeout is not None

    def decide(self, head: Head[Request]) -> Admission | Answer:
        """Asks the limits, and waits in the queue for up to the timeout."""
        question = self._question(head)
        while isinstance(question, _Question):
            asked = self._asked
            key, costs, tier, overrides, deadline = question
            left = question.left()
            try:
                if deadline is None or asked.limits._counts_networks:
                    decided = question.ask(asked.limits)
                else:
                    decided = asked.limits.acquire(costs, key=key, timeout=left, tier=tier, overrides=overrides)
            except shmlimit.Error as error:
                question = self._after(error, asked, question)
            else:
                question = self._decided(decided, asked)
        return _made_known(head, question)

    async def decide_async(self, head: Head[Request]) -> Admission | Answer:
        """Asks the limits without blocking the event loop while it waits.

        Asking itself takes about a microsecond and is done at once, unless it has to wait for the store of a fleet.
        """
        question = await self._question_async(head)
        while isinstance(question, _Question):
            asked = self._asked
            key, costs, tier, overrides, deadline = question
            left = question.left()
            try:
                if deadline is None:
                    # Even without a timeout, a task waits until a fleet's store has answered, if the limits need that.
                    waits = asked.limits._cold_wait(costs, key=key, tier=tier, overrides=overrides) > 0
                    left = 0 if waits else None
                if left is None or asked.limits._counts_networks:
                    decided = question.ask(asked.limits)
                else:
                    limits = asked.limits
                    decided = await limits.acquire_async(costs, key=key, timeout=left, tier=tier, overrides=overrides)
            except shmlimit.Removed as error:
                # Opening the successor may wait for the process that is creating it.
                question = await in_thread(self._after, error, asked, question)
            except shmlimit.Error as error:
                question = self._after(error, asked, question)
            else:
                question = self._decided(decided, asked)
        return _made_known(head, question)

    def _describe(self, limits: SetHandle) -> _Asked:
        headers = _native.PolicyHeaders(
            limits, advertise=self._advertise, quota_units=self._quota_units, prefix=self._policy_prefix
        )
        return _Asked(limits, headers)

    def _question(self, head: Head[Request]) -> _Question | Admission | Answer:
        """What the request asks of the limits; or the decision, if they need not be asked."""
        if is_preflight(head):
            return Admission()
        if self._exempt is not None and answered("exempt", self._exempt(head.request)):
            return Admission()
        return self._question_of(head, self._takes.of((head.request,), {}))

    async def _question_async(self, head: Head[Request]) -> _Question | Admission | Answer:
        """What the request asks, in a task: callables may be asynchronous."""
        if is_preflight(head):
            return Admission()
        if self._exempt is not None and await awaited("exempt", self._exempt(head.request)):
            return Admission()
        return self._question_of(head, await self._takes.of_async((head.request,), {}))

    def _question_of(self, head: Head[Request], taken: Taken) -> _Question | Answer:
        key = taken.key if self._finder is None else self._finder.find(head)
        if self._watch is not None:
            self._watch.note(head)
        if key is None and self._asked.limits.keyed:
            return Answer(*_native.PolicyHeaders.without_a_key())
        if self._timeout is None:
            return _Question(key, taken.costs, taken.tier, taken.overrides, None)
        return _Question(key, taken.costs, taken.tier, taken.overrides, time.monotonic() + self._timeout)

    def _decided(self, decided: Permit | Refusal | Checked, asked: _Asked) -> Admission | Answer:
        if isinstance(decided, Refusal) or not decided:
            return Answer(*asked.headers.refusal(decided))
        permit = decided if isinstance(decided, Permit) else None
        return Admission(permit, asked.headers.admission(decided), self._fails_with, self._refund_when)

    def _after(self, error: shmlimit.Error, asked: _Asked, question: _Question) -> _Question | Admission | Answer:
        """Decides a request after an error: it asks again, or is decided without the limits."""
        if self._goes_on(error, asked):
            return question
        answer = answer_to(error, asked.limits, asked.headers)
        if answer.status != _FAILED:
            # Clients control their costs and keys. With `on_error="admit"`, that must not be a way past the limits.
            return answer
        _log.error("the limits of a request could not be asked: %s", error)
        return Admission() if self._on_error == "admit" else answer

    def _goes_on(self, error: shmlimit.Error, asked: _Asked) -> bool:
        """Whether the segment was removed and the request should ask its successor."""
        if not isinstance(error, shmlimit.Removed):
            return False
        if self._asked is not asked:
            # Another thread has found the successor meanwhile.
            return True
        try:
            successor = asked.limits.successor()
        except shmlimit.Error as reason:
            _log.error("what took the place of a removed segment cannot be used: %s", reason)
            return False
        if successor is None:
            return False
        self._asked = self._describe(successor)
        return True


def _made_known(head: Head[Request], decision: Admission | Answer) -> Admission | Answer:
    """Makes an admission known to limits further in, and a refusal to those further out."""
    if isinstance(decision, Admission):
        if decision.permit is not None:
            announce(head.context, decision)
    elif decision.status in (429, 503):
        tell_outer(head.context)
    return decision
