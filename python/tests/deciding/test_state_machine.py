"""Any order of acquiring, settling, releasing, forking and killing, against a model that only adds and subtracts."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import uuid
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Any

import hypothesis.strategies as st
import pytest
from conftest import TIMEOUT, queued, wait_until
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

import shmlimit as sl

SLOTS, TOKENS, CALLS = 4, 60, 30

# So long that nothing that matters comes back while the test runs.
LONG = 10_000_000

FORK = multiprocessing.get_context("fork")


def serve(limits: sl.SetHandle, connection: Connection) -> None:
    """Runs in a worker until it is killed: does what it is told, with an answer each time."""
    permits: dict[int, sl.Permit] = {}
    while True:
        action, *arguments = connection.recv()
        if action == "acquire":
            number, costs = arguments
            answer = limits.try_acquire(costs)
            if answer:
                permits[number] = answer
            connection.send(bool(answer))
        elif action == "settle":
            number, tokens = arguments
            connection.send(permits[number].settle(tokens=tokens).overdraft)
        elif action == "release":
            permits.pop(arguments[0]).release()
            connection.send(None)
        elif action == "wait":
            connection.send(None)
            limits.acquire(arguments[0])
        elif action == "churn":
            connection.send(None)
            while True:
                if permit := limits.try_acquire({"slots": 1, "calls": 0}):
                    permit.release()


@dataclass
class Hold:
    """What the model knows about a permit."""

    number: int
    owner: Worker | None
    slots: int
    tokens: int
    settled: bool = False
    permit: Any = field(default=None, repr=False)


class Worker:
    """A forked process that has inherited the set."""

    def __init__(self, limits: sl.SetHandle) -> None:
        self.connection, there = FORK.Pipe()
        self.process: ForkProcess = FORK.Process(target=serve, args=(limits, there), daemon=True)
        self.process.start()
        there.close()

    def ask(self, *message: object) -> Any:
        self.connection.send(message)
        assert self.connection.poll(TIMEOUT), f"no answer to {message}"
        return self.connection.recv()

    def kill(self) -> None:
        if self.process.pid is not None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(TIMEOUT)
        self.connection.close()


class Life(RuleBasedStateMachine):
    """A segment, this process, and workers that come and are killed."""

    holds = Bundle("holds")
    workers = Bundle("workers")

    @initialize()
    def create(self) -> None:
        self.path = f"/dev/shm/shmlimit-test-{os.getpid()}-{uuid.uuid4().hex}.limits"
        self.segment = sl.open(
            self.path,
            sl.LimitSet(
                "set",
                [
                    sl.Concurrency("slots", SLOTS),
                    sl.Rate("tokens", TOKENS, LONG, algorithm="token_bucket"),
                    sl.Calls("calls", CALLS, LONG, algorithm="sliding_window"),
                ],
            ),
        )
        self.limits = self.segment["set"]
        self.living: list[Worker] = []
        self.held: list[Hold] = []
        self.tokens_used = 0
        self.calls_used = 0
        self.numbers = 0

    @property
    def slots_held(self) -> int:
        return sum(hold.slots for hold in self.held)

    def is_admissible(self, slots: int, tokens: int, calls: int) -> bool:
        return (
            self.slots_held + slots <= SLOTS
            and self.tokens_used + tokens <= TOKENS
            and self.calls_used + calls <= CALLS
        )

    @rule(target=workers)
    def start_a_worker(self) -> Worker:
        worker = Worker(self.limits)
        self.living.append(worker)
        return worker

    @rule(
        target=holds,
        worker=st.none() | workers,
        slots=st.integers(0, SLOTS),
        tokens=st.integers(1, 20),
        calls=st.integers(0, 3),
    )
    def acquire(self, worker: Worker | None, slots: int, tokens: int, calls: int) -> Any:
        if worker is not None and worker not in self.living:
            return multiple()
        self.numbers += 1
        costs = {"slots": slots, "tokens": tokens, "calls": calls}
        hold = Hold(self.numbers, worker, slots, tokens)
        if worker is None:
            hold.permit = self.limits.try_acquire(costs)
            admitted = bool(hold.permit)
        else:
            admitted = worker.ask("acquire", hold.number, costs)
        assert admitted == self.is_admissible(slots, tokens, calls)
        if not admitted:
            return multiple()
        self.held.append(hold)
        self.tokens_used += tokens
        self.calls_used += calls
        return hold

    @rule(hold=holds, used=st.integers(0, 25))
    def settle(self, hold: Hold, used: int) -> None:
        if hold not in self.held or hold.settled:
            return
        if hold.owner is None:
            overdraft = hold.permit.settle(tokens=used).overdraft
        else:
            overdraft = hold.owner.ask("settle", hold.number, used)
        assert overdraft.get("tokens", 0) == max(0, used - hold.tokens)
        hold.settled = True
        self.tokens_used += used - hold.tokens

    @rule(hold=consumes(holds), forgotten=st.booleans())
    def release(self, hold: Hold, forgotten: bool) -> None:
        if hold not in self.held:
            return
        if hold.owner is not None:
            hold.owner.ask("release", hold.number)
        elif forgotten:
            hold.permit = None
        else:
            hold.permit.release()
            hold.permit.release()
        self.held.remove(hold)

    @rule(worker=consumes(workers))
    def kill(self, worker: Worker) -> None:
        self.bury(worker)

    @rule(worker=consumes(workers))
    def kill_at_any_instant(self, worker: Worker) -> None:
        if worker in self.living:
            worker.ask("churn")
            self.bury(worker)

    @rule(worker=consumes(workers))
    def kill_in_line(self, worker: Worker) -> None:
        if worker not in self.living or self.slots_held == 0:
            return
        worker.ask("wait", {"slots": SLOTS, "calls": 0})
        wait_until(lambda: queued(self.limits) == 1, "the worker is in the queue")
        self.bury(worker)

    def bury(self, worker: Worker) -> None:
        if worker in self.living:
            self.living.remove(worker)
            worker.kill()
            self.held = [hold for hold in self.held if hold.owner is not worker]
            self.await_the_dead()

    def await_the_dead(self) -> None:
        """Waits until what the dead held is free: at once, or a millisecond after somebody last looked for the dead."""
        rest = {"slots": SLOTS - self.slots_held, "calls": 0}
        wait_until(lambda: bool(self.limits.try_acquire(rest)), "what the dead held comes back")

    @rule()
    def fork(self) -> None:
        child = os.fork()
        if child == 0:
            # Inherited permits are the parent's: neither releasing nor dropping them gives anything back.
            with contextlib.suppress(BaseException):
                for hold in self.held:
                    if hold.permit is not None:
                        with contextlib.suppress(sl.PermitError):
                            hold.permit.release()
                    hold.permit = None
                expected = self.slots_held < SLOTS
                # Held until the child exits, just below.
                own = self.limits.try_acquire({"slots": 1, "calls": 0})
                os._exit(0 if bool(own) == expected else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        self.await_the_dead()

    @invariant()
    def is_as_the_model_says(self) -> None:
        if not hasattr(self, "limits"):
            return
        assert self.slots_held <= SLOTS
        standing = self.limits.peek({"slots": 0, "tokens": 0, "calls": 0})
        assert standing["tokens"].remaining == max(0, TOKENS - self.tokens_used)
        assert standing["calls"].remaining == CALLS - self.calls_used
        free = SLOTS - self.slots_held
        if free < SLOTS:
            assert not self.limits.try_acquire({"slots": free + 1, "calls": 0})
        with self.limits.try_acquire({"slots": free, "calls": 0}) as rest:
            assert rest, "it is neither held nor free"

    def teardown(self) -> None:
        if not hasattr(self, "limits"):
            return
        try:
            for worker in list(self.living):
                self.bury(worker)
            for hold in self.held:
                hold.permit.release()
            with self.limits.try_acquire({"slots": SLOTS, "calls": 0}) as everything:
                assert everything, "something is taken, and not held"
            (described,) = self.segment.snapshot()["sets"]
            assert described["tickets"] == []
        finally:
            os.unlink(self.path)


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestLife = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")(TestLife)
