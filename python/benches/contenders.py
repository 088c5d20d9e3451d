"""What compare.py measures: the same decisions, by shmlimit and by libraries that people use for them."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import shmlimit as sl

Operation = Callable[[], object]

ONE, THREE, KEYED, REFUSED = "1 limit", "3 limits", "keyed", "refused"

# So much that no round reaches it, in a window so short that logs of past requests stay short too.
PLENTY, WINDOW = 1_000_000_000, 1
KEYS = [f"tenant-{number}" for number in range(1000)]


@dataclass
class Contender:
    """A library, ready: one call of an operation makes one decision, and gives back what has to be."""

    name: str
    operations: dict[str, Operation]
    # Whether the processes of a host share what it counts.
    shared: bool


@contextmanager
def shmlimit_segment(directory: Path) -> Iterator[Contender]:
    """This package, on a file in memory."""
    never = sl.Calls("calls", 1, "30d", algorithm="fixed_window", align="first_use")
    calls = sl.Calls("calls", PLENTY, WINDOW)
    tokens, in_flight = sl.Rate("tokens", PLENTY, WINDOW), sl.Concurrency("in_flight", 1000)
    segment = sl.open(
        directory / "bench.limits",
        config=[
            sl.LimitSet("one", [calls]),
            sl.LimitSet("three", [calls, tokens, in_flight]),
            sl.LimitSet("keyed", [calls], keyed=2 * len(KEYS)),
            sl.LimitSet("refused", [never]),
        ],
    )
    one, three_limits, keyed, refused = (segment[name] for name in ("one", "three", "keyed", "refused"))
    keys = cycle(KEYS)
    refused.check()

    def take_one() -> None:
        one.try_acquire().release()

    def take_three() -> None:
        three_limits.try_acquire({"tokens": 100}).release()

    def take_keyed() -> None:
        keyed.try_acquire(key=next(keys)).release()

    operations: dict[str, Operation] = {
        ONE: take_one,
        THREE: take_three,
        KEYED: take_keyed,
        REFUSED: refused.try_acquire,
    }
    yield Contender("shmlimit", operations, shared=True)


@contextmanager
def limits_memory(_directory: Path) -> Iterator[Contender]:
    """The library `limits` on its memory storage, which each process has for itself."""
    from limits import RateLimitItemPerMonth, RateLimitItemPerSecond
    from limits.storage import MemoryStorage
    from limits.strategies import FixedWindowRateLimiter

    limiter = FixedWindowRateLimiter(MemoryStorage())
    plenty, never = RateLimitItemPerSecond(PLENTY), RateLimitItemPerMonth(1)
    keys = cycle(KEYS)
    limiter.hit(never, "refused")

    def take_three() -> None:
        limiter.hit(plenty, "calls")
        limiter.hit(plenty, "tokens", cost=100)
        limiter.hit(plenty, "in_flight")

    operations: dict[str, Operation] = {
        ONE: lambda: limiter.hit(plenty, "one"),
        THREE: take_three,
        KEYED: lambda: limiter.hit(plenty, next(keys)),
        REFUSED: lambda: limiter.hit(never, "refused"),
    }
    yield Contender("limits (memory)", operations, shared=False)


# Fixed windows of any number of counters, taken together or not at all: the cheapest rule there is.
REDIS_SCRIPT = """
for i, key in ipairs(KEYS) do
  if tonumber(redis.call('GET', key) or '0') + tonumber(ARGV[3 * i - 2]) > tonumber(ARGV[3 * i - 1]) then
    return 0
  end
end
for i, key in ipairs(KEYS) do
  if redis.call('INCRBY', key, ARGV[3 * i - 2]) == tonumber(ARGV[3 * i - 2]) then
    redis.call('PEXPIRE', key, ARGV[3 * i])
  end
end
return 1
"""


@contextmanager
def redis_script(directory: Path) -> Iterator[Contender]:
    """A script in a Redis server of its own, by a socket in the file system."""
    import redis

    socket = directory / "redis.sock"
    options = [
        "--port",
        "0",
        "--unixsocket",
        str(socket),
        "--save",
        "",
        "--appendonly",
        "no",
        "--dir",
        str(directory),
    ]
    server = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
    try:
        client = redis.Redis(unix_socket_path=str(socket))
        while not answers(client, server):
            time.sleep(0.01)
        script = client.register_script(REDIS_SCRIPT)
        plenty, keys = [1, PLENTY, 1000 * WINDOW], cycle(KEYS)
        three = [*plenty, 100, PLENTY, 1000 * WINDOW, *plenty]
        never = [1, 1, 1000 * 86_400]
        script(["refused"], never)
        operations: dict[str, Operation] = {
            ONE: lambda: script(["one"], plenty),
            THREE: lambda: script(["calls", "tokens", "in_flight"], three),
            KEYED: lambda: script([next(keys)], plenty),
            REFUSED: lambda: script(["refused"], never),
        }
        yield Contender("Redis (unix socket, Lua)", operations, shared=True)
    finally:
        server.terminate()
        server.wait()


def answers(client: Any, server: subprocess.Popen[bytes]) -> bool:
    """Whether the server is up; an error where it has ended."""
    import redis

    if server.poll() is not None:
        raise RuntimeError("redis-server ended at once")
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


@contextmanager
def pyrate_multiprocess(_directory: Path) -> Iterator[Contender]:
    """pyrate-limiter's bucket for several processes: a list in a manager's process, and a lock."""
    from pyrate_limiter import Duration, Rate
    from pyrate_limiter.buckets.mp_bucket import MultiprocessBucket
    from pyrate_limiter.limiter import Limiter

    plenty = Limiter(MultiprocessBucket.init([Rate(PLENTY, 1000 * WINDOW)]))
    never = Limiter(MultiprocessBucket.init([Rate(1, 30 * Duration.DAY)]))
    never.try_acquire("refused", blocking=False)
    operations: dict[str, Operation] = {
        ONE: lambda: plenty.try_acquire("one", blocking=False),
        REFUSED: lambda: never.try_acquire("refused", blocking=False),
    }
    yield Contender("pyrate-limiter (multiprocess)", operations, shared=True)


def concurry(mode: str) -> Callable[[Path], Any]:
    """Concurry's limit sets, for threads or for processes."""

    @contextmanager
    def contender(_directory: Path) -> Iterator[Contender]:
        from concurry import CallLimit, LimitSet, RateLimit, RateLimitAlgorithm, ResourceLimit

        def calls(capacity: int, window: int) -> Any:
            return CallLimit(window=window, algorithm=RateLimitAlgorithm.GCRA, capacity=capacity)

        def limit_set(*limits: Any) -> Any:
            return LimitSet(limits=list(limits), shared=True, mode=mode, **context)

        context = {"mp_context": "fork"} if mode == "process" else {}
        tokens = RateLimit(key="tokens", window=WINDOW, algorithm=RateLimitAlgorithm.GCRA, capacity=PLENTY)
        one = limit_set(calls(PLENTY, WINDOW))
        three = limit_set(calls(PLENTY, WINDOW), tokens, ResourceLimit(key="in_flight", capacity=1000))
        never = limit_set(calls(1, 30 * 86_400))
        with never.try_acquire():
            pass

        def take_one() -> None:
            with one.try_acquire():
                pass

        def take_three() -> None:
            with three.try_acquire({"tokens": 100}) as acquisition:
                acquisition.update(usage={"tokens": 100})

        operations: dict[str, Operation] = {ONE: take_one, THREE: take_three, REFUSED: never.try_acquire}
        yield Contender(f"Concurry ({mode})", operations, shared=mode == "process")

    return contender


def contenders(directory: Path, everything: ExitStack) -> Iterator[Contender]:
    """Each that is installed, set up; taken down by the stack. This package is the first."""
    yield everything.enter_context(shmlimit_segment(directory))
    candidates: list[tuple[str, bool, Callable[[Path], Any]]] = [
        ("limits", importlib.util.find_spec("limits") is not None, limits_memory),
        ("Redis", has_redis(), redis_script),
        ("pyrate-limiter", importlib.util.find_spec("pyrate_limiter") is not None, pyrate_multiprocess),
        ("Concurry (thread)", importlib.util.find_spec("concurry") is not None, concurry("thread")),
        ("Concurry (process)", importlib.util.find_spec("concurry") is not None, concurry("process")),
    ]
    for name, installed, candidate in candidates:
        if installed:
            yield everything.enter_context(candidate(directory))
        else:
            print(f"{name} is not installed, and left out.")


def has_redis() -> bool:
    """Whether there is a Redis to start, and a client for it."""
    found = shutil.which("redis-server", path=os.environ.get("PATH"))
    return found is not None and importlib.util.find_spec("redis") is not None
