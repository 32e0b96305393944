"""Answers of stand-ins for stores that fail by a plan, as those of real services do now and then."""

from __future__ import annotations

import http.server
import random
import socket
import struct
import threading
from collections import Counter
from typing import Any

# What befalls an answer: `cut` (the body breaks off), `lost` (the request is done, and nobody hears of it), `reset`
# (nothing is done, and the connection is reset), or nothing is done and the answer is this status.
FAULTS = ("cut", "lost", "reset", 429, 500, 503)


class Faults:
    """Which answers fail: those for which `planned` has a fault, in this order; then a share of all.

    `planned_at`: the same for the paths that end so. `happened`: how often each fault befell each method. `chunked`:
    whether answers come in chunks, without a length.
    """

    def __init__(self) -> None:
        self.chunked = False
        self.planned: list[str | int | None] = []
        self.planned_at: dict[str, list[str | int | None]] = {}
        self.happened: Counter[tuple[str | int, str]] = Counter()
        self._share, self._random = 0.0, random.Random()
        self._lock = threading.Lock()

    def befall(self, share: float, *, seed: int) -> None:
        """From now on this share of the answers fails."""
        self._share, self._random = share, random.Random(seed)

    def next(self, method: str, path: str) -> str | int | None:
        """What befalls the answer to this request; mostly nothing."""
        with self._lock:
            planned = next((plan for end, plan in self.planned_at.items() if path.endswith(end)), self.planned)
            if planned:
                fault = planned.pop(0)
            else:
                fault = self._random.choice(FAULTS) if self._random.random() < self._share else None
            if fault is not None:
                self.happened[fault, method] += 1
            return fault


class FaultyHandler(http.server.BaseHTTPRequestHandler):
    """Answers each request with `respond`, unless a fault befalls it."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: otherwise the body waits 40 ms for the acknowledgement of the head
    faults: Faults

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def handle_expect_100(self) -> bool:
        """boto3 waits a second for this answer before it sends the data."""
        super().handle_expect_100()
        self.wfile.flush()
        return True

    def respond(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        raise NotImplementedError

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _answer(self) -> None:
        body = self._body()
        fault = self.faults.next(self.command, self.path)
        if fault == "reset":
            self._hang_up()
            return
        status, headers, data = (fault, {}, b"planned") if isinstance(fault, int) else self.respond(body)
        if fault == "lost":
            self._hang_up()
            return
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.faults.chunked and data:
            self.send_header("Transfer-Encoding", "chunked")
            head, tail = f"{len(data):x}\r\n".encode(), b"\r\n0\r\n\r\n"
        else:
            head, tail = b"", b""
            if status != 204 and "Content-Length" not in headers:
                self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(head + (data[: len(data) // 2] if fault == "cut" else data + tail))
        self.wfile.flush()
        if fault == "cut":
            self.close_connection = True

    def _hang_up(self) -> None:
        """Close the connection without an answer, with a reset."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815
