"""The tutorials, run as they are written: the commands of each run in one shell, and what they print is compared."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[3]
TUTORIALS = sorted(path for path in (ROOT / "docs" / "tutorials").glob("*.md") if path.name != "README.md")
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TIMEOUT = 600

# What each needs besides bash and limitctl.
NEEDS = {
    "fleet": ["redis-server"],
    "llm-gateway": ["curl", "uvicorn"],
    "python-web-application": ["curl", "uvicorn"],
    "rust-service": ["curl", "cargo"],
    "shell-and-cron": [],
}


class Step(NamedTuple):
    """Commands, what they print, and the files that must exist before they run."""

    files: dict[str, str]
    commands: str
    output: str | None


def _steps(text: str) -> list[Step]:
    steps: list[Step] = []
    files: dict[str, str] = {}
    for language, name, content in BLOCK.findall(text):
        match language, name:
            case ("toml" | "python" | "rust" | "sh", str(file)) if file not in ("", "install"):
                files[file] = content
            case ("sh", ""):
                steps.append(Step(files, content, None))
                files = {}
            case ("text", ""):
                steps[-1] = steps[-1]._replace(output=content)
            case ("sh", "install") | ("text", "crontab"):
                pass  # What is tested is already installed.
            case _:
                raise AssertionError(f"what is to be done with {language} {name}?\n{content}")
    return steps


def _matches(expected: str, printed: str) -> bool:
    """Whether the output is as expected: `...` stands for anything in a line or, as a whole line, for any lines."""
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


def _moved(text: str, directory: Path, memory: Path) -> str:
    """The tutorial's text, moved to a directory and shared memory of its own, and to free ports."""
    text = re.sub(r"/tmp/[a-z-]+-tutorial\b", str(directory), text)
    text = text.replace("/dev/shm", str(memory)).replace("../shmlimit", str(ROOT)).replace("localhost", "127.0.0.1")
    for port in set(re.findall(r"(?<=127\.0\.0\.1:)\d+", text)):
        text = re.sub(rf"\b{port}\b", str(_free_port()), text)
    return text


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_does_what_it_says(tutorial: Path, tmp_path: Path, directory: Path) -> None:
    for command in ["bash", "limitctl", *NEEDS[tutorial.stem]]:
        if shutil.which(command) is None:
            pytest.skip(f"no {command}")
    steps = _steps(_moved(tutorial.read_text(), tmp_path, directory))
    assert sum(step.output is not None for step in steps) >= 5
    script = ["set -e -o pipefail"]
    for number, step in enumerate(steps):
        for name, content in step.files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(content)
        script += [step.commands, f"printf '\\n@ end of {number}\\n'"]
    # The tutorial for Rust builds with the versions of the workspace's lock file, and only once.
    shutil.copy(ROOT / "Cargo.lock", tmp_path)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "tutorial"
    shell = subprocess.Popen(
        ["bash", "-c", "\n".join(script)],
        cwd=tmp_path,
        env={
            **os.environ,
            "CARGO_TARGET_DIR": str(target),
            "CARGO_NET_OFFLINE": "true",
            "CARGO_PROFILE_DEV_DEBUG": "false",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = shell.communicate(timeout=TIMEOUT)
    finally:
        # What it started in the background is in its process group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    assert shell.returncode == 0, printed
    # The shell prints this whenever it notices that a job was killed; at a terminal, it does so before a prompt.
    printed = re.sub(r"bash: line \d+: +\d+ (?:Killed|Terminated) [^\n]*\n", "", printed)
    parts = [part.rstrip("\n") + "\n" for part in re.split(r"\n@ end of \d+\n", printed)]
    for step, part in zip(steps, parts, strict=False):
        if step.output is not None:
            assert _matches(step.output, part), f"{step.commands}\nprinted\n{part}\nand not\n{step.output}"
