"""Runs the tests that the library `limits` has for its storages and strategies against the storage of this package.

    python python/tests/web/storages/limits_suite.py [ARGUMENTS OF PYTEST...]

They are not in the wheel of `limits`, so its source distribution is fetched from the package index that pip uses.
Where they use the storage in memory, they get `shm://` instead, with a directory for each test; tests for databases are
left out. Needs what `requirements/web.txt` and `requirements/check.txt` name, pytest-asyncio, pytest-lazy-fixtures, and
the database clients that the tests import: redis, valkey, pymemcache and pymongo. One test counts during a few seconds
of a minute: it fails if the minute ends meanwhile, with the storage in memory, too.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import limits.storage
import pytest

# What URIs name in the rewritten tests; the directory of each test takes its place.
ANY_DIRECTORY = "shm://of-the-test"
MODULES = ["tests/test_storage.py", "tests/test_strategy.py", "tests/aio/test_storage.py", "tests/aio/test_strategy.py"]


class DirectoryForEachTest:
    """A plugin of pytest that gives each test a storage that no other test has used, like one in memory."""

    def __init__(self) -> None:
        self.directory: Path | None = None
        storage_from_string = limits.storage.storage_from_string

        def storage_of_test(uri: str, **options: object) -> object:
            return storage_from_string(uri.replace(ANY_DIRECTORY, f"shm://{self.directory}"), **options)

        limits.storage.storage_from_string = storage_of_test

    @pytest.fixture(autouse=True)
    def directory_of_test(self) -> Iterator[None]:
        with tempfile.TemporaryDirectory(prefix="shmlimit-limits-", dir="/dev/shm") as directory:
            self.directory = Path(directory, "limits")
            yield


def fetch(directory: Path) -> Path:
    release = version("limits")
    download = [
        "download",
        "--quiet",
        "--no-deps",
        "--no-binary",
        "limits",
        "--dest",
        str(directory),
        f"limits=={release}",
    ]
    subprocess.run([sys.executable, "-m", "pip", *download], check=True)
    with tarfile.open(directory / f"limits-{release}.tar.gz") as archive:
        archive.extractall(directory, filter="data")
    return directory / f"limits-{release}"


def rewrite(sources: Path) -> None:
    """Replaces the storage in memory with ours, and takes out what starts databases."""
    (sources / "tests" / "conftest.py").unlink()
    for path in [sources / "tests" / "utils.py", *(sources / module for module in MODULES)]:
        text = path.read_text().replace("memory://", ANY_DIRECTORY)
        for scheme, name in [("", "ShmStorage"), (r"async\+", "AsyncShmStorage")]:
            parameters = rf'("{scheme}{re.escape(ANY_DIRECTORY)}",\s*\{{\}},\s*)MemoryStorage'
            text = re.sub(parameters, rf'\1__import__("shmlimit.limits_storage").limits_storage.{name}', text)
        path.write_text(text)


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        sources = fetch(Path(directory))
        rewrite(sources)
        # Chosen by their names, because only tests with databases have marks.
        ours = "in-memory or not (redis or valkey or memcached or mongodb)"
        chosen = [str(sources / module) for module in MODULES]
        settings = [
            "-c",
            "/dev/null",
            f"--rootdir={sources}",
            "-p",
            "no:cacheprovider",
            "-o",
            "asyncio_mode=auto",
            "-W",
            "ignore",
        ]
        sys.path.insert(0, str(sources))
        return pytest.main([*settings, "-q", "-k", ours, *sys.argv[1:], *chosen], plugins=[DirectoryForEachTest()])


if __name__ == "__main__":
    sys.exit(main())
