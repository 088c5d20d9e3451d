"""The program `limitctl`, as a console script."""

from __future__ import annotations

import signal
import sys

from shmlimit import _native


def limitctl() -> int:
    """Runs `limitctl` with the arguments of this process.

    Returns:
        The exit code.
    """
    # Restores the default actions that Python replaces. An interrupt that the parent set to be ignored, as shells do
    # for background jobs, stays ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    return _native.limitctl(["limitctl", *sys.argv[1:]])
