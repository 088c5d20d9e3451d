"""Teaches the library `limits` the schemes `shm` and `async+shm`, when and if it is imported.

It knows of a storage when the storage's class is made, and looks for none; applications that name theirs by a URI alone
never import ours. This is imported whenever Python starts, so it imports nothing itself and does nothing but wait for
`limits.storage`; and `shmlimit` is imported only when a storage is made.
"""

import sys

_AWAITED = "limits.storage"


def _storage(uri: str, **options: object) -> object:
    from shmlimit.limits_storage import ShmStorage

    return ShmStorage(uri, **options)  # type: ignore[arg-type]


def _async_storage(uri: str, **options: object) -> object:
    from shmlimit.limits_storage import AsyncShmStorage

    return AsyncShmStorage(uri, **options)  # type: ignore[arg-type]


def _register(module: object) -> None:
    schemes = getattr(module, "SCHEMES", None)
    if isinstance(schemes, dict):
        schemes.setdefault("shm", _storage)
        schemes.setdefault("async+shm", _async_storage)


class _Finder:
    """Has the one module found by those who find it anyway, and is called back when it has been loaded."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> object:
        if name != _AWAITED:
            return None
        finders: list[object] = sys.meta_path  # type: ignore[assignment]
        if cls in finders:
            finders.remove(cls)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target)  # type: ignore[arg-type]
            if spec is not None:
                cls._call_back(spec.loader)
                return spec
        return None

    @staticmethod
    def _call_back(loader: object) -> None:
        try:
            execute = loader.exec_module  # type: ignore[attr-defined]

            def execute_and_register(module: object) -> None:
                del loader.exec_module  # type: ignore[attr-defined]
                execute(module)
                _register(module)

            loader.exec_module = execute_and_register  # type: ignore[attr-defined]
        except AttributeError:
            # A loader of another kind: `import shmlimit.limits_storage` is what helps there.
            pass


if _AWAITED in sys.modules:
    _register(sys.modules[_AWAITED])
else:
    sys.meta_path.insert(0, _Finder)  # type: ignore[arg-type]
