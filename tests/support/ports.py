"""Ports of the servers that tests start."""

from __future__ import annotations

import contextlib
import http.server
import itertools
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Below those that a system gives for port 0: a server of another test would get one before its own server starts. Two
# gRPC servers can have the same port. Processes begin in different places.
_FIRST_PORT, _PORTS = 20_000, 10_000
_numbers = itertools.count(os.getpid() * 97)


def free_port() -> int:
    """A port on which nothing listens at the moment; another one each time."""
    while True:
        port = _FIRST_PORT + next(_numbers) % _PORTS
        with contextlib.suppress(OSError), socket.socket() as listener:
            listener.bind(("", port))
            return port


def is_open(port: int, host: str = "localhost") -> bool:
    """Whether a server accepts connections on this port."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


def wait_until_open(port: int, process: subprocess.Popen[Any], log: Path) -> None:
    """Waits until the server accepts connections. Fails with its log if its process ends, or after four minutes."""
    deadline = time.monotonic() + 240
    while not is_open(port):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


@contextlib.contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler], **shared: Any) -> Iterator[int]:
    """Answer requests on this machine within the block; gives the port. `shared`: attributes of the handler's class."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (handler,), shared))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
