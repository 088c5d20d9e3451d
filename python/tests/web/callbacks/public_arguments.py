"""The public arguments through which the program's own code is called, found in the signatures and the stub."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import shmlimit

VALUES = re.compile(r"\b(Costs|Overrides|Key|Amount|Iterable|object|_Span|timedelta)\b")
"""Types of arguments of which a program may give a class of its own: mappings, iterables, numbers."""

SPECIAL = ("__init__", "__call__")


def callables() -> set[str]:
    """Every public argument that takes a callable, as `module.Class.method(argument)`."""
    return {name for name, annotation in _arguments() if _is_callable(annotation)}


def values(*classes: str) -> set[str]:
    """Every argument of these classes' methods that takes a value whose class may be the program's."""
    named = {f"shmlimit.{name}" for name in classes}
    return {
        name.removeprefix("shmlimit.")
        for name, annotation in _arguments()
        if name.rpartition(".")[0] in named and VALUES.search(annotation) and not _is_callable(annotation)
    }


def _is_callable(annotation: str) -> bool:
    return "Callable" in annotation or any(_stands_for_a_callable(name) for name in re.findall(r"\w+", annotation))


def _stands_for_a_callable(name: str) -> bool:
    """Whether a name is an alias of a type of callables, in whichever module."""
    modules = [module for loaded, module in list(sys.modules.items()) if loaded.split(".")[0] == "shmlimit"]
    aliases = [repr(vars(module)[name]) for module in modules if name in vars(module)]
    return any(
        alias.startswith(("collections.abc.Callable", "typing.Callable")) or " | collections.abc.Callable" in alias
        for alias in aliases
    )


def _arguments() -> Iterator[tuple[str, str]]:
    """Every argument of every public function and method, and its annotation."""
    for module in _public_modules():
        for name in getattr(module, "__all__", None) or [each for each in vars(module) if not each.startswith("_")]:
            public = getattr(module, name)
            # Leaves out names that come from other packages.
            if not getattr(public, "__module__", "").startswith("shmlimit"):
                continue
            if inspect.isclass(public):
                if not issubclass(public, BaseException):
                    yield from _of_class(f"{module.__name__}.{name}", public)
            elif inspect.isfunction(public):
                yield from _of_function(f"{module.__name__}.{name}", public)


def _public_modules() -> Iterator[Any]:
    yield shmlimit
    for found in pkgutil.walk_packages(shmlimit.__path__, "shmlimit."):
        if not any(part.startswith("_") for part in found.name.split(".")):
            yield importlib.import_module(found.name)


def _of_class(name: str, public: type) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for each in public.__mro__:
        if not each.__module__.startswith("shmlimit"):
            continue
        of_stub = _stub().get(each.__name__.lstrip("_"), {}) if each.__module__ == "shmlimit._native" else {}
        own = [member for member in {**vars(each), **of_stub} if not member.startswith("_") or member in SPECIAL]
        for member in own:
            if member in seen:
                continue
            seen.add(member)
            method = inspect.unwrap(getattr(public, member))
            if member in of_stub:
                found = of_stub[member].items()
            elif inspect.isfunction(method):
                found = _of_function("", method)
            else:
                continue
            for argument, annotation in found:
                yield f"{name}.{member}({argument.strip('.()')})", annotation


def _of_function(name: str, function: Any) -> Iterator[tuple[str, str]]:
    for argument in inspect.signature(function).parameters.values():
        yield f"{name}({argument.name})", str(argument.annotation)


@functools.cache
def _stub() -> dict[str, dict[str, dict[str, str]]]:
    """The arguments of the native classes' methods with their annotations."""
    stub = ast.parse(Path(shmlimit.__file__).with_name("_native.pyi").read_text())
    methods: dict[str, dict[str, dict[str, str]]] = {}
    for each in stub.body:
        if isinstance(each, ast.ClassDef):
            functions = [member for member in each.body if isinstance(member, ast.FunctionDef)]
            methods[each.name] = {function.name: _annotated(function) for function in functions}
    return methods


def _annotated(function: ast.FunctionDef) -> dict[str, str]:
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    return {each.arg: ast.unparse(each.annotation) for each in every if each.annotation is not None}
