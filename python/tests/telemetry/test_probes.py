"""The extension module has the probes of the library, so that tracers can attach to programs that import it."""

from __future__ import annotations

from pathlib import Path

import pytest

from shmlimit import _native

MODULE = Path(_native.__file__)


@pytest.mark.parametrize(
    "name",
    ["lock_wait", "owner_dead", "recovered", "refused", "queued", "granted", "reclaimed", "lease_expired"],
)
def test_the_module_has_the_probe(name: str) -> None:
    """The note of a probe has the provider, the name and the arguments."""
    assert f"shmlimit\0{name}\0-8@".encode() in MODULE.read_bytes()
