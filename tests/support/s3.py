"""S3 on a loopback address, for boto3.

Unknown requests are answered with 501, so that no test passes because of a gap.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
import time
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any
from xml.sax.saxutils import escape

from faults import Faults, FaultyHandler
from ports import serving

_PAGE = 3  # keys per page of a listing: few, so that most listings have several pages
_XML = '<?xml version="1.0" encoding="UTF-8"?>'
_CODES = {403: "AccessDenied", 404: "NoSuchKey", 412: "PreconditionFailed", 416: "InvalidRange", 501: "NotImplemented"}


class S3:
    """The objects of one bucket, with the time of each.

    `calls`: each request, as `GET /bucket/key?query`. `downloaded`: bytes of objects in answers. `uploads`: parts of
    uploads that are neither completed nor aborted. `refused_parts`: whether parts of uploads are refused. `faults`:
    what befalls its answers. `short_ranges`: how many answers give half of a range, and say so.
    """

    def __init__(self, bucket: str) -> None:
        self.url, self.bucket = "", bucket
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.calls: list[str] = []
        self.downloaded = 0
        self.refused_parts = False
        self.conflicts = 0
        self.short_ranges = 0
        self.faults = Faults()
        self._begun = 0
        self._lock = threading.Lock()

    @property
    def options(self) -> list[str]:
        """Beam's options with which its client comes here."""
        keys = ["--s3_access_key_id=id", "--s3_secret_access_key=secret"]
        return [f"--s3_endpoint_url={self.url}", "--s3_region_name=us-east-1", *keys]

    def put(self, key: str, data: bytes) -> None:
        self.objects[key] = (data, time.time())

    def answer(self, method: str, target: str, headers: Any, body: bytes) -> tuple[int, dict[str, str], bytes]:
        place = urllib.parse.urlsplit(target)
        query = dict(urllib.parse.parse_qsl(place.query, keep_blank_values=True))
        bucket, _, key = urllib.parse.unquote(place.path).lstrip("/").partition("/")
        with self._lock:
            self.calls.append(f"{method} {target}")
            if bucket != self.bucket:
                return _error(404, "The specified bucket does not exist")
            if not key:
                if method == "GET" and query.get("list-type") == "2":
                    return self._list(query)
                if method == "POST" and "delete" in query:
                    return self._delete(body)
            elif method in ("GET", "HEAD") and not query:
                return self._get(key, headers.get("Range"), is_head=method == "HEAD")
            elif method == "PUT" and "uploadId" in query:
                return self._put_part(query, body)
            elif method == "PUT" and not query:
                return self._put(key, headers.get("If-None-Match"), body)
            elif method == "POST" and "uploads" in query:
                self._begun += 1
                self.uploads[str(self._begun)] = {}
                return _xml(
                    f"<InitiateMultipartUploadResult><UploadId>{self._begun}</UploadId></InitiateMultipartUploadResult>"
                )
            elif method == "POST" and "uploadId" in query:
                parts = self.uploads.pop(query["uploadId"], None)
                if parts is None:
                    return _error(404, "The specified upload does not exist.", code="NoSuchUpload")
                self.put(key, b"".join(parts[number] for number in sorted(parts)))
                return _xml("<CompleteMultipartUploadResult></CompleteMultipartUploadResult>")
            elif method == "DELETE" and "uploadId" in query:
                self.uploads.pop(query["uploadId"], None)
                return 204, {}, b""
        return _error(501, f"{method} {target}: this stand-in does not know it")

    def _list(self, query: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        prefix, after = query.get("prefix", ""), query.get("continuation-token", "")
        found = [key for key in sorted(self.objects) if key.startswith(prefix) and key > after]
        page = "".join(
            f"<Contents><Key>{escape(urllib.parse.quote(key))}</Key><Size>{len(self.objects[key][0])}</Size>"
            f"<LastModified>{_iso(self.objects[key][1])}</LastModified>"
            f"<ETag>{escape(_etag(self.objects[key][0]))}</ETag></Contents>"
            for key in found[:_PAGE]
        )
        more = f"<NextContinuationToken>{escape(found[_PAGE - 1])}</NextContinuationToken>" if found[_PAGE:] else ""
        truncated = str(bool(more)).lower()
        return _xml(
            f"<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>{truncated}</IsTruncated>{more}"
            f"{page}</ListBucketResult>"
        )

    def _get(self, key: str, asked: str | None, *, is_head: bool) -> tuple[int, dict[str, str], bytes]:
        if key not in self.objects:
            return _error(404, "The specified key does not exist.", is_head=is_head)
        data, modified = self.objects[key]
        seconds = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(modified))
        headers = {"Last-Modified": seconds, "ETag": _etag(data)}
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", asked or "")
        if is_head:
            return 200, headers | {"Content-Length": str(len(data))}, b""
        if match is None:
            self.downloaded += len(data)
            return 200, headers, data
        first, last = int(match[1]), min(int(match[2] or len(data)), len(data) - 1)
        if first > last:
            return _error(416, "The requested range is not satisfiable")
        if self.short_ranges:
            self.short_ranges -= 1
            last = (first + last) // 2
        self.downloaded += last + 1 - first
        return 206, headers | {"Content-Range": f"bytes {first}-{last}/{len(data)}"}, data[first : last + 1]

    def _put(self, key: str, condition: str | None, body: bytes) -> tuple[int, dict[str, str], bytes]:
        if condition == "*":
            if self.conflicts:
                self.conflicts -= 1
                return _error(409, "A conflicting conditional operation is in progress")
            if key in self.objects:
                return _error(412, "At least one of the pre-conditions you specified did not hold")
        self.put(key, body)
        return 200, {"ETag": '"x"'}, b""

    def _put_part(self, query: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        if self.refused_parts:
            return _error(403, "Access Denied")
        self.uploads[query["uploadId"]][int(query["partNumber"])] = body
        return 200, {"ETag": f'"{hashlib.md5(body).hexdigest()}"'}, b""

    def _delete(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        keys = [element.text or "" for element in ET.fromstring(body).iter() if element.tag.endswith("Key")]
        for key in keys:
            self.objects.pop(key, None)
        return _xml("<DeleteResult></DeleteResult>")


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03}Z"


def _xml(text: str) -> tuple[int, dict[str, str], bytes]:
    return 200, {"Content-Type": "application/xml"}, f"{_XML}{text}".encode()


def _error(
    status: int, message: str, *, is_head: bool = False, code: str | None = None
) -> tuple[int, dict[str, str], bytes]:
    code = code or _CODES.get(status, "OperationAborted")
    text = f"{_XML}<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
    return status, {"Content-Type": "application/xml"}, b"" if is_head else text.encode()


def _without_chunks(body: bytes) -> bytes:
    """The data of a body in the encoding aws-chunked, which boto3 uses to send a checksum behind it."""
    data = bytearray()
    while body:
        head, _, body = body.partition(b"\r\n")
        size = int(head.split(b";")[0], 16)
        if size == 0:
            break
        data += body[:size]
        body = body[size + 2 :]
    return bytes(data)


class _Handler(FaultyHandler):
    store: S3

    def respond(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        if "aws-chunked" in self.headers.get("Content-Encoding", ""):
            body = _without_chunks(body)
        return self.store.answer(self.command, self.path, self.headers, body)


@contextlib.contextmanager
def serve(store: S3) -> Iterator[None]:
    """Answer requests to `store.url` within the block."""
    with serving(_Handler, store=store, faults=store.faults) as port:
        store.url = f"http://127.0.0.1:{port}"
        yield
