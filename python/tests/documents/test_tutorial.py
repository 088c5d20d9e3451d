"""The tutorial, run as it is written: its commands run in one shell, and what they print is compared."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import uuid
from pathlib import Path
from typing import NamedTuple

import pytest

TUTORIAL = Path(__file__).parents[3] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TIMEOUT = 300

pytestmark = pytest.mark.skipif(
    not TUTORIAL.exists() or any(shutil.which(command) is None for command in ("bash", "curl", "uvicorn", "limitctl")),
    reason="no tutorial, bash, curl, uvicorn or limitctl",
)


class Step(NamedTuple):
    """Commands, and what they print; the files that must exist before them."""

    files: dict[str, str]
    commands: str
    output: str | None


def _steps(text: str) -> list[Step]:
    steps: list[Step] = []
    files: dict[str, str] = {}
    for language, name, content in BLOCK.findall(text):
        match language, name:
            case ("toml" | "python", str(file)) if file:
                files[file] = content
            case ("sh", ""):
                steps.append(Step(files, content, None))
                files = {}
            case ("text", ""):
                steps[-1] = steps[-1]._replace(output=content)
            case ("sh", "install"):
                pass  # Installed is what is tested.
            case _:
                raise AssertionError(f"what is to be done with {language} {name}?\n{content}")
    return steps


def _matches(expected: str, printed: str) -> bool:
    """Whether it is as expected, where `...` stands for anything in a line, or for any lines."""
    lines = [
        r"(?:.*\n)*" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + r"\n"
        for line in expected.splitlines()
    ]
    return re.fullmatch("".join(lines), printed) is not None


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    segment = f"/dev/shm/tutorial-{uuid.uuid4()}.limits"
    text = TUTORIAL.read_text()
    for there, here in (
        ("/dev/shm/tutorial.limits", segment),
        ("/tmp/tutorial", str(tmp_path)),
        ("localhost:8000", "127.0.0.1:8000"),
        ("8000", str(_free_port())),
    ):
        text = text.replace(there, here)
    steps = _steps(text)
    assert sum(step.output is not None for step in steps) >= 6
    script = ["set -e -o pipefail"]
    for number, step in enumerate(steps):
        for name, content in step.files.items():
            (tmp_path / name).write_text(content)
        script += [step.commands, f"printf '\\n@ end of {number}\\n'"]
    shell = subprocess.Popen(
        ["bash", "-c", "\n".join(script)],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = shell.communicate(timeout=TIMEOUT)
    finally:
        # Whatever it started in the background is in its group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shutil.rmtree(f"{segment}.d", ignore_errors=True)
    assert shell.returncode == 0, printed
    parts = [part.rstrip("\n") + "\n" for part in re.split(r"\n@ end of \d+\n", printed)]
    for step, part in zip(steps, parts, strict=False):
        if step.output is not None:
            assert _matches(step.output, part), f"{step.commands}\nprinted\n{part}\nand not\n{step.output}"
