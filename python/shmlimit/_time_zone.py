"""Time zones of calendar windows, as Python's database knows them."""

from __future__ import annotations

import importlib.resources
import json
import re
import zoneinfo
from collections.abc import Iterator
from importlib.abc import Traversable
from pathlib import Path

from shmlimit import _native


def declared(zone: object, place: str) -> object:
    """The zone as the TOML has it, with the changes of its offset. `place` says where it is, for messages."""
    name = zone.key if isinstance(zone, zoneinfo.ZoneInfo) else zone
    if not isinstance(name, str):
        raise TypeError(
            f'{place} is {zone!r}: give the name of a time zone such as "Europe/Berlin", or a ZoneInfo of one'
        )
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        # The native module says what is wrong with it.
        return name
    for directory in _databases():
        file = directory.joinpath(*name.split("/"))
        if file.is_file():
            written: object = json.loads(_native.time_zone(name, file.read_bytes(), _version(directory)))
            return written
    return name


def _databases() -> Iterator[Traversable]:
    """Where `zoneinfo` looks: the system's places, then the package `tzdata`."""
    yield from map(Path, zoneinfo.TZPATH)
    try:
        yield importlib.resources.files("tzdata").joinpath("zoneinfo")
    except ModuleNotFoundError:
        return


def _version(database: Traversable) -> str | None:
    """The version of a database, such as `"2025b"`: one of two files begins with it."""
    for name, form in (("tzdata.zi", r"# version (\S+)"), ("+VERSION", r"(\S+)")):
        try:
            with database.joinpath(name).open(encoding="utf-8") as file:
                found = re.fullmatch(form, file.readline(64).rstrip("\n"))
        except (OSError, UnicodeDecodeError):
            continue
        if found:
            return found[1]
    return None
