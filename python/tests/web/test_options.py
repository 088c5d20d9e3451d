"""The options that the integrations share are shown, and anything else is refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import shmlimit as sl
from shmlimit.asgi import LimitMiddleware as AsgiMiddleware
from shmlimit.fastapi import Limited
from shmlimit.wsgi import LimitMiddleware as WsgiMiddleware

OPTIONS = {
    "key": None,
    "costs": None,
    "timeout": None,
    "exempt": None,
    "on_error": "refuse",
    "advertise": "always",
    "quota_units": None,
    "policy_prefix": "",
    "tier": None,
    "overrides": None,
}


@pytest.mark.parametrize(
    ("integration", "own"),
    [(AsgiMiddleware, ["app", "limits"]), (WsgiMiddleware, ["app", "limits"]), (Limited, ["limits"])],
)
def test_a_signature_has_every_option_and_its_default(integration: Callable[..., Any], own: list[str]) -> None:
    parameters = inspect.signature(integration).parameters
    assert [name for name, each in parameters.items() if each.kind is each.POSITIONAL_OR_KEYWORD] == own
    options = {name: each.default for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY}
    fails_with = options.pop("fails_with")
    assert [fails_with(status) for status in (200, 429, 499, 500, 503)] == [False, False, False, True, True]
    refund_when = options.pop("refund_when")
    assert not any(map(refund_when, (200, 429, 500, 503)))
    assert options == OPTIONS
    assert len(parameters) == len(own) + len(OPTIONS) + 2


@pytest.mark.parametrize("integration", [AsgiMiddleware, WsgiMiddleware])
def test_what_is_no_option_is_refused(integration: Callable[..., Any], directory: Path) -> None:
    limits = sl.open(directory / "segment", sl.LimitSet("api", [sl.Calls("requests", 1, 60)]))["api"]
    with pytest.raises(TypeError, match="kye"):
        integration(None, limits, kye=None)


@pytest.mark.parametrize("integration", [AsgiMiddleware, WsgiMiddleware, Limited])
def test_types_are_found_at_run_time_by_frameworks_that_look_at_them(integration: Callable[..., Any]) -> None:
    hints = get_type_hints(integration.__init__)  # type: ignore[misc]
    assert hints["limits"] is sl.SetHandle
    assert {*OPTIONS, "fails_with", "refund_when"} < {*hints}
