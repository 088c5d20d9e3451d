"""A broker and results for Celery that need no server: directories in which each file appears whole."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from typing import Any

from celery.backends.filesystem import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
    FilesystemBackend,
)
from kombu.transport import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
    TRANSPORT_ALIASES,
    filesystem,
)
from kombu.utils.json import dumps  # type: ignore[import-untyped, import-not-found, unused-ignore]


class Channel(filesystem.Channel):  # type: ignore[misc, unused-ignore]
    """Kombu's own channel writes messages where workers look for them; a worker that finds one still empty ends."""

    def _put(self, queue: str, payload: Any, **_options: Any) -> None:
        name = f"{round(time.monotonic() * 1000)}_{uuid.uuid4()}.{queue}.msg"
        part = Path(self.data_folder_out, f"{name}.part")
        part.write_text(dumps(payload))
        os.replace(part, part.with_suffix(""))


class Transport(filesystem.Transport):  # type: ignore[misc, unused-ignore]
    """The transport of the scheme `directories`."""

    Channel = Channel


class Results(FilesystemBackend):  # type: ignore[misc, unused-ignore]
    """Celery's own backend empties the file of a result before it writes the next state: a reader may find it empty."""

    def set(self, key: Any, value: Any) -> None:
        file = os.fsdecode(self._filename(key))
        part = Path(f"{file}.{uuid.uuid4()}.part")
        part.write_bytes(value.encode() if isinstance(value, str) else value)
        os.replace(part, file)


TRANSPORT_ALIASES["directories"] = f"{__name__}:{Transport.__name__}"
