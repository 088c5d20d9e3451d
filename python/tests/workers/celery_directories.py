"""A broker for Celery that needs no server: Kombu's directories of files, with messages that appear whole."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from typing import Any

from kombu.transport import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
    TRANSPORT_ALIASES,
    filesystem,
)
from kombu.utils.json import dumps  # type: ignore[import-untyped, import-not-found, unused-ignore]


class Channel(filesystem.Channel):  # type: ignore[misc, unused-ignore]
    """Kombu's own writes a message to where workers look for it, who may find it empty, and end."""

    def _put(self, queue: str, payload: Any, **_options: Any) -> None:
        name = f"{round(time.monotonic() * 1000)}_{uuid.uuid4()}.{queue}.msg"
        part = Path(self.data_folder_out, f"{name}.part")
        part.write_text(dumps(payload))
        os.replace(part, part.with_suffix(""))


class Transport(filesystem.Transport):  # type: ignore[misc, unused-ignore]
    """The scheme `directories`."""

    Channel = Channel


TRANSPORT_ALIASES["directories"] = f"{__name__}:{Transport.__name__}"
