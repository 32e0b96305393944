"""A web server on a loopback address that serves encoders."""

from __future__ import annotations

import dataclasses
import http.server
import io
import tarfile
import zipfile
from pathlib import Path
from typing import Any

from repository import DATA

TFHUB = DATA / "tfhub_uncased"


@dataclasses.dataclass
class Answer:
    """The server's answer. `length`: a Content-Length other than the body's; `raw`: replaces all of it."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    length: int | None = None
    raw: bytes | None = None


@dataclasses.dataclass
class Server:
    """A web server on this machine: answers by path, and a log of the requests.

    `first`: answers to the first requests for a commit, in this order.
    """

    port: int
    first: list[Answer] = dataclasses.field(default_factory=list)
    answers: dict[str, Answer] = dataclasses.field(default_factory=dict)
    asked: list[str] = dataclasses.field(default_factory=list)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def bodies(self) -> list[str]:
        """The paths whose bodies were sent."""
        return [line.removeprefix("GET ") for line in self.asked if line.startswith("GET ")]


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        state: Server = self.server.state
        path = self.path.split("?")[0]
        state.asked.append(f"{self.command} {path}")
        answer = state.answers.get(path, Answer(b"no such page", 404))
        if state.first and "/revision/" in path:
            answer = state.first.pop(0)
        if answer.raw is not None:
            self.wfile.write(answer.raw)
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body) if answer.length is None else answer.length))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(answer.body)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *arguments: Any) -> None:
        pass


class QuietServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that hang up: some tests make them."""


def nobody() -> str:
    """An address where no server listens."""
    with QuietServer(("127.0.0.1", 0), Handler) as closed:
        return f"http://127.0.0.1:{closed.server_address[1]}"


def tar_of(folder: Path, *, prefix: str = ".", compressed: bool = True) -> bytes:
    stream = io.BytesIO()
    # Level 9, tarfile's own, takes seven times as long.
    how = {"mode": "w:gz", "compresslevel": 1} if compressed else {"mode": "w"}
    with tarfile.open(fileobj=stream, **how) as archive:
        archive.add(folder, arcname=prefix)
    return stream.getvalue()


def assert_not_kept(tmp_path: Path) -> None:
    """The cache of tensorflow_hub holds nothing of a failed download except descriptions."""
    kept = [path.name for path in (tmp_path / "tfhub").iterdir() if not path.name.endswith(".descriptor.txt")]
    assert kept == []


def zip_of(folder: Path, inner: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for path in folder.iterdir():
            archive.write(path, f"{inner}/{path.name}")
    return made.getvalue()
