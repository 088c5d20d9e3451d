"""Those of Concurry's global defaults that concern limits."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ._constants import LoadBalancingAlgorithm, RateLimitAlgorithm

if TYPE_CHECKING:
    from collections.abc import Iterator

# Concurry polls until a limit admits. Nothing polls here, so these have no effect.
_POLLING = ("limit_set_acquire_sleep", "rate_limiter_min_wait_time", "mp_context")


class Defaults:
    """The defaults of limits and pools.

    Attributes:
        rate_limit_algorithm: The algorithm of a rate limit; `SlidingWindow`, as in Concurry.
        limit_pool_load_balancing: How a pool chooses; `RoundRobin`.
        limit_pool_worker_index: Where a pool's round begins; 0.

    `polling_*`, `limit_set_acquire_sleep`, `rate_limiter_min_wait_time` and `mp_context` can be set, too, without
    effect. Any other name is an error: options of workers are set in Concurry itself.
    """

    rate_limit_algorithm: RateLimitAlgorithm
    limit_pool_load_balancing: LoadBalancingAlgorithm
    limit_pool_worker_index: int

    def __init__(self) -> None:
        self.rate_limit_algorithm = RateLimitAlgorithm.SlidingWindow
        self.limit_pool_load_balancing = LoadBalancingAlgorithm.RoundRobin
        self.limit_pool_worker_index = 0

    def __setattr__(self, name: str, value: object) -> None:
        if name == "rate_limit_algorithm":
            value = RateLimitAlgorithm(value)  # type: ignore[arg-type]
        elif name == "limit_pool_load_balancing":
            value = LoadBalancingAlgorithm(value)  # type: ignore[arg-type]
        elif name == "limit_pool_worker_index":
            value = int(value)  # type: ignore[call-overload]
        elif not name.startswith("polling_") and name not in _POLLING:
            raise ValueError(f"{name!r} is not a default of limits; options of workers are set in concurry")
        super().__setattr__(name, value)


class Configuration:
    """Holds the defaults of this process.

    Attributes:
        defaults: The defaults in force.
    """

    def __init__(self) -> None:
        self.defaults = Defaults()

    def reset_to_defaults(self) -> None:
        """Restores the initial defaults."""
        self.defaults = Defaults()


global_config = Configuration()


@contextmanager
def temp_config(**overrides: object) -> Iterator[Configuration]:
    """Sets defaults for the duration of a `with` block.

    Args:
        **overrides: `global_` and the name of a default, such as `global_rate_limit_algorithm="gcra"`.

    Yields:
        The configuration in force.

    Raises:
        ValueError: A name is not a default of limits.
    """
    before = global_config.defaults
    within = Defaults()
    vars(within).update(vars(before))
    for name, value in overrides.items():
        if not name.startswith("global_"):
            raise ValueError(f"{name!r} is not a default of limits: write global_ and the name of one")
        setattr(within, name.removeprefix("global_"), value)
    global_config.defaults = within
    try:
        yield global_config
    finally:
        global_config.defaults = before
