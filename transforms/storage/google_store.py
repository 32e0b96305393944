"""gs:// through Google's client, made by Beam so that Beam's credentials and options hold."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import IO, Any

from layerbeam.transforms.flow.commits import InputFile
from layerbeam.transforms.storage.store import CONNECTIONS, Store, in_parallel, split_path

_DELETED_AT_ONCE = 100  # Google's limit for a batch request
_CONTENT_TYPE = "application/octet-stream"


class GoogleStore(Store):
    """Uploads are finalized by their last request, with the checksum of all bytes; one that fails never appears."""

    def __init__(self, options: Any) -> None:
        from apache_beam.io.gcp.gcsio import GcsIO
        from requests.adapters import HTTPAdapter

        self._io = GcsIO(pipeline_options=options)
        self._client: Any = self._io.client
        self._retry = self._io._storage_client_retry
        for scheme in ("https://", "http://"):
            self._client._http.mount(scheme, HTTPAdapter(pool_maxsize=CONNECTIONS))

    def _blob(self, path: str) -> Any:
        bucket, name = split_path(path)
        return self._client.bucket(bucket).blob(name)

    def list(self, prefix: str) -> Iterator[InputFile]:
        bucket, name = split_path(prefix)
        fields = "items(name,size,updated,generation),nextPageToken"
        for blob in self._client.list_blobs(bucket, prefix=name, fields=fields, retry=self._retry):
            yield _as_file(f"gs://{bucket}/{blob.name}", blob)

    def stat(self, path: str) -> InputFile | None:
        bucket, name = split_path(path)
        blob = self._client.bucket(bucket).get_blob(name, retry=self._retry)
        return None if blob is None else _as_file(path, blob)

    def read(self, path: str, start: int, end: int | None) -> bytes:
        from google.api_core.exceptions import RequestRangeNotSatisfiable

        last = None if end is None else end - 1
        try:
            data: bytes = self._blob(path).download_as_bytes(
                start=start or (None if end is None else 0), end=last, raw_download=True, retry=self._retry
            )
        except RequestRangeNotSatisfiable:  # behind the end
            return b""
        return data

    def write(self, path: str, file: IO[bytes], size: int) -> None:
        self._upload(path, file, size)

    def create(self, path: str, data: bytes) -> bool:
        from google.api_core.exceptions import PreconditionFailed

        try:
            self._upload(path, io.BytesIO(data), len(data), if_generation_match=0)
        except PreconditionFailed:
            return False
        return True

    def _upload(self, path: str, file: IO[bytes], size: int, **conditions: int) -> None:
        self._blob(path).upload_from_file(
            file, size=size, content_type=_CONTENT_TYPE, checksum="crc32c", retry=self._retry, **conditions
        )

    def delete(self, paths: Sequence[str]) -> None:
        in_parallel(self._delete, paths, _DELETED_AT_ONCE)

    def _delete(self, paths: Sequence[str]) -> None:
        for path, code in self._io.delete_batch(paths):
            if code is not None:
                raise OSError(f"{path}: could not be deleted (status {code})")


def _as_file(path: str, blob: Any) -> InputFile:
    # Whole seconds, as Beam's own listings had them.
    return InputFile(path, int(blob.size), float(int(blob.updated.timestamp())), str(blob.generation))
