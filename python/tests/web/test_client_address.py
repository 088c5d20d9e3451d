"""Which address a request is limited by, behind proxies and without."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import pytest

import shmlimit as sl
from shmlimit import wsgi
from shmlimit.asgi import ClientAddress

from .conftest import Declare


class _Head:
    """What the key is derived from: the connection and its headers."""

    request = None

    def __init__(self, peer: str | None, **headers: list[str]) -> None:
        self.client_address = peer
        self._headers = headers

    def header_values(self, name: str) -> list[str]:
        return self._headers.get(name.lower().replace("-", "_"), [])


def _said(source: ClientAddress, *lines: str) -> Any:
    head = _Head("127.0.0.1", x_forwarded_for=[*lines], forwarded=[*lines])
    return source.find(head)


@pytest.mark.parametrize(
    ("proxies", "expected"), [(1, "4.4.4.4"), (2, "3.3.3.3"), (3, "2.2.2.2"), (4, "1.1.1.1"), (5, None)]
)
def test_only_what_trusted_proxies_appended_is_believed(proxies: int, expected: str | None) -> None:
    assert _said(ClientAddress.x_forwarded_for(proxies), "1.1.1.1, 2.2.2.2", " 3.3.3.3 ,4.4.4.4:80") == expected


@pytest.mark.parametrize("make", [ClientAddress.x_forwarded_for, ClientAddress.forwarded])
@pytest.mark.parametrize("proxies", [0, -1, True, 1.0, "1"])
def test_without_a_proxy_there_is_no_header_to_believe(make: Any, proxies: Any) -> None:
    with pytest.raises(ValueError, match="trusted_proxies"):
        make(proxies)


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "unknown",
        "_hidden",
        "300.1.1.1",
        "[::1",
        "::1]",
        "1.1.1.1:99999",
        "1.1.1.1:",
        "[::1]x",
        "fe80::1%eth0",
        "a b",
    ],
)
def test_what_is_no_address_is_none(entry: str) -> None:
    assert _said(ClientAddress.x_forwarded_for(1), entry) is None
    assert _said(ClientAddress.forwarded(1), f'for="{entry}"') is None
    assert _said(ClientAddress.x_forwarded_for(1, default="others"), entry) == "others"


def test_an_address_is_one_key_however_it_is_written() -> None:
    written = ["2001:DB8::1", "[2001:db8:0::1]", "[2001:db8::0:1]:4711"]
    assert {_said(ClientAddress.x_forwarded_for(1), each) for each in written} == {"2001:db8::1"}


def test_the_other_header_is_not_looked_at() -> None:
    head = _Head("127.0.0.1", x_forwarded_for=["1.1.1.1"], forwarded=["for=2.2.2.2"])
    assert ClientAddress.x_forwarded_for(1).find(head) == "1.1.1.1"
    assert ClientAddress.forwarded(1).find(head) == "2.2.2.2"
    assert ClientAddress.forwarded(1).find(_Head("127.0.0.1", x_forwarded_for=["1.1.1.1"])) is None
    assert ClientAddress().find(head) == "127.0.0.1"


def test_no_quotation_of_a_client_swallows_what_proxies_append() -> None:
    assert _said(ClientAddress.forwarded(1), 'for=1.1.1.1;x=", for=5.5.5.5') is None
    assert _said(ClientAddress.x_forwarded_for(2), '1.1.1.1, ", 5.5.5.5, 10.0.0.1') == "5.5.5.5"


@pytest.mark.parametrize(
    ("element", "expected"),
    [
        ('For="[2001:db8:cafe::17]:4711"', "2001:db8:cafe::17"),
        ("for=192.0.2.60;proto=http;by=203.0.113.43", "192.0.2.60"),
        ("for=192.0.2.43, for=198.51.100.17", "198.51.100.17"),
        ('for="192.0.2.43:47011"', "192.0.2.43"),
        ('by="a, for=1.1.1.1";for=2.2.2.2', "2.2.2.2"),
        ('by="\\", for=1.1.1.1";for=2.2.2.2', "2.2.2.2"),
        ("proto=http", None),
    ],
)
def test_the_examples_of_rfc_7239_are_read(element: str, expected: str | None) -> None:
    assert _said(ClientAddress.forwarded(1), element) == expected


def _app(declare: Declare, key: ClientAddress) -> wsgi.LimitMiddleware:
    def done(_environ: dict[str, Any], start: Any) -> list[bytes]:
        start("200 OK", [])
        return [b"done"]

    limits = declare(sl.Calls("requests", 1000, 60), keyed=10)
    return wsgi.LimitMiddleware(done, limits, key=key)


def _get(app: wsgi.LimitMiddleware, peer: str, **headers: str) -> int:
    with httpx.Client(transport=httpx.WSGITransport(app, remote_addr=peer), base_url="http://test") as client:
        return client.get("/", headers=headers).status_code


@pytest.mark.parametrize(
    ("peer", "headers", "requests", "warnings"),
    [
        ("127.0.0.1", {"X-Forwarded-For": "1.1.1.1"}, 3, 1),
        ("::1", {"Forwarded": "for=1.1.1.1"}, 3, 1),
        ("", {}, 3, 1),
        ("127.0.0.1", {}, 250, 1),
        ("127.0.0.1", {}, 3, 0),
        ("192.0.2.7", {"X-Forwarded-For": "1.1.1.1"}, 3, 0),
    ],
)
def test_it_is_said_once_where_the_address_is_a_proxys(
    peer: str,
    headers: dict[str, str],
    requests: int,
    warnings: int,
    declare: Declare,
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = _app(declare, ClientAddress())
    with caplog.at_level(logging.WARNING, "shmlimit"):
        for _ in range(requests):
            _get(app, peer, **headers)
    said = [record for record in caplog.records if "x_forwarded_for" in record.getMessage()]
    assert len(said) == warnings


def test_it_is_not_said_of_addresses_that_proxies_say(declare: Declare, caplog: pytest.LogCaptureFixture) -> None:
    app = _app(declare, ClientAddress.x_forwarded_for(1))
    with caplog.at_level(logging.WARNING, "shmlimit"):
        assert [_get(app, "127.0.0.1", **{"X-Forwarded-For": "127.0.0.1"}) for _ in range(150)] == [200] * 150
    assert caplog.records == []
