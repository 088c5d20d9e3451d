"""The shape of the package, read from its sources."""

import ast
from collections.abc import Iterator
from pathlib import Path

import shmlimit

ROOT = Path(shmlimit.__file__).parent


def _module(path: Path) -> str:
    parts = ("shmlimit", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(path: Path) -> Iterator[str]:
    """What a file imports when it is run, inside functions too; imports that only types need are left out."""
    package = _module(path) if path.name == "__init__.py" else _module(path).rpartition(".")[0]
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        waiting.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield from (f"{base}.{each.name}" for each in node.names)


def _uses() -> dict[str, set[str]]:
    """Which modules of the package each module uses. The package itself names all of them, and none needs it."""
    files = {_module(path): path for path in ROOT.rglob("*.py")}
    assert len(files) > 30
    uses: dict[str, set[str]] = {}
    for module, path in files.items():
        uses[module] = set()
        for name in _imported(path):
            while name and name not in files:
                name = name.rpartition(".")[0]
            uses[module] |= {name} - {"", "shmlimit", module}
    return uses


def test_modules_use_one_another_in_no_circle() -> None:
    uses = _uses()

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        waiting = [start]
        while waiting:
            new = uses[waiting.pop()] - found
            found |= new
            waiting.extend(new)
        return found

    circles = {frozenset(each for each in reached(module) if module in reached(each)) for module in uses}
    assert circles == {frozenset()}, circles
