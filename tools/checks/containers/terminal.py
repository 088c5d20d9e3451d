"""Runs a command on a terminal of 80 by 24 until it shows a text, then types q, and ends as the command does.

terminal.py TEXT COMMAND...
"""

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time

DEADLINE = time.monotonic() + 60


def main():
    """Reads what the terminal shows until the command has ended."""
    text, *command = sys.argv[1:]
    child, terminal = pty.fork()
    if child == 0:
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    os.kill(child, signal.SIGWINCH)
    shown = b""
    typed = False
    while time.monotonic() < DEADLINE:
        ready, _, _ = select.select([terminal], [], [], 1)
        try:
            shown += os.read(terminal, 4096) if ready else b""
        except OSError:  # It has ended.
            break
        if not typed and text.encode() in shown:
            os.write(terminal, b"q")
            typed = True
    else:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not typed or status != 0:
        sys.exit(f"{text!r} was not shown, or it ended with {status}: {shown!r}")


main()
