"""A storage for the library `limits`, and so for Flask-Limiter and slowapi: right across workers by its URI alone.

```python
Limiter(get_remote_address, app=app, storage_uri="shm:///dev/shm/myapp.limits")
```

The URI names a folder, which is made if it is not there: best one under `/dev/shm`, of the application's own. All
processes that name the same folder count together. It may go on with options, which can be given as `storage_options`
as well:

| option | default | what it says |
|---|---|---|
| `max_keys` | 10000 | how many keys each limit keeps apart at once |
| `when_full` | `refuse` | what becomes of a new key without room: that, or `evict_oldest` |
| `entries` | 32 | moving windows: requests of one key that are kept apart by time |

The memory for all keys of a limit is reserved when the limit is first used.

The schemes are `shm` and `async+shm`. The wheel brings a file that makes them known when `limits` is imported; where
that is not installed, importing this module does.
"""

from __future__ import annotations

from shmlimit.limits_storage._asynchronous import AsyncShmStorage
from shmlimit.limits_storage._synchronous import ShmStorage

__all__ = ["AsyncShmStorage", "ShmStorage"]
