"""Declarations in Python: what a segment holds."""

from __future__ import annotations

import dataclasses
import json
import math
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from numbers import Integral, Rational, Real
from typing import Any, Literal, TypeAlias
from zoneinfo import ZoneInfo

from shmlimit import _native, _time_zone
from shmlimit._errors import DeclarationError

Amount: TypeAlias = int | float | Decimal | Fraction | str
"""How much, in natural units: a whole number, or a decimal if the limit declares a unit. Numbers of numpy are amounts,
too."""

Window: TypeAlias = int | float | timedelta | str
"""How long: seconds, a timedelta, or text such as `"60s"`, `"1m30s"`, `"calendar:day"`."""

Algorithm: TypeAlias = Literal[
    "gcra", "token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_window_counter"
]

WhenFull: TypeAlias = Literal["refuse", "evict_least_used", "evict_oldest"]
LockKind: TypeAlias = Literal["slot", "robust"]


class _Declared:
    """Gives declarations a `repr` with the name first and without fields left at their defaults."""

    def __repr__(self) -> str:
        shown = [each for each in dataclasses.fields(self) if getattr(self, each.name) != _default(each)]  # type: ignore[arg-type]
        shown.sort(key=lambda each: each.kw_only is True)
        values = {each.name: getattr(self, each.name) for each in shown} | self._follows()
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values.items())})"

    def _follows(self) -> dict[str, object]:
        """Derived values that the `repr` shows, too."""
        return {}


def _default(field: dataclasses.Field[Any]) -> object:
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


@dataclass(frozen=True, kw_only=True, repr=False)
class _Common(_Declared):
    scope: Literal["key", "all_keys"] | None = None
    near_limit: int | None = None
    shadow: bool | None = None
    prefix: Mapping[str, int] | None = None
    fleet: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class _Windowed(_Common):
    algorithm: Algorithm | None = None
    burst: Amount | None = None
    rate: Amount | None = None
    interval: Window | None = None
    align: Literal["utc", "first_use"] | None = None
    utc_offset: str | None = None
    time_zone: str | ZoneInfo | None = None
    week_start: str | None = None
    buckets: int | None = None
    entries: int | None = None
    refund: bool | None = None
    credit: Literal["auto"] | Mapping[str, int | bool] | None = None

    @property
    def bound(self) -> str | None:
        """The most that can be admitted in any stretch of time of the window's length, in words.

        For example `"at most 19 in any 2s"`. With capacity c and burst b, that is c + b - 1 for `"gcra"`,
        `"token_bucket"` and `"leaky_bucket"`; 2 c for `"fixed_window"`, or 2 c - 1 with `align="first_use"`; c for
        `"sliding_window"`; 2 c - 1 for `"sliding_window_counter"`. With `credit`, each process adds up to its batch
        less one: `"at most 19 in any 2s, and 9 units more for each process"`. A segment's clock measures such a stretch
        to within 10 µs. None if there is no capacity, or if the declaration is invalid.
        """
        try:
            return _native.bound(json.dumps(_fields(self)))
        except (TypeError, ValueError):
            return None

    def _follows(self) -> dict[str, object]:
        return {} if self.bound is None else {"bound": self.bound}


@dataclass(frozen=True, repr=False)
class Rate(_Windowed):
    """A limit on a cost per window. Every request must name its cost.

    How much can pass in a stretch of time of the window's length depends on the algorithm; `bound` and the `repr` show
    it. With `"gcra"`, the default, and its default burst, it is up to twice the capacity less one. For a provider that
    counts a sliding window, use `"sliding_window"`, which never lets more than the capacity pass.

        >>> sl.Rate("tokens", 10, "2s", algorithm="gcra").bound
        'at most 19 in any 2s'
        >>> sl.Rate("tokens", 10, "2s", algorithm="gcra", burst=1).bound
        'at most 10 in any 2s'

    Attributes:
        name: Its name in the set.
        capacity: How much there is for each window, or `"unlimited"`. With `rate` and `interval`, the size of the
            bucket, 60 by default.
        window: The window.
        rate: With `"leaky_bucket"`, instead of a window: how much drains in each `interval`. May be a fraction, such
            as 0.5; default 1.
        interval: How long that much takes to drain; default one second.
        algorithm: How it decides; default `"gcra"`.
        bound: The most that can pass in any stretch of time of the window's length, in words.
        burst: With `"gcra"`, `"token_bucket"` and `"leaky_bucket"`: how much can be taken at once; defaults to the
            capacity.
        align: With `"fixed_window"`: whether windows start at multiples of their length since the Unix epoch,
            `"utc"` (the default), or with the first request, `"first_use"`.
        utc_offset: The offset of a calendar window, such as `"+05:30"`; default UTC. It can change in a live segment.
        time_zone: Instead of an offset: the time zone by whose clock the days of a calendar window begin, such as
            `"America/Los_Angeles"` or a `ZoneInfo`. A day has 23 hours when summer time begins, and 25 when it ends.
            The zone is looked up where `zoneinfo` looks, including the package `tzdata`; the segment stores its changes
            for twenty years ahead, so that all processes agree.
        week_start: The first day of `"calendar:week"`; default Monday.
        buckets: With `"sliding_window_counter"`: how many parts the window is divided into, from 1 to 60; default 10.
        entries: With `"sliding_window"`: how many requests its log tells apart, from 1 to 65536. With more requests
            than that in a window, units come back late, by up to the window divided by this number, but never early.
            Default 1024; in a keyed set, the number of units in the capacity, but at most 64, with which units come
            back late by up to a 64th of the window. Each entry takes 32 bytes, for each key. It cannot change in a live
            segment.
        unit: The size of one unit, such as `"0.001"`, so that amounts may be decimals.
        refund: Whether units that were reserved and not used come back, by `settle`, by `cancel`, or because nobody
            collected them; default true. With `credit` or `fleet`, nothing comes back to windows.
        scope: In a keyed set, whose limit it is: with `"key"` (the default), each key has it for itself; with
            `"all_keys"`, all keys have it together. A request takes limits of both kinds in one step, or nothing. A
            limit of all keys cannot be changed for a key by a tier or an override, cannot be reserved, and cannot be in
            a set with `prefix`, `credit` or `fleet`.
        near_limit: The percentage of the capacity from which an admission counts as near the limit.
        shadow: Whether it decides and counts, but never refuses.
        prefix: In a keyed set: the networks that it counts, such as `{"ipv4": 24, "ipv6": 48}`.
        fleet: Hosts share the limit: `{"key": "org/openai/tokens", "lease": "auto", "outage": "spend_out", "cold_wait":
            "50ms"}`. The key names it in the store that `open` is given; the other values shown are the defaults.
            With `"auto"`, the limit determines how long units are leased for. `outage` may also be `"deny"`, `"safe"`
            or `"open"`. With `"safe"`, the host continues with a number of units of each window (or of places), as in
            `"safe": 50`, with a fraction of the capacity, as in `"safe": 0.25`, or by default with the capacity divided
            by the number of hosts that the store last knew of. In a keyed set, `"unleased": 1` admits that many units
            of a key, but never places, before the store has been asked.
        credit: Two-tier checks: each process draws batches, such as `{"batch": 10}`, and admits from its own batch
            without the lock; in a keyed set, for each key. Only for a set with a single limit. With
            `{"batch": 10, "window_coupled": True}` and `"fixed_window"`, no window admits more than the capacity. With
            `"auto"`, in a set without keys, a batch is a sixteenth of what remains, shared by the processes that draw.
    """

    name: str
    capacity: Amount | None = None
    window: Window | None = None
    unit: str | Decimal | None = field(default=None, kw_only=True)

    kind = "rate"


@dataclass(frozen=True, repr=False)
class Calls(_Windowed):
    """A limit on calls per window: each request takes one unless it names more. The attributes are those of `Rate`.

    As with `Rate`, `bound` and the `repr` show how much can pass in a stretch of time of the window's length: 10 in 2
    seconds means up to 19 in any 2 seconds with `"gcra"`, the default, and 10 with `"sliding_window"`.

        >>> sl.Calls("requests", 10, "2s", algorithm="gcra").bound
        'at most 19 in any 2s'
        >>> sl.Calls("requests", 10, "2s", algorithm="sliding_window").bound
        'at most 10 in any 2s'
    """

    name: str
    capacity: Amount | None = None
    window: Window | None = None

    kind = "calls"


@dataclass(frozen=True, repr=False)
class Budget(_Common):
    """A limit on a cost per window that is known only afterwards: requests are admitted while any of it remains.

    A request admitted before its cost is known counts in full, however much it costs, so nothing bounds the spending:
    the capacity only stops the next request.

    Attributes:
        name: Its name in the set.
        capacity: How much there is for each window.
        window: The window.
        unit: The size of one unit, such as `"0.01"`, so that amounts may be decimals.
        align: Where windows start: `"utc"` (the default) or `"first_use"`.
        utc_offset: The offset of a calendar window, such as `"+05:30"`.
        time_zone: Its time zone, as for `Rate`.
        week_start: The first day of `"calendar:week"`.
        scope: Whether each key has it for itself or all keys have it together, as for `Rate`.
        fleet: Hosts share it, as for `Rate`.
    """

    name: str
    capacity: Amount
    window: Window | None = None
    unit: str | Decimal | None = field(default=None, kw_only=True)
    align: Literal["utc", "first_use"] | None = field(default=None, kw_only=True)
    utc_offset: str | None = field(default=None, kw_only=True)
    time_zone: str | ZoneInfo | None = field(default=None, kw_only=True)
    week_start: str | None = field(default=None, kw_only=True)

    kind = "budget"


@dataclass(frozen=True, repr=False)
class Concurrency(_Common):
    """A limit on how much may be held at once.

    Attributes:
        name: Its name in the set.
        capacity: How many; if adaptive, how many at first.
        lease: How long a hold lasts without being renewed; forever by default.
        adaptive: How the capacity adapts: `"aimd"`, `"gradient"` or `"vegas"`; by default it is fixed.
        floor: The least that an adaptive capacity falls to.
        ceiling: The most that it rises to.
        latency_limit: With `"aimd"`: a permit held for longer counts as failed.
        scope: Whether each key has it for itself or all keys have it together, as for `Rate`.
        fleet: Hosts share it, as for `Rate`.
    """

    name: str
    capacity: Amount
    lease: Window | None = field(default=None, kw_only=True)
    adaptive: Literal["aimd", "gradient", "vegas"] | None = field(default=None, kw_only=True)
    floor: int | None = field(default=None, kw_only=True)
    ceiling: int | None = field(default=None, kw_only=True)
    latency_limit: Window | None = field(default=None, kw_only=True)

    kind = "concurrency"


Limit: TypeAlias = Rate | Calls | Budget | Concurrency


@dataclass(frozen=True, repr=False)
class Keyed(_Declared):
    """A table of keys, each with its own limits. Its memory is reserved when the segment is created.

    The first bytes of each key are stored in the clear, and anyone who may read the file can read them: use
    `store_keys=False` if keys are secrets, such as API keys and bearer tokens.

    Attributes:
        max_keys: How many keys there is room for, at least: rows come in buckets of 32, so 1 key makes 32 rows, and 100
            keys make 128.
        when_full: What happens to a new key when there is no room: `"refuse"`; `"evict_least_used"`, which evicts a key
            that has used little of its limits, and never one that is limited, held or waited for; or `"evict_oldest"`,
            which evicts the key used longest ago, limited or not.
        store_keys: Whether the first bytes of each key are kept for people to read. Use False if keys are secrets.
        overrides: Whether single keys can have their own capacities, set by `SetHandle.override`. Each key's row then
            grows by 8 bytes, and by 8 for each limit, rounded up to a multiple of 64. Not for sets with tiers.
    """

    max_keys: int
    when_full: WhenFull = field(default="refuse", kw_only=True)
    store_keys: bool = field(default=True, kw_only=True)
    overrides: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, repr=False)
class Tier(_Declared):
    """Other quotas for some keys of a keyed set: what a plan such as "gold" changes in its limits.

    Attributes:
        name: Its name in the set. Not `default`, which is the tier of the limits as declared.
        limits: What changes for keys of the tier, by limit name: `capacity`, `window` and `burst`, as in
            `{"requests": {"capacity": 1000, "burst": 200}}`; also `rate` and `interval`.
        weight: How much of the limits of all keys each key of the tier gets while several keys wait, in proportion to
            the weights of the others: 1 to 1000, default 1. Only in a set with limits of `scope="all_keys"`.
    """

    name: str
    limits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    weight: int | None = field(default=None, kw_only=True)


@dataclass(frozen=True, repr=False)
class LimitSet(_Declared):
    """The declaration of a set: limits that are taken together.

    Attributes:
        name: Its name in the segment.
        limits: The limits.
        keyed: Gives each key its own limits: a `Keyed`, or how many keys there is room for.
        metadata: Strings that each permit carries: region, endpoint, account.
        waiters: How many requests may wait in the queue; default 5,120. In a keyed set, how many in each shard of its
            table; default 512, or 5,120 with limits of all keys, which have a single shard.
        holds: How many permits that must give something back may be out at once.
        labels: Whether each hold keeps the label of its request (`SetHandle.labelled`), for every process to see in
            snapshots and in `limitctl inspect`. Each hold then takes 72 more bytes.
        collect_within: How long a grant is kept for a waiter that does not collect it while others wait: from 0.1 s to
            an hour, default 1 s. A process that is stopped, or whose event loop is blocked, does not collect.
        shadow: Whether its limits decide and count, but never refuse.
        tiers: Other quotas for some keys of a keyed set; at most 255.
    """

    name: str
    limits: Sequence[Limit]
    keyed: Keyed | int | None = field(default=None, kw_only=True)
    metadata: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    waiters: int | None = field(default=None, kw_only=True)
    holds: int | None = field(default=None, kw_only=True)
    labels: bool | None = field(default=None, kw_only=True)
    collect_within: Window | None = field(default=None, kw_only=True)
    shadow: bool | None = field(default=None, kw_only=True)
    tiers: Sequence[Tier] = field(default=(), kw_only=True)

    @property
    def memory(self) -> int:
        """How many bytes of memory a segment with only this set takes. It takes them all when it is created.

        A container's `/dev/shm` has 64 MB unless it is given more.

            >>> requests = sl.Calls("requests", 500, "60s", algorithm="sliding_window")
            >>> sl.LimitSet("tenants", [requests], keyed=10_000).memory
            31095744

        Raises:
            DeclarationError: The declaration is invalid.
        """
        return declaration(self).memory()

    def to_toml(self) -> str:
        """Writes the declaration of a segment with only this set, for `limitctl create`.

        Returns:
            The text, with every default written out.

        Raises:
            DeclarationError: The declaration is invalid.
        """
        return declaration(self).to_toml()


Fleet: TypeAlias = str | Mapping[str, str]
"""The store that hosts share: its URL, or `{"url": "redis://10.0.0.5", "host": "web-1"}`, without user and password."""

Config: TypeAlias = "str | os.PathLike[str] | LimitSet | Iterable[LimitSet] | Mapping[str, Any]"
"""A declaration: the path of a TOML file, sets, or a mapping with the fields of the TOML."""


def declaration(
    config: Config,
    *,
    mode: int | str | None = None,
    participants: int | None = None,
    lock: LockKind | None = None,
    version: int | None = None,
    fleet: Fleet | None = None,
) -> _native.Declaration:
    """Reads a declaration in any of its forms.

    Args:
        config: The declaration.
        mode: The file's permissions, as a number or octal text. Only if `config` consists of sets.
        participants: How many processes may be attached at once. Only if `config` consists of sets.
        lock: The kind of lock. Only if `config` consists of sets.
        version: The declaration's version, overriding the one in it.
        fleet: The store that hosts share. Only if `config` consists of sets.

    Returns:
        The declaration, validated.

    Raises:
        DeclarationError: The declaration is invalid, or cannot be read.
    """
    permissions = None if mode is None else _permissions(mode)
    declared = _read(config, {"mode": permissions, "participants": participants, "lock": lock}, fleet)
    if version is None:
        return declared
    number = operator.index(version)
    if not 1 <= number < 2**63:
        raise DeclarationError(f"version is {number}, but must be from 1 to {2**63 - 1}")
    return declared.with_version(number)


def _read(config: Config, segment: dict[str, str | int | None], fleet: Fleet | None) -> _native.Declaration:
    is_whole = isinstance(config, (str, os.PathLike, Mapping))
    if is_whole and any(each is not None for each in segment.values()):
        raise DeclarationError("a whole declaration says mode, participants and lock itself: in [segment]")
    if is_whole and fleet is not None:
        raise DeclarationError("a whole declaration says itself which store hosts share: in [fleet]")
    if isinstance(config, (str, os.PathLike)):
        return _native.Declaration.from_file(config)
    document: object
    if isinstance(config, Mapping):
        document = _plain(config)
    else:
        sets = [config] if isinstance(config, LimitSet) else list(config)
        for each in sets:
            if not isinstance(each, LimitSet):
                raise TypeError(f"{each!r} is not a declaration of a set: give a LimitSet")
        shared = {"url": fleet} if isinstance(fleet, str) else fleet
        document = _plain({"segment": segment, "fleet": shared, "set": sets})
    try:
        return _native.Declaration.from_json(json.dumps(document, ensure_ascii=False))
    except UnicodeEncodeError as error:
        raise DeclarationError(f"{error.object[error.start : error.end]!r} in a declaration is not Unicode") from error


def _permissions(mode: object) -> str:
    """The mode of a file as the TOML has it."""
    if isinstance(mode, str):
        return mode
    if isinstance(mode, Integral) and not isinstance(mode, bool):
        return f"{int(mode):04o}"
    raise TypeError(f'mode is {mode!r}: give permissions such as 0o660, or "0660"')


def _fields(declared: _Declared, place: str = "") -> object:
    """The declaration as fields of the TOML. `place` says where it is, for messages."""
    fields = {each.name: getattr(declared, each.name) for each in dataclasses.fields(declared)}  # type: ignore[arg-type]
    if isinstance(declared, LimitSet):
        fields["limit"] = _members(
            fields.pop("limits"), _LIMITS, f"{place} / limits", "Rate, Calls, Budget and Concurrency"
        )
        fields["tier"] = _members(fields.pop("tiers"), (Tier,), f"{place} / tiers", "Tier") or None
        fields["keyed"] = _table(fields["keyed"], f"{place} / keyed")
    elif isinstance(declared, _LIMITS):
        fields["kind"] = declared.kind
    return _plain(fields, place=place)


def _members(given: object, kinds: tuple[type, ...], place: str, names: str) -> list[object]:
    """The checked members of a set's limits or tiers."""
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes, Mapping)):
        advice = "it in a list, in brackets" if isinstance(given, kinds) else f"a list of {names}"
        raise TypeError(f"{place} is {given!r}: give {advice}")
    members = list(given)
    for each in members:
        if not isinstance(each, kinds):
            raise TypeError(f"{place} has {each!r}: give {names}")
    return members


def _table(keyed: object, place: str) -> object:
    """The key table of a set; None if the set is not keyed."""
    if keyed is None or isinstance(keyed, Keyed):
        return keyed
    if isinstance(keyed, Integral) and not isinstance(keyed, bool):
        return Keyed(int(keyed))
    raise TypeError(f"{place} is {keyed!r}: give a Keyed, or how many keys there is room for")


_LIMITS = (Rate, Calls, Budget, Concurrency)
_SPANS = frozenset({"window", "interval", "lease", "latency_limit", "collect_within"})
_AMOUNTS = frozenset({"capacity", "burst", "rate", "floor", "ceiling", "safe"})
_MAX = 2**64 - 1


def _plain(value: object, name: str | None = None, place: str = "") -> object:
    """The value in JSON types, without fields that are None. `place` says where it is, for messages."""
    if isinstance(value, _Declared):
        return _fields(value, place)
    if name == "metadata" and isinstance(value, Mapping):
        # Its keys are the user's own, and may be called anything.
        return {key: _text(each, f"{place} / {key}") for key, each in value.items()}
    if isinstance(value, Mapping):
        joined = f"{place} / " if place else ""
        fields = {key: each for key, each in value.items() if each is not None}
        return {key: _plain(each, key, f"{joined}{key}") for key, each in fields.items()}
    if isinstance(value, bool):
        if name in _SPANS:
            raise TypeError(f"{place} is {value!r}: give seconds, a timedelta or text")
        return value
    if isinstance(value, Integral):
        value = int(value)
        if name in _AMOUNTS:
            # One that is too large for the parser's integers is passed as text, so that the error message can quote it.
            return value if value <= _MAX else str(value)
        if name not in _SPANS and not 0 <= value <= _MAX:
            advice = "a number that is not negative" if value < 0 else "less"
            raise DeclarationError(f"{place} is {value}: give {advice}")
    if isinstance(value, timedelta) or (name in _SPANS and isinstance(value, (int, float))):
        return _span(value, place)
    if isinstance(value, Decimal):
        return format(value, "f")
    if name == "safe" and isinstance(value, float):
        # A fraction of the capacity. As text, it would be an amount.
        return float(value)
    if isinstance(value, float):
        # Subclasses may have a `repr` of their own.
        return format(Decimal(float.__repr__(value)), "f")
    if isinstance(value, (list, tuple)):
        return [_plain(each, name, f"{place}{_named(each)}") for each in value]
    if name == "time_zone" and value is not None:
        return _time_zone.declared(value, place)
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Rational):
        digits = Decimal(int(value.numerator)) / Decimal(int(value.denominator))
        if Fraction(digits) != value:
            raise DeclarationError(f"{place} is {value}, which is not a decimal: round it")
        return format(digits, "f")
    if isinstance(value, Real):
        # Other packages' floats, whose text is the shortest that reads back as the same number.
        return format(Decimal(str(value)), "f")
    if name == "name":
        return _text(value, place)
    raise TypeError(f"{place or 'a value'} is {value!r}: give a str, a number, or what it is documented to be")


def _text(value: object, place: str) -> str:
    if isinstance(value, str):
        return value
    raise TypeError(f"{place} is {value!r}: give a str")


def _named(member: object) -> str:
    """The name of a list member, formatted to follow its place in messages."""
    name = member.get("name") if isinstance(member, Mapping) else getattr(member, "name", None)
    if name is None:
        return ""
    return f' "{name}"' if isinstance(name, str) else f" {name!r}"


def _span(value: timedelta | float, place: str) -> str:
    """A span of time as the TOML has it, to the nanosecond."""
    if isinstance(value, timedelta):
        microseconds = (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
        return f"{microseconds}us"
    if isinstance(value, int):
        return f"{value}s"
    if not math.isfinite(value):
        raise DeclarationError(f"{place} is {value!r}: give a finite number of seconds")
    nanoseconds = Decimal(float.__repr__(value)) * 1_000_000_000
    return f"{int(nanoseconds.to_integral_value())}ns"
