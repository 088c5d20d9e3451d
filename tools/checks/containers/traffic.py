"""Sends requests to loopback ports, a bounded number of them, and prints as JSON how each was answered.

traffic.py 600 8000 8001       so many in all, to each port by turns
traffic.py --until FILE 8001   to one port, until a file is there or a minute has passed
"""

import collections
import http.client
import itertools
import json
import os
import sys
import threading
import time

DEADLINE = time.monotonic() + 60
WORKERS = 8


def status(port):
    """The result of a request: a status, or the name of an error."""
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", "/")
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    finally:
        connection.close()
    return str(answer.status)


def numbers(arguments):
    """The numbers of the requests, and the ports."""
    if arguments[0] == "--until":
        return itertools.takewhile(lambda _: not os.path.exists(arguments[1]), itertools.count()), arguments[2:]
    return iter(range(int(arguments[0]))), arguments[1:]


def main():
    """Sends the requests from several threads, so that the workers of all servers are busy at once."""
    requests, ports = numbers(sys.argv[1:])
    ports = [int(port) for port in ports]
    counts = collections.Counter()
    lock = threading.Lock()

    def work():
        while time.monotonic() < DEADLINE:
            with lock:
                number = next(requests, None)
            if number is None:
                return
            answer = status(ports[number % len(ports)])
            with lock:
                counts[answer] += 1

    began = time.monotonic()
    threads = [threading.Thread(target=work) for _ in range(WORKERS if len(ports) > 1 else 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"seconds": time.monotonic() - began, **counts}))


main()
