"""Starts a small Ray on loopback, prints its address, and ends it when standard input ends."""

import sys

import ray

if __name__ == "__main__":
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=80 * 1024 * 1024,
        # Given 127.0.0.1, Ray would use an address that others can reach.
        _node_ip_address="127.0.0.2",
    )
    sys.stdout.write(f"{ray.get_runtime_context().gcs_address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    ray.shutdown()
