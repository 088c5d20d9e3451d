"""Calendar windows by the name of a time zone."""

import json
import random
import zoneinfo
from datetime import datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

import shmlimit as sl
from shmlimit import _time_zone

HERE = pytest.mark.skipif("America/Los_Angeles" not in zoneinfo.available_timezones(), reason="no time zones")
DAILY = {"algorithm": "fixed_window"}


def daily(zone, **options):
    return sl.Calls("calls", 1, "calendar:day", time_zone=zone, **DAILY, **options)


def known(written):
    """The initial offset, and the changes as pairs of an instant and the offset from then on."""
    first, *changes = written["offsets"].split(" ")
    return int(first), [tuple(map(int, change.split(":"))) for change in changes]


@HERE
def test_every_zone_has_the_offsets_that_zoneinfo_has_at_any_instant():
    numbers = random.Random(1)
    begin = datetime(2000, 1, 1, tzinfo=timezone.utc)
    for name in sorted(zoneinfo.available_timezones()):
        written = _time_zone.declared(name, "a zone")
        assert isinstance(written, dict), name
        first, changes = known(written)
        end = datetime(written["until"] + 1, 1, 1, tzinfo=timezone.utc)
        assert end.year >= begin.year + 40
        zone = ZoneInfo(name)

        def offset_at(instant, zone=zone):
            return int(datetime.fromtimestamp(instant, zone).utcoffset().total_seconds())

        instants = [at for at, _ in changes] + [at - 1 for at, _ in changes]
        span = int((end - begin).total_seconds())
        instants += [int(begin.timestamp()) + numbers.randrange(span) for _ in range(200)]
        for instant in instants:
            passed = [offset for at, offset in changes if at <= instant]
            assert (passed[-1] if passed else first) == offset_at(instant), (name, instant)


@HERE
@pytest.mark.parametrize("zone", ["America/Los_Angeles", ZoneInfo("America/Los_Angeles")], ids=["name", "ZoneInfo"])
def test_a_day_begins_at_midnight_there(segment_path, zone):
    clock = sl.VirtualClock(datetime(2026, 3, 7, 23, 30, tzinfo=ZoneInfo("America/Los_Angeles")).timestamp())
    limits = sl.open(segment_path, sl.LimitSet("api", [daily(zone)]), clock=clock)["api"]
    assert limits.check()
    assert limits.check().retry_after == 1800
    clock.advance(1800)
    assert limits.check()
    assert limits.check().retry_after == 23 * 3600
    (declared,) = sl.open(segment_path).declaration()["set"][0]["limit"]
    assert declared["time_zone"]["name"] == "America/Los_Angeles"
    # What a segment reports can be declared again.
    assert sl.open(segment_path, {"set": sl.open(segment_path).declaration()["set"]}).mismatches == []


@HERE
def test_the_bound_is_that_of_the_shortest_day():
    assert daily("Europe/Berlin").bound == "at most 2 in any 23h"
    assert "time_zone='Europe/Berlin'" in repr(daily("Europe/Berlin"))


def test_what_is_no_zone_is_an_error_that_says_what_to_do(segment_path):
    for wrong, kind, message in [
        ("Europe/Atlantis", sl.DeclarationError, 'time_zone: "Europe/Atlantis" is not in the database'),
        ("../etc/passwd", sl.DeclarationError, "is not the name of a time zone"),
        (timezone(timedelta(hours=1)), TypeError, "give the name of a time zone"),
        (1, TypeError, "time_zone is 1"),
    ]:
        with pytest.raises(kind, match=message):
            sl.open(segment_path, sl.LimitSet("api", [daily(wrong)]))
    with pytest.raises(sl.DeclarationError, match="remove one of them"):
        sl.open(segment_path, sl.LimitSet("api", [daily("UTC", utc_offset="+01:00")]))


@HERE
def test_the_package_tzdata_serves_where_the_system_has_none(monkeypatch, tmp_path, segment_path):
    source = next(path for path in map(Path, zoneinfo.TZPATH) if (path / "Europe/Berlin").is_file())
    package = tmp_path / "tzdata"
    (package / "zoneinfo" / "Europe").mkdir(parents=True)
    for directory in (package, package / "zoneinfo", package / "zoneinfo" / "Europe"):
        (directory / "__init__.py").touch()
    (package / "zoneinfo" / "Europe" / "Berlin").write_bytes((source / "Europe/Berlin").read_bytes())
    (package / "zoneinfo" / "tzdata.zi").write_text("# version 2031z\n# more\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TZDIR", str(tmp_path / "none"))
    zoneinfo.reset_tzpath(to=())
    ZoneInfo.clear_cache()
    try:
        sl.open(segment_path, sl.LimitSet("api", [sl.Budget("spent", 1, "calendar:month", time_zone="Europe/Berlin")]))
    finally:
        zoneinfo.reset_tzpath()
        ZoneInfo.clear_cache()
    (declared,) = sl.open(segment_path).declaration()["set"][0]["limit"]
    assert declared["time_zone"]["database"] == "2031z"
    assert json.dumps(declared)
