"""Converts the numbers that callers write to the exact amounts that limits count."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context, Decimal
from numbers import Integral, Real

# Wide enough for the largest capacity with all of its decimals.
_WIDE = Context(prec=60)

# Fractions of a token are counted to a millionth, or more finely if the capacity itself is finer.
_DECIMALS = 6
_MAX_DECIMALS = 18

# Every 19-digit number that begins with a 1 fits into 64 bits.
_MAX_DIGITS = 19


def check_number(amount: object, limit: str) -> float | Decimal:
    """Checks that an amount is a number of at least 0, and returns it.

    Raises:
        TypeError: It is not a number.
        ValueError: It is negative or not finite.
    """
    if type(amount) is int and amount >= 0:
        return amount
    if not isinstance(amount, (Real, Decimal)):
        raise TypeError(f"an amount of limit {limit!r} must be a number, not {type(amount).__name__}")
    if isinstance(amount, Integral):
        number: float | Decimal = int(amount)
    else:
        number = amount if isinstance(amount, Decimal) else float(amount)
        if not math.isfinite(number):
            raise ValueError(f"an amount of limit {limit!r} must be finite, not {number}")
    if number < 0:
        raise ValueError(f"an amount of limit {limit!r} cannot be negative, got: {number}")
    return number


def exact_capacity(capacity: float) -> int | Decimal:
    """A finite capacity, exactly as its shortest decimal form reads."""
    value = Decimal(repr(capacity))
    whole = int(value)
    return whole if value == whole else value


def decimals_of(capacity: float, *, fractions: bool) -> int:
    """How many decimals a limit of this capacity counts.

    Args:
        capacity: The capacity; may be infinite.
        fractions: Whether requests may ask for parts of a token.
    """
    least = _DECIMALS if fractions else 0
    if not math.isfinite(capacity):
        return least
    exponent = Decimal(repr(capacity)).normalize(_WIDE).as_tuple().exponent
    own = max(0, -int(exponent))
    if own > _MAX_DECIMALS:
        raise ValueError(
            f"a capacity of {capacity} cannot be counted: limits count in steps of 10^-{_MAX_DECIMALS} at the finest. "
            "Write it with that many decimals at most, or count in a smaller unit of your own"
        )
    # A large capacity leaves requests fewer decimals, because everything is counted in 64 bits.
    room = _MAX_DIGITS - len(str(int(capacity)))
    return max(own, min(least, room), 0)


def exact_cost(amount: float | Decimal, decimals: int) -> int | Decimal:
    """Rounds an amount up to this many decimals, so that no request takes more than it is charged for.

    Before that, everything beyond three more decimals is rounded away: it is noise from binary fractions, such as at
    the end of 0.1 + 0.2.
    """
    if isinstance(amount, int):
        return amount
    value = amount if isinstance(amount, Decimal) else Decimal(repr(amount))
    value = value.quantize(Decimal(1).scaleb(-decimals - 3), context=_WIDE)
    value = value.quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_CEILING, context=_WIDE)
    whole = int(value)
    return whole if value == whole else value
