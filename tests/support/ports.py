"""Ports for the servers that tests start."""

from __future__ import annotations

import socket


def free_port() -> int:
    """One that nobody listens on just now."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return int(listener.getsockname()[1])
