"""A storage for the library `limits`, and so for Flask-Limiter and slowapi, that is exact across workers.

```python
import shmlimit.limits_storage  # registers shm://

Limiter(get_remote_address, app=app, storage_uri="shm:///dev/shm/myapp.limits")
```

The URI names a directory, which is created if it does not exist: preferably under `/dev/shm`, and only for this
application. All processes that name the same directory count together. Options may follow as a query, or be given as
`storage_options`:

| option | default | meaning |
|---|---|---|
| `max_keys` | by room | how many keys each limit tells apart at once, at least |
| `when_full` | `evict_least_used` | what happens to a new key when there is no room: see below |
| `entries` | 32 | moving windows: how many requests of one key are told apart by time |

Each limit is a set with a file of its own, which stays when a release no longer has the limit: `limitctl list` with the
directory lists the files that are not in use, and the command that removes each. In a file, each client has a row for
each endpoint that it uses: 5,000 clients that use 20 pages each take 100,000 rows for each limit. The memory for all
rows of a limit is reserved when the limit is first used. Without `max_keys`, a file takes a quarter of what the earlier
ones have left of 56 MiB: 178,000 rows of a fixed window for the first limit, 133,000 for the second, 100,000 for the
third. So all of them together fit into the 64 MB that a container has.

Rows whose window has passed are reused. If a table is full of others, a new key evicts the client that has used the
least of its limit, among the 64 rows that the key may take; that client's count is forgotten. A client that is limited
is never evicted. If all 64 are limited, `TableFull` is raised. It is an error, because nothing was decided, and makes
Flask-Limiter use its `in_memory_fallback`. `when_full="refuse"` refuses new keys instead, and
`when_full="evict_oldest"` evicts the row that was used longest ago, limited or not. The logger `shmlimit` warns, once
for each storage and process, when 80 % of a table's rows are in use, and when the first row in use is evicted.

Importing this module registers the schemes `shm` and `async+shm`. Without it `limits` raises `ConfigurationError`:
`unknown storage scheme`.
"""

from __future__ import annotations

from shmlimit.limits_storage._asynchronous import AsyncShmStorage
from shmlimit.limits_storage._counters import TableFull
from shmlimit.limits_storage._synchronous import ShmStorage

__all__ = ["AsyncShmStorage", "ShmStorage", "TableFull"]
