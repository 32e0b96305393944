"""Azurite, Microsoft's emulator of Azure Blob Storage, behind a proxy that counts requests and lets answers fail."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import os
import subprocess
from collections.abc import Iterator
from email.message import Message
from email.utils import formatdate
from pathlib import Path

from faults import Faults, FaultyHandler
from ports import free_port, serving, wait_until_open
from repository import ROOT

PROGRAM = ROOT / ".engines/azurite/node_modules/.bin/azurite-blob"
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # everybody's
_OF_CONNECTION = ("connection", "keep-alive", "transfer-encoding")  # headers


class Azure:
    """The emulator's account. `calls`, `downloaded` and `faults` as those of `S3`."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = ""
        self.calls: list[str] = []
        self.downloaded = 0
        self.faults = Faults()

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which obstore comes here."""
        return {"AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": self.url}

    def put(self, name: str, data: bytes) -> None:
        """Store a blob in the container `out` under any name, also those that obstore refuses."""
        self.ask("PUT", f"out/{name}", data=data)

    def ask(self, method: str, name: str, query: str = "", data: bytes = b"") -> None:
        """Ask the emulator itself, in its account's name, for what obstore cannot do."""
        headers = {"x-ms-blob-type": "BlockBlob", "x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        signed = [method, "", "", str(len(data) or ""), *[""] * 8]
        signed += [f"{key}:{value}" for key, value in headers.items()]
        signed += [f"/{_ACCOUNT}/{_ACCOUNT}/{name}", *filter(None, [query.replace("=", ":")])]
        digest = hmac.digest(base64.b64decode(_KEY), "\n".join(signed).encode(), hashlib.sha256)
        headers["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}"
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port)) as connection:
            connection.request(method, f"/{_ACCOUNT}/{name}?{query}", data, headers)
            answer = connection.getresponse()
            assert answer.status < 300, answer.read()


class _Proxy(FaultyHandler):
    azure: Azure

    def respond(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        self.azure.calls.append(f"{self.command} {self.path}")
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.azure.port)) as connection:
            connection.request(self.command, self.path, body, _without(self.headers, *_OF_CONNECTION))
            answer = connection.getresponse()
            data = answer.read()
            if self.command == "GET" and "?" not in self.path:
                self.azure.downloaded += len(data)
            return answer.status, _without(answer.headers, "date", "server", *_OF_CONNECTION), data


def _without(headers: Message, *names: str) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in names}


@contextlib.contextmanager
def started(folder: Path) -> Iterator[int]:
    """The port of a new emulator, which ends with the block."""
    port, log = free_port(), folder / "azurite.log"
    options = ["--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck", "--silent"]
    with open(log, "wb") as file:
        command = ["node", os.path.realpath(PROGRAM), *options, "--blobPort", str(port)]
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=folder)
    try:
        wait_until_open(port, process, log)
        yield port
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def serve(azure: Azure, container: str) -> Iterator[None]:
    """Answer requests to `azure.url` within the block, with an empty container."""
    azure.ask("PUT", container, "restype=container")
    with serving(_Proxy, azure=azure, faults=azure.faults) as port:
        azure.url = f"http://127.0.0.1:{port}"
        try:
            yield
        finally:
            azure.ask("DELETE", container, "restype=container")
