"""Every block of code in the documents runs: Python and shell here, Rust with the library's documentation, and the
tutorials in `test_tutorials.py`. Blocks of TOML are declarations. A block that cannot run says why in the line
before it, `<!-- not run: the reason -->`, and is listed as skipped."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from shmlimit import _native

ROOT = Path(__file__).parents[3]
PACKAGES = ("src", "fleet", "reqwest-middleware", "tools/limitctl", "python")
PAGES_OF_REGISTRIES = [ROOT / package / "README.md" for package in PACKAGES]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *PAGES_OF_REGISTRIES])
FENCE = re.compile(r"^(?:<!-- not run: (?P<reason>.+) -->\n)?```(?P<info>.*)\n(?P<code>(?:.*\n)*?)```$", re.MULTILINE)
TIMEOUT = 300


class Block(NamedTuple):
    """A block of code, and where it is: the document, and its number within the document."""

    document: str
    number: int
    language: str
    code: str
    reason: str | None

    @property
    def name(self) -> str:
        """Its name in the list of tests."""
        return f"{self.document}-{self.number}-{self.language}"


def _blocks() -> Iterator[Block]:
    for document in DOCUMENTS:
        name = str(document.relative_to(ROOT))
        for number, found in enumerate(FENCE.finditer(document.read_text()), 1):
            language = re.split(r"[ ,]", found["info"])[0]
            yield Block(name, number, language, found["code"], found["reason"])


BLOCKS = list(_blocks())

# What the documents take for granted, run before the block of that number: names of an application, files.
PYTHON_BEFORE = {
    # Otherwise, the logger's warnings would be printed.
    ("docs/how-to/change-a-number.md", 3): """
        import logging
        logging.getLogger("shmlimit").addHandler(logging.NullHandler())
    """,
    ("docs/llm.md", 1): """
        import pathlib
        directory = pathlib.Path(".")
    """,
    ("docs/python.md", 2): """
        import pathlib, types
        directory = pathlib.Path(".")
        path = "openai.limits"
        call_the_model = lambda: types.SimpleNamespace(usage=900)
    """,
    ("docs/python/web.md", 2): """
        from fastapi import FastAPI
        app = FastAPI()
    """,
    ("docs/python/web.md", 8): """
        import pathlib
        BASE_DIR = pathlib.Path(".")
    """,
    ("docs/python/workers.md", 2): """
        from celery import Celery
        app = Celery()
    """,
    ("docs/python/workers.md", 3): """
        model = sl.open("keyed.limits", sl.LimitSet("model", [sl.Rate("tokens", 9000, "60s")], keyed=10))["model"]
    """,
    ("docs/python/workers.md", 4): """
        from concurrent.futures import ProcessPoolExecutor
        limits, fetch, addresses = jobs, str.upper, ["localhost"]
    """,
    ("docs/python/workers.md", 6): """
        import types
        answer = types.SimpleNamespace(usage=types.SimpleNamespace(total_tokens=900))
        client, prompt, estimate = types.SimpleNamespace(ask=lambda prompt: answer), "How many?", 1500
    """,
    ("docs/rollouts.md", 2): """
        import shmlimit as sl
        api = sl.LimitSet("api", [sl.Calls("requests", 100, "60s", algorithm="gcra")])
    """,
    ("docs/rollouts.md", 4): """
        from shmlimit.asgi import LimitMiddleware
        app, former = None, segment["api"]
        added = sl.open("added.limits", sl.LimitSet("bursts", [sl.Calls("calls", 5, "1s", algorithm="gcra")]))["bursts"]
    """,
    ("docs/rollouts.md", 9): """
        limits = segment["api"]
    """,
}
SHELL_BEFORE = {
    ("docs/rollouts.md", 7): """
        cp tools/limitctl/examples/gateway.toml next.toml
    """,
}


def _is_tutorial(document: str) -> bool:
    return document.startswith("docs/tutorials/")


def _of_language(*languages: str) -> list[str]:
    documents = (block.document for block in BLOCKS if block.language in languages and block.reason is None)
    return sorted(document for document in set(documents) if not _is_tutorial(document))


def _script(document: str, language: str, before: dict[tuple[str, int], str]) -> str:
    parts = []
    for block in BLOCKS:
        if (block.document, block.language, block.reason) == (document, language, None):
            parts += [textwrap.dedent(before.get((document, block.number), "")), block.code]
    return "\n".join(parts)


# The size that Docker gives a container's /dev/shm.
CONTAINER = 64 << 20


def _memory_taken(*directories: Path) -> int:
    """The bytes of all segments below these directories."""
    taken = 0
    for path in (path for directory in directories for path in directory.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            taken += path.stat().st_size if file.read(8) == b"SHMLIMIT" else 0
    return taken


@pytest.fixture
def run(tmp_path: Path, directory: Path) -> Iterator[object]:
    """Runs a script with the installed package and limitctl, in a directory of its own and with a directory of its own
    in shared memory; returns what it prints. What it leaves behind fits into a container."""
    shutil.copytree(ROOT / "tools" / "limitctl" / "examples", tmp_path / "tools" / "limitctl" / "examples")

    def in_directory(program: list[str], script: str) -> str:
        file = tmp_path / "script"
        file.write_text(script.replace("/dev/shm", str(directory)))
        finished = subprocess.run(
            [*program, str(file)],
            cwd=tmp_path,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        assert finished.returncode == 0, f"{finished.stdout}\nof\n{script}"
        return finished.stdout

    yield in_directory
    assert _memory_taken(directory, tmp_path) <= CONTAINER


@pytest.mark.parametrize("document", _of_language("python"))
def test_blocks_of_python_run_in_their_order(document, run):
    assert run([sys.executable, "-W", "error"], _script(document, "python", PYTHON_BEFORE)) == ""


@pytest.mark.skipif(shutil.which("limitctl") is None, reason="no limitctl")
@pytest.mark.parametrize("document", _of_language("sh"))
def test_commands_run_in_their_order(document, run):
    assert run(["bash", "-e", "-o", "pipefail"], _script(document, "sh", SHELL_BEFORE))


@pytest.mark.parametrize(
    "block",
    # The blocks of a tutorial belong together, and its own test creates segments from them.
    [
        block
        for block in BLOCKS
        if block.language == "toml" and block.reason is None and not _is_tutorial(block.document)
    ],
    ids=lambda block: block.name,
)
def test_a_block_of_toml_is_a_declaration_that_fits_into_a_container(block):
    assert _native.Declaration.from_toml(block.code).memory() <= CONTAINER


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.reason is not None], ids=lambda block: block.name)
def test_a_block_that_says_why_it_is_not_run(block):
    pytest.skip(block.reason)


@pytest.mark.skipif(shutil.which("limitctl") is None, reason="no limitctl")
def test_the_guide_of_limitctl_shows_what_create_prints(run):
    guide = (ROOT / "docs" / "limitctl.md").read_text()
    printed = run(["bash", "-e"], "limitctl create /dev/shm/gateway.limits tools/limitctl/examples/gateway.toml")
    assert re.sub(r"/dev/shm/shmlimit-test-[^/]+", "/dev/shm", printed) in guide


def test_each_block_is_of_a_language_that_something_runs():
    # A package may have a document through a symbolic link.
    included = {
        (path.parent / name).resolve()
        for crate in ("src", "fleet/src", "reqwest-middleware/src")
        for path in (ROOT / crate).rglob("*.rs")
        for name in re.findall(r'include_str!\("(.+\.md)"\)', path.read_text())
    }
    runs_elsewhere = {
        "python": lambda document: True,
        "sh": lambda document: True,
        # Output of commands, and pictures.
        "text": lambda document: True,
        "toml": lambda document: True,
        "rust": lambda document: (ROOT / document).resolve() in included or _is_tutorial(document),
    }
    unknown = [
        block.name
        for block in BLOCKS
        if block.reason is None and not runs_elsewhere.get(block.language, lambda document: False)(block.document)
    ]
    assert not unknown


def test_what_is_prepared_is_for_a_block_that_is_there():
    present = {(block.document, block.number, block.language) for block in BLOCKS if block.reason is None}
    assert {(*place, "python") for place in PYTHON_BEFORE} | {(*place, "sh") for place in SHELL_BEFORE} <= present


def test_every_fence_is_a_block():
    fences = {str(document.relative_to(ROOT)): document.read_text().count("\n```") for document in DOCUMENTS}
    for document, count in fences.items():
        assert count == 2 * sum(block.document == document for block in BLOCKS), document
