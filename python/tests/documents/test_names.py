"""The public names of the package: few, each of them documented, and a page that says where to find what."""

from __future__ import annotations

import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shmlimit as sl
from shmlimit import results

ROOT = Path(__file__).parents[3]
DOCUMENTS = [*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "python" / "README.md"]
OF_RESULTS = [name for name in results.__all__ if name not in sl.__all__]


def test_there_are_at_most_45_names_at_the_top() -> None:
    # In a process that has imported nothing else, since every imported module becomes an attribute.
    code = "import shmlimit; print(*(name for name in dir(shmlimit) if not name.startswith('_')))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert set(shown) == set(sl.__all__) - {"__version__"}
    assert len(sl.__all__) <= 45


@pytest.mark.parametrize("name", [*(each for each in sl.__all__ if each != "__version__"), *OF_RESULTS])
def test_every_name_says_what_it_is(name: str) -> None:
    public = getattr(sl, name, None) or getattr(results, name)
    # Its own docstring, not one that it inherits.
    own = vars(public).get("__doc__") if inspect.isclass(public) else public.__doc__
    assert own
    assert own.strip()


@pytest.mark.parametrize("name", sl.__all__)
def test_every_name_is_in_a_document(name: str) -> None:
    named = re.compile(rf"\b(sl|shmlimit)\.{name}\b|`{name}\b")
    assert any(named.search(document.read_text()) for document in DOCUMENTS), name


def test_no_class_of_exceptions_is_kept_from_programs() -> None:
    from shmlimit import _errors

    classes = {
        name for name, each in vars(_errors).items() if inspect.isclass(each) and each.__module__ == _errors.__name__
    }
    assert classes <= set(sl.__all__)


def test_the_page_fits_a_screen_and_says_where_each_module_is() -> None:
    page = sl.__doc__ or ""
    assert len(page.splitlines()) <= 45
    assert max(map(len, page.splitlines())) <= 120
    modules = [found.name for found in pkgutil.iter_modules(sl.__path__) if not found.name.startswith("_")]
    assert modules
    for module in modules:
        assert re.search(rf"\b{module}\b", page), module
    described = page.partition("\nDeclare")[2].partition("\nFrameworks")[0]
    described = re.sub(r"^\w+ ", "", described, flags=re.MULTILINE)
    names = set(re.findall(r"\b[A-Z]\w+", described))
    assert len(names) > 15
    assert names <= set(sl.__all__)
