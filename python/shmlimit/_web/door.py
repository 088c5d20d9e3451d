"""What becomes of a request: the decision that every door makes alike."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, Literal, TypeAlias

import shmlimit
from shmlimit import Checked, Limits, Permit, Refusal, Refused
from shmlimit._by_arguments import Capacities, Taken
from shmlimit._web import problem
from shmlimit._web.fields import retry_after
from shmlimit._web.keys import Head, KeyFinder, Request, finder
from shmlimit._web.problem import Answer
from shmlimit._web.told import Told

Advertise: TypeAlias = Literal["always", "when_refused", "never"]
OnError: TypeAlias = Literal["refuse", "admit"]
Costs: TypeAlias = Mapping[str, Any]

_log = logging.getLogger("shmlimit")


def is_server_error(status: int) -> bool:
    """Whether an answer says that the work could not be done, unless a door is told otherwise."""
    return status >= 500


@dataclass
class Admission:
    """What a request that goes on to the application holds, and what its response is given.

    Attributes:
        permit: Held until `release`; none where the request is not limited.
        fields: Header fields of the response, to be added to those that are there.
    """

    permit: Permit | None = None
    fields: list[tuple[str, str]] = field(default_factory=list)
    fails_with: Callable[[int], bool] = is_server_error
    _has_failed: bool = False

    def note_status(self, status: int) -> None:
        """Notes what the application has answered; what was noted before stays."""
        self._has_failed = self._has_failed or self.fails_with(status)

    def release(self, *, failed: bool = False) -> None:
        """Gives back what is held. Does nothing the second time.

        Args:
            failed: The application gave no answer, or broke off in the middle of one.
        """
        permit, self.permit = self.permit, None
        if permit is None:
            return
        try:
            permit.release(dropped=failed or self._has_failed)
        except shmlimit.Error as error:
            # The response is as good as before. It is tried once more when the permit is let go of.
            _log.error("what a request held could not be given back: %s", error)


class Door(Generic[Request]):
    """Asks the limits of one set for requests of one framework."""

    def __init__(
        self,
        limits: Limits,
        *,
        key: KeyFinder[Request] | None = None,
        costs: Costs | Callable[[Request], Costs | None] | None = None,
        timeout: float | timedelta | None = None,
        exempt: Callable[[Request], bool] | None = None,
        on_error: OnError = "refuse",
        advertise: Advertise = "always",
        fails_with: Callable[[int], bool] = is_server_error,
        quota_units: Mapping[str, str] | None = None,
        policy_prefix: str = "",
        tier: str | Callable[[Request], str | None] | None = None,
        overrides: Capacities | Callable[[Request], Capacities | None] | None = None,
    ) -> None:
        """As the doors document their parameters."""
        if on_error not in ("refuse", "admit"):
            raise ValueError(f"on_error is {on_error!r}, but must be 'refuse' or 'admit'")
        if advertise not in ("always", "when_refused", "never"):
            raise ValueError(f"advertise is {advertise!r}, but must be 'always', 'when_refused' or 'never'")
        self._limits = limits
        self._finder = finder(key)
        self._costs = costs
        self._tier = tier
        self._overrides = overrides
        self._timeout = timeout
        self._exempt = exempt
        self._on_error = on_error
        self._advertise = advertise
        self._fails_with = fails_with
        self._describe: Callable[[Limits], Told] = lambda limits: Told(limits, quota_units or {}, policy_prefix)
        self._told = self._describe(limits)
        self._count_networks = self._told.policies().count_networks
        if self._count_networks and timeout is not None:
            raise ValueError(f"the limits of set {limits.name!r} count networks: nobody can wait in line for those")

    @property
    def waits(self) -> bool:
        """Whether a decision may take long."""
        return self._timeout is not None

    def decide(self, head: Head[Request]) -> Admission | Answer:
        """Asks the limits, and waits in line for as long as the door is told to."""
        if self._exempt is not None and self._exempt(head.request):
            return Admission()
        costs, key, tier, overrides = self._taken_by(head)
        if key is None and self._limits.keyed:
            return problem.without_a_key()
        deadline = self._deadline()
        while True:
            limits = self._limits
            try:
                if self._count_networks:
                    return self._decided(limits.check(costs, key=key, tier=tier, limits=overrides))
                if deadline is None:
                    return self._decided(limits.try_acquire(costs, key=key, tier=tier, limits=overrides))
                left = _left(deadline)
                return self._decided(limits.acquire(costs, key=key, timeout=left, tier=tier, limits=overrides))
            except Refused as refused:
                return self._decided(refused.refusal)
            except shmlimit.Error as error:
                if not self._goes_on(error, limits):
                    return self._without_a_decision(error)

    async def decide_async(self, head: Head[Request]) -> Admission | Answer:
        """As `decide`, without keeping the event loop from others while it waits.

        Asking itself takes about a microsecond and is done at once.
        """
        if self._timeout is None:
            return self.decide(head)
        if self._exempt is not None and self._exempt(head.request):
            return Admission()
        costs, key, tier, overrides = self._taken_by(head)
        if key is None and self._limits.keyed:
            return problem.without_a_key()
        deadline = self._deadline()
        while True:
            limits = self._limits
            try:
                left = _left(deadline)
                permit = await limits.acquire_async(costs, key=key, timeout=left, tier=tier, limits=overrides)
                return self._decided(permit)
            except Refused as refused:
                return self._decided(refused.refusal)
            except shmlimit.Error as error:
                if not self._goes_on(error, limits):
                    return self._without_a_decision(error)

    def _deadline(self) -> float | None:
        """Until when a request that comes now may wait; None where none waits."""
        if self._timeout is None:
            return None
        seconds = self._timeout.total_seconds() if isinstance(self._timeout, timedelta) else self._timeout
        return time.monotonic() + seconds

    def _goes_on(self, error: shmlimit.Error, limits: Limits) -> bool:
        """Whether the request is to be asked again: of what took the place of the segment, where that was removed."""
        if not isinstance(error, shmlimit.Removed):
            return False
        if self._limits is not limits:
            # Another thread has found it meanwhile.
            return True
        try:
            successor = limits.successor()
        except shmlimit.Error as reason:
            _log.error("what took the place of a removed segment cannot be used: %s", reason)
            return False
        if successor is None:
            return False
        self._told = self._describe(successor)
        self._count_networks = self._told.policies().count_networks
        self._limits = successor
        return True

    def _taken_by(self, head: Head[Request]) -> Taken:
        request = head.request
        return Taken(
            self._costs(request) if callable(self._costs) else self._costs,
            None if self._finder is None else self._finder.find(head),
            self._tier(request) if callable(self._tier) else self._tier,
            self._overrides(request) if callable(self._overrides) else self._overrides,
        )

    def _decided(self, result: Permit | Refusal | Checked | None) -> Admission | Answer:
        assert result is not None, "a refusal without its limits comes out of a pickle only"
        # After the decision, by which this process hears of limits that have changed.
        policies = self._told.policies()
        if result:
            fields = []
            if self._advertise == "always":
                standing = policies.standing(result.verdicts.values(), admitted=True)
                fields = _fields(policies.field(result.verdicts.values()), standing)
            permit = result if isinstance(result, Permit) else None
            return Admission(permit, fields, self._fails_with)
        violated = [verdict.limit for verdict in result.verdicts.values() if not verdict.admitted]
        if result.binding is not None:
            violated = [result.binding, *(limit for limit in violated if limit != result.binding)]
        # Behind a full queue, what binds its first does not bind this request, which did not even get in line.
        has_room = bool(violated) and result.reason != "queue_full"
        answer = problem.quota_exceeded([policies.name(limit) for limit in violated]) if has_room else problem.no_room()
        answer.fields.append(("Retry-After", str(retry_after(result))))
        if self._advertise != "never":
            standing = policies.standing(result.verdicts.values(), admitted=False)
            answer.fields.extend(_fields(policies.field(result.verdicts.values()), standing))
        return answer

    def _without_a_decision(self, error: shmlimit.Error) -> Admission | Answer:
        # Clients say what they take and what their key is. Where errors admit, that must not be a way past the limits.
        if isinstance(error, shmlimit.NeverAdmissible):
            policies = self._told.policies()
            answer = problem.quota_exceeded([policies.name(error.limit)])
            if self._advertise != "never":
                answer.fields.extend(_fields(policies.field(()), ""))
            return answer
        if isinstance(error, (shmlimit.KeyRequired, shmlimit.InvalidKey)):
            return problem.without_a_key(error)
        _log.error("the limits of a request could not be asked: %s", error)
        return Admission() if self._on_error == "admit" else problem.failed(error)


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _fields(policy: str, standing: str) -> list[tuple[str, str]]:
    """Neither field may be empty."""
    return [(name, value) for name, value in (("RateLimit-Policy", policy), ("RateLimit", standing)) if value]
