"""Two hosts share a quota for each tenant: what one has admitted, the other cannot admit again.

    redis-server --port 6379 &
    python python/examples/tenants_over_hosts.py redis://127.0.0.1:6379

The password, if the store wants one, comes from SHMLIMIT_FLEET_PASSWORD. Each "host" is a segment of its own, as it
would be in the shared memory of another machine.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import shmlimit as sl

# A hundred requests a day for each tenant, on all hosts together. Nothing is admitted before the store has answered, so
# that no tenant ever gets more; a request that needs the answer waits for it, for at most a second.
SHARED = {"key": "example/tenants/requests", "unleased": 0, "cold_wait": "1s"}
TENANTS = sl.LimitSet(
    "tenants", [sl.Calls("requests", 100, "24h", algorithm="fixed_window", fleet=SHARED)], keyed=1_000
)


def main() -> None:
    """Asks for twice the quota of each tenant, half of it on each host."""
    url = sys.argv[1] if len(sys.argv) > 1 else "redis://127.0.0.1:6379"
    with tempfile.TemporaryDirectory() as directory:
        hosts = [sl.open(Path(directory) / name, TENANTS, fleet=url, version=1) for name in ("first", "second")]
        for tenant in ("acme", "globex"):
            admitted = sum(bool(host["tenants"].check(key=tenant)) for host in hosts for _ in range(100))
            print(f"{tenant}: {admitted} of 200 requests were admitted by two hosts, of a quota of 100")
        for host in hosts:
            host.close()


if __name__ == "__main__":
    main()
