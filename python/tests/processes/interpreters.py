"""Imports the package in several interpreters, and prints how each import went: the process of test_interpreters."""

from __future__ import annotations

import _xxsubinterpreters as interpreters  # type: ignore[import-not-found, unused-ignore]
import sys

IMPORT = f"""
import sys
sys.path[:] = {sys.path!r}
try:
    import shmlimit
    # Again in the same interpreter, as reloading servers do.
    for name in [name for name in sys.modules if name.startswith("shmlimit")]:
        del sys.modules[name]
    import shmlimit
except ImportError as error:
    print(f"{{type(error).__name__}}: {{error}}", flush=True)
else:
    print("imported", flush=True)
"""

if sys.argv[1] == "main":
    exec(IMPORT)
for _ in range(2 if sys.argv[1] == "main" else 3):
    interpreters.run_string(interpreters.create(), IMPORT)
