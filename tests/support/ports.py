"""Ports for the servers that tests start."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port on which nothing listens at the moment."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return int(listener.getsockname()[1])
