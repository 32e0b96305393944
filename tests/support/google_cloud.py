"""Cloud Storage, Dataflow and the token server on a loopback address.

The real clients use it over HTTP, with a real service account's key. Unknown requests are answered with 501, so that no
test passes because of a gap.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import email
import email.policy
import hashlib
import json
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import google_crc32c
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from faults import Faults, FaultyHandler
from ports import serving

ACCOUNT = "launcher@proj.iam.gserviceaccount.com"
_PAGE = 3  # objects per page of a listing: few, so that most listings have several pages
_REASONS = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND"}


@dataclasses.dataclass(frozen=True)
class StoredObject:
    data: bytes
    generation: int
    updated: float


def _crc32c(data: bytes) -> str:
    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()


class ServiceError(Exception):
    """An error answer in the form of Google's services."""

    def __init__(self, code: int, message: str, status: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = status or _REASONS.get(code, "UNKNOWN")

    def to_json(self) -> dict[str, Any]:
        reason = {"reason": self.status, "message": str(self)}
        return {"error": {"code": self.code, "message": str(self), "status": self.status, "errors": [reason]}}


@dataclasses.dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: Any
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclasses.dataclass
class Answer:
    body: bytes
    code: int = 200
    headers: dict[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, value: Any, **named: Any) -> Answer:
        return cls(json.dumps(value).encode(), headers={"Content-Type": "application/json"}, **named)


class GoogleCloud:
    """The stored objects, the received jobs, and the answers of the services.

    `denied`: buckets that the account may not use. `refusal`: the answer to the next submitted job. `work`: what a job
    does, executed when it is submitted. `states`: the states of a job, one for each request; the last one stays.
    `asked`: requested states, as by cancelling. `calls`: each request, as `GET /path`, listings with their `?prefix=`.
    `downloaded`: bytes of objects in answers. `refused_uploads`: whether the data of uploads is refused, as by a store
    that breaks. `faults`: what befalls its answers.
    """

    def __init__(self, *buckets: str) -> None:
        self.url = ""
        self.buckets: dict[str, dict[str, StoredObject]] = {name: {} for name in buckets}
        self.denied: set[str] = set()
        self.jobs: list[dict[str, Any]] = []
        self.refusal: ServiceError | None = None
        self.states = ["JOB_STATE_DONE"]
        self.work: Callable[[], None] = lambda: None
        self.messages: list[tuple[str, str]] = []
        self.asked: list[str] = []
        self.calls: list[str] = []
        self.downloaded = 0
        self.refused_uploads = False
        self.faults = Faults()
        self.options: list[str] = []
        self._uploads: list[tuple[str, dict[str, Any], dict[str, str], bytearray]] = []
        self._finished: dict[str, Answer] = {}
        self._generation = 0
        self._lock = threading.RLock()

    def put(self, path: str, data: bytes) -> None:
        """Store an object under its gs:// path."""
        bucket, name = path.removeprefix("gs://").split("/", 1)
        self._store(bucket, name, data)

    def get(self, path: str) -> bytes:
        bucket, name = path.removeprefix("gs://").split("/", 1)
        return self.buckets[bucket][name].data

    def upload(self, folder: Path, to: str) -> None:
        """Store a folder's files under a gs:// path."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(f"{to}/{path.relative_to(folder)}", path.read_bytes())

    def tree(self, path: str) -> dict[str, bytes]:
        """The objects below a gs:// path, by the rest of their names."""
        bucket, prefix = (path.removeprefix("gs://") + "/").split("/", 1)
        found = self.buckets[bucket]
        return {name[len(prefix) :]: found[name].data for name in sorted(found) if name.startswith(prefix)}

    def answer(self, request: Request) -> Answer:
        with self._lock:
            listed = f"?prefix={request.query['prefix']}" if "prefix" in request.query else ""
            self.calls.append(f"{request.method} {request.path}{listed}")
            for method, pattern, handle in _ROUTES:
                match = re.fullmatch(pattern, request.path)
                if match is not None and method == request.method:
                    try:
                        if handle is not GoogleCloud._token and not request.headers.get("Authorization"):
                            raise ServiceError(401, "Anonymous caller does not have access to this resource.")
                        return handle(self, request, *map(urllib.parse.unquote, match.groups()))
                    except ServiceError as error:
                        return Answer.of(error.to_json(), code=error.code)
            error = ServiceError(501, f"{request.method} {request.path}: this stand-in does not know it")
            return Answer.of(error.to_json(), code=501)

    # Cloud Storage, the JSON API.

    def _bucket_of(self, name: str) -> dict[str, StoredObject]:
        if name in self.denied:
            message = f"{ACCOUNT} does not have storage access to {name}. Permission denied (or it may not exist)."
            raise ServiceError(403, message)
        if name not in self.buckets:
            raise ServiceError(404, "The specified bucket does not exist.")
        return self.buckets[name]

    def _object_of(self, bucket: str, name: str) -> StoredObject:
        stored = self._bucket_of(bucket).get(name)
        if stored is None:
            raise ServiceError(404, f"No such object: {bucket}/{name}")
        return stored

    def _store(self, bucket: str, name: str, data: bytes) -> None:
        with self._lock:
            self._generation += 1
            self.buckets[bucket][name] = StoredObject(data, self._generation, time.time())

    def _metadata(self, bucket: str, name: str) -> dict[str, Any]:
        """The client compares both checksums with those of its data, and sends the data again if they are missing."""
        stored = self._object_of(bucket, name)
        seconds, parts = divmod(stored.updated, 1)
        return {
            "kind": "storage#object",
            "bucket": bucket,
            "name": name,
            "size": str(len(stored.data)),
            "generation": str(stored.generation),
            "updated": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(parts * 1000):03}Z",
            "md5Hash": base64.b64encode(hashlib.md5(stored.data).digest()).decode(),
            "crc32c": _crc32c(stored.data),
        }

    def _get_bucket(self, request: Request, bucket: str) -> Answer:
        self._bucket_of(bucket)
        return Answer.of({"kind": "storage#bucket", "id": bucket, "name": bucket})

    def _list(self, request: Request, bucket: str) -> Answer:
        prefix, after = request.query.get("prefix", ""), request.query.get("pageToken", "")
        found = [name for name in sorted(self._bucket_of(bucket)) if name.startswith(prefix) and name > after]
        page = {"kind": "storage#objects", "items": [self._metadata(bucket, name) for name in found[:_PAGE]]}
        return Answer.of(page | ({"nextPageToken": found[_PAGE - 1]} if len(found) > _PAGE else {}))

    def _get_object(self, request: Request, bucket: str, name: str) -> Answer:
        return Answer.of(self._metadata(bucket, name))

    def _download(self, request: Request, bucket: str, name: str) -> Answer:
        stored = self._object_of(bucket, name)
        if request.query.get("generation", str(stored.generation)) != str(stored.generation):
            raise ServiceError(404, f"No such object: {bucket}/{name}")
        data, headers = stored.data, {"X-Goog-Generation": str(stored.generation)}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
        if asked is None:
            self.downloaded += len(data)
            return Answer(data, headers=headers | {"X-Goog-Hash": f"crc32c={_crc32c(data)}"})
        first, last = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
        if first > last:
            return Answer(b"", 416, {"Content-Range": f"bytes */{len(data)}"})
        self.downloaded += last + 1 - first
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        return Answer(data[first : last + 1], 206, headers)

    def _begin_upload(self, request: Request, bucket: str) -> Answer:
        """A small object in one request, or the beginning of a resumable upload."""
        self._bucket_of(bucket)
        if request.query["uploadType"] == "multipart":
            head = f"Content-Type: {request.headers['Content-Type']}\r\n\r\n".encode()
            message = email.message_from_bytes(head + request.body, policy=email.policy.HTTP)
            described, content = (part.get_payload(decode=True) for part in message.iter_parts())
            return self._finish_upload(bucket, json.loads(described), content, request.query)
        self._uploads.append((bucket, request.json(), request.query, bytearray()))
        place = f"{self.url}/upload/storage/v1/b/{bucket}/o?upload_id={len(self._uploads) - 1}"
        return Answer(b"", headers={"Location": place})

    def _continue_upload(self, request: Request, bucket: str) -> Answer:
        """A piece of the data, or the question how much has come, which is `bytes */SIZE`. Either may be repeated."""
        upload = request.query["upload_id"]
        if upload in self._finished:
            return self._finished[upload]
        _, described, query, data = self._uploads[int(upload)]
        if self.refused_uploads:
            raise ServiceError(403, "This upload is refused.")
        place, _, size = request.headers["Content-Range"].removeprefix("bytes ").partition("/")
        if place != "*":
            data[int(place.partition("-")[0]) :] = request.body
        if size == "*" or len(data) < int(size):
            return Answer(b"", 308, {"Range": f"bytes=0-{len(data) - 1}"} if data else {})
        self._finished[upload] = self._finish_upload(bucket, described, bytes(data), query)
        return self._finished[upload]

    def _finish_upload(self, bucket: str, described: dict[str, Any], data: bytes, query: dict[str, str]) -> Answer:
        """Checks the condition and the checksum that the client sent before the data."""
        name = described["name"]
        if self.refused_uploads:
            raise ServiceError(403, "This upload is refused.")
        if "crc32c" in described and described["crc32c"] != _crc32c(data):
            raise ServiceError(400, "Provided CRC32C does not match.")
        if query.get("ifGenerationMatch") == "0" and name in self._bucket_of(bucket):
            raise ServiceError(412, "At least one of the pre-conditions you specified did not hold.")
        self._store(bucket, name, data)
        return Answer.of(self._metadata(bucket, name))

    def _end_upload(self, request: Request, bucket: str) -> Answer:
        return Answer(b"", 499)

    def _delete(self, request: Request, bucket: str, name: str) -> Answer:
        self._object_of(bucket, name)
        del self.buckets[bucket][name]
        return Answer(b"", 204)

    def _batch(self, request: Request) -> Answer:
        """Several requests in one multipart message: Beam deletes in this way."""
        head = f"Content-Type: {request.headers['Content-Type']}\r\n\r\n".encode()
        message = email.message_from_bytes(head + request.body, policy=email.policy.HTTP)
        answers = []
        for part in message.iter_parts():
            line, _, rest = part.get_payload(decode=True).decode().partition("\n")
            method, url, _ = line.split(" ", 2)
            headers = email.message_from_string(rest)
            headers["Authorization"] = request.headers["Authorization"]
            place = urllib.parse.urlsplit(url)
            answer = self.answer(Request(method, place.path, dict(urllib.parse.parse_qsl(place.query)), headers, b""))
            content_type = answer.headers.get("Content-Type", "text/plain")
            answers.append(
                f"--batch\r\nContent-Type: application/http\r\n\r\nHTTP/1.1 {answer.code} .\r\n"
                f"Content-Type: {content_type}\r\n\r\n{answer.body.decode()}\r\n"
            )
        return Answer(
            ("".join(answers) + "--batch--").encode(), headers={"Content-Type": "multipart/mixed; boundary=batch"}
        )

    # Dataflow v1b3.

    def _create_job(self, request: Request, project: str, region: str) -> Answer:
        if self.refusal is not None:
            raise self.refusal
        self.jobs.append(request.json())
        self.work()
        return Answer.of(self._job(project, region, "JOB_STATE_PENDING"))

    def _job(self, project: str, region: str, state: str) -> dict[str, Any]:
        job = {"id": "2026-01-01_00_00_00-1", "name": self.jobs[-1]["name"], "currentState": state}
        return job | {"projectId": project, "location": region, "type": self.jobs[-1]["type"]}

    def _get_job(self, request: Request, project: str, region: str, job: str) -> Answer:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return Answer.of(self._job(project, region, state))

    def _update_job(self, request: Request, project: str, region: str, job: str) -> Answer:
        self.asked.append(request.json()["requestedState"])
        self.states = [self.asked[-1]]
        return self._get_job(request, project, region, job)

    def _get_messages(self, request: Request, project: str, region: str, job: str) -> Answer:
        messages = [
            {"id": str(number), "time": "2026-01-01T00:00:00Z", "messageImportance": importance, "messageText": text}
            for number, (importance, text) in enumerate(self.messages)
        ]
        return Answer.of({"jobMessages": messages})

    def _get_metrics(self, request: Request, project: str, region: str, job: str) -> Answer:
        return Answer.of({"metrics": []})

    def _token(self, request: Request) -> Answer:
        return Answer.of({"access_token": "token", "expires_in": 3600, "token_type": "Bearer"})


_OBJECT = "/storage/v1/b/([^/]+)/o/([^/]+)"
_JOBS = "/v1b3/projects/([^/]+)/locations/([^/]+)/jobs"
_ROUTES: list[tuple[str, str, Callable[..., Answer]]] = [
    ("POST", "/token", GoogleCloud._token),
    ("GET", "/storage/v1/b/([^/]+)", GoogleCloud._get_bucket),
    ("GET", "/storage/v1/b/([^/]+)/o", GoogleCloud._list),
    ("GET", _OBJECT, GoogleCloud._get_object),
    ("DELETE", _OBJECT, GoogleCloud._delete),
    ("GET", f"/download{_OBJECT}", GoogleCloud._download),
    ("POST", "/(?:resumable/)?upload/storage/v1/b/([^/]+)/o", GoogleCloud._begin_upload),
    ("PUT", "/upload/storage/v1/b/([^/]+)/o", GoogleCloud._continue_upload),
    ("DELETE", "/upload/storage/v1/b/([^/]+)/o", GoogleCloud._end_upload),
    ("POST", "/batch/storage/v1", GoogleCloud._batch),
    ("POST", _JOBS, GoogleCloud._create_job),
    ("GET", f"{_JOBS}/([^/]+)", GoogleCloud._get_job),
    ("PUT", f"{_JOBS}/([^/]+)", GoogleCloud._update_job),
    ("GET", f"{_JOBS}/([^/]+)/messages", GoogleCloud._get_messages),
    ("GET", f"{_JOBS}/([^/]+)/metrics", GoogleCloud._get_metrics),
]


class _Handler(FaultyHandler):
    cloud: GoogleCloud

    def respond(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        place = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(place.query))
        answer = self.cloud.answer(Request(self.command, place.path, query, self.headers, body))
        return answer.code, answer.headers, answer.body


@contextlib.contextmanager
def serve(cloud: GoogleCloud) -> Iterator[None]:
    """Answer requests to `cloud.url` within the block."""
    with serving(_Handler, cloud=cloud, faults=cloud.faults) as port:
        # `localhost`: Beam uses plain HTTP for a Dataflow endpoint with this name.
        cloud.url = f"http://localhost:{port}"
        yield


def service_account_key(cloud: GoogleCloud) -> str:
    """A key file for `GOOGLE_APPLICATION_CREDENTIALS` whose tokens come from this server."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {"type": "service_account", "project_id": "proj", "client_email": ACCOUNT, "client_id": "1"}
    return json.dumps(account | {"private_key_id": "1", "private_key": key.decode(), "token_uri": f"{cloud.url}/token"})


def environment(cloud: GoogleCloud, key_file: Path) -> dict[str, str]:
    """The variables by which Google's clients find this server."""
    return {
        "STORAGE_EMULATOR_HOST": cloud.url,
        "GOOGLE_APPLICATION_CREDENTIALS": str(key_file),
        "NO_GCE_CHECK": "true",
        # For tracing, which is not used here, the client requests each bucket in a thread that may outlive this server.
        "DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA": "true",
    }


@contextlib.contextmanager
def no_network() -> Iterator[None]:
    """Within the block, connections from this process to other machines fail."""
    real_lookup = socket.getaddrinfo

    def connect(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX:
            _check_loopback(address[0])
        super(socket.socket, self).connect(address)

    def lookup(host: Any, *arguments: Any, **named: Any) -> Any:
        _check_loopback(host)
        return real_lookup(host, *arguments, **named)

    with mock.patch.object(socket.socket, "connect", connect, create=True), mock.patch("socket.getaddrinfo", lookup):
        yield


def _check_loopback(host: Any) -> None:
    if host not in ("127.0.0.1", "::1", "localhost", None, ""):
        raise AssertionError(f"a test spoke to {host}")
