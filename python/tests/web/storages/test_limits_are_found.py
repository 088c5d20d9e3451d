"""`import shmlimit.limits_storage` registers `shm://` with `limits`, and nothing else that is installed does."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

import shmlimit.limits_storage

from ..conftest import Serve


def _run(program: str, *arguments: str, directory: str | Path = "/") -> str:
    ran = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False, cwd=directory
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    return ran.stdout


def test_an_interpreter_starts_without_any_of_this_package() -> None:
    program = """
import json, sys
from_the_start = sorted(name for name in sys.modules if "shmlimit" in name)
finders = [repr(finder) for finder in sys.meta_path if "shmlimit" in repr(finder)]
import limits.storage
print(json.dumps([from_the_start, finders, sorted(name for name in sys.modules if "shmlimit" in name)]))
"""
    assert json.loads(_run(program)) == [[], [], []]


def test_what_is_installed_are_the_package_and_its_metadata_alone() -> None:
    files = importlib.metadata.files("shmlimit")
    assert files
    of_others = [
        str(file)
        for file in files
        if file.parts[0] != "shmlimit" and not file.parts[0].endswith(".dist-info") and file.name != "limitctl"
    ]
    assert of_others == []


def test_a_scheme_that_was_not_imported_is_unknown(directory: Path) -> None:
    program = """
import sys
from limits.errors import ConfigurationError
from limits.storage import storage_from_string
try:
    storage_from_string(sys.argv[1])
except ConfigurationError as error:
    print(error)
"""
    uri = f"shm://{directory}/limits"
    assert _run(program, uri) == f"unknown storage scheme : {uri}\n"


@pytest.mark.parametrize(
    "imports",
    [
        "import shmlimit.limits_storage; from limits.storage import storage_from_string",
        "from limits.storage import storage_from_string; import shmlimit.limits_storage",
    ],
    ids=["before limits", "after limits"],
)
@pytest.mark.parametrize(("scheme", "name"), [("shm", "ShmStorage"), ("async+shm", "AsyncShmStorage")])
def test_one_import_registers_both_schemes(directory: Path, imports: str, scheme: str, name: str) -> None:
    program = f"""
import sys
{imports}
storage = storage_from_string(sys.argv[1], wrap_exceptions=True)
print(type(storage).__name__, storage.wrap_exceptions)
"""
    assert _run(program, f"{scheme}://{directory}/limits") == f"{name} True\n"


def test_the_entry_points_name_the_storages() -> None:
    declared = importlib.metadata.distribution("shmlimit").entry_points.select(group="limits.storage")
    assert {point.name: point.load() for point in declared} == {
        "shm": shmlimit.limits_storage.ShmStorage,
        "async+shm": shmlimit.limits_storage.AsyncShmStorage,
    }


def test_the_settings_of_a_flask_application_may_be_all_that_knows_of_it(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "settings.py").write_text(
        f"import shmlimit.limits_storage\nRATELIMIT_STORAGE_URI = 'shm://{directory}/limits'\n"
    )
    program = """
from flask import Flask
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address
app = Flask("application", root_path=".")
app.config.from_pyfile("settings.py")
limiter = Limiter(get_remote_address, app=app)
print(type(limiter.storage).__name__)
"""
    assert _run(program, directory=tmp_path) == "ShmStorage\n"


def test_the_settings_of_django_may_be_all_that_knows_of_it(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "settings.py").write_text("import shmlimit.limits_storage\n")
    program = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
import django
django.setup()
from limits.storage import storage_from_string
print(type(storage_from_string(sys.argv[1])).__name__)
"""
    assert _run(program, f"shm://{directory}/limits", directory=tmp_path) == "ShmStorage\n"


def test_the_configuration_of_gunicorn_may_be_all_that_knows_of_it(serve: Serve, tmp_path: Path) -> None:
    configuration = tmp_path / "gunicorn.conf.py"
    configuration.write_text("import shmlimit.limits_storage\n")
    server = serve("gunicorn", "without_the_import:app", "--config", str(configuration))
    statuses = [reply.status for reply in server.get_many(20)]
    assert statuses.count(200) == 5
    assert statuses.count(429) == 15
