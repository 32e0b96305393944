"""s3:// through boto3, with Beam's options of S3."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import IO, Any

from layerbeam.transforms.flow.commits import InputFile
from layerbeam.transforms.storage.store import CONNECTIONS, Store, in_parallel, pause, range_header, split_path

_DELETED_AT_ONCE = 1000  # S3's limit for a request
_PART_BYTES = 64 << 20  # larger files are uploaded in parts of this size; 10,000 parts at most
_TRIES = 10  # within a minute or two


class S3Store(Store):
    """An upload in parts appears when it is completed; boto3 aborts one that fails.

    A killed program leaves its parts, which are invisible and are on the bill: a lifecycle rule
    (AbortIncompleteMultipartUpload) deletes them.
    """

    def __init__(self, options: Any) -> None:
        import boto3
        from apache_beam.options.pipeline_options import S3Options
        from botocore.config import Config

        given = options.view_as(S3Options)
        # As Beam's own client, except for the number of connections.
        self._client: Any = boto3.session.Session().client(
            service_name="s3",
            region_name=given.s3_region_name,
            api_version=given.s3_api_version,
            use_ssl=not given.s3_disable_ssl,
            verify=given.s3_verify,
            endpoint_url=given.s3_endpoint_url,
            aws_access_key_id=given.s3_access_key_id,
            aws_secret_access_key=given.s3_secret_access_key,
            aws_session_token=given.s3_session_token,
            config=Config(max_pool_connections=CONNECTIONS, retries={"mode": "standard", "max_attempts": _TRIES}),
        )
        self._client.meta.events.register("before-parse.s3", _mark_broken)

    def list(self, prefix: str) -> Iterator[InputFile]:
        bucket, key = split_path(prefix)
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=key)
        for page in pages:
            for found in page.get("Contents", ()):
                yield _as_file(f"s3://{bucket}/{found['Key']}", found["Size"], found)

    def stat(self, path: str) -> InputFile | None:
        bucket, key = split_path(path)
        try:
            found = self._client.head_object(Bucket=bucket, Key=key)
        except self._client.exceptions.ClientError as error:
            if _status(error) == 404:
                return None
            raise
        return _as_file(path, found["ContentLength"], found)

    def read(self, path: str, start: int, end: int | None) -> bytes:
        from botocore.exceptions import HTTPClientError, IncompleteReadError
        from urllib3.exceptions import HTTPError

        bucket, key = split_path(path)
        asked = range_header(start, end)
        tries = 0
        while True:
            try:
                answer = self._client.get_object(Bucket=bucket, Key=key, **asked)
            except self._client.exceptions.ClientError as error:
                if _status(error) == 416:  # behind the end
                    return b""
                raise
            try:
                data: bytes = answer["Body"].read()
                size = answer.get("ContentRange", "").rpartition("/")[2]
                expected = min(int(size), end or sys.maxsize) - start if size.isdecimal() else 0
                if len(data) >= expected:
                    return data
                raise IncompleteReadError(actual_bytes=len(data), expected_bytes=expected)
            except (HTTPClientError, IncompleteReadError, HTTPError):
                # boto3 repeats requests that fail, but not the reading of their answers.
                tries += 1
                if tries == _TRIES:
                    raise
            pause(tries)

    def write(self, path: str, file: IO[bytes], size: int) -> None:
        from boto3.s3.transfer import TransferConfig

        bucket, key = split_path(path)
        config = TransferConfig(multipart_threshold=_PART_BYTES, multipart_chunksize=_PART_BYTES, use_threads=False)
        try:
            self._client.upload_fileobj(file, bucket, key, Config=config)
        except self._client.exceptions.NoSuchUpload:  # completed, but the answer was lost and the request repeated
            file.seek(0)
            self._client.upload_fileobj(file, bucket, key, Config=config)

    def create(self, path: str, data: bytes) -> bool:
        bucket, key = split_path(path)
        for attempts_left in reversed(range(_TRIES)):
            try:
                self._client.put_object(Bucket=bucket, Key=key, Body=data, IfNoneMatch="*")
            except self._client.exceptions.ClientError as error:
                if _status(error) == 412:
                    return False
                # 409: the file is being created or deleted at this moment
                if _status(error) != 409 or not attempts_left:
                    raise
            else:
                return True
        return False

    def delete(self, paths: Sequence[str]) -> None:
        in_parallel(self._delete, paths, _DELETED_AT_ONCE)

    def _delete(self, paths: Sequence[str]) -> None:
        bucket, _ = split_path(paths[0])
        objects = [{"Key": split_path(path)[1]} for path in paths]
        answer = self._client.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
        for failed in answer.get("Errors", ()):
            raise OSError(f"s3://{bucket}/{failed['Key']}: could not be deleted ({failed['Message']})")


def _mark_broken(operation_model: Any, response_dict: dict[str, Any], **_: Any) -> None:
    """Have boto3 repeat a request whose answer breaks off, which it does not notice, or is 429 under any name."""
    body, size = response_dict["body"], int(response_dict["headers"].get("content-length", 0))
    is_cut = isinstance(body, bytes) and len(body) < size and operation_model.http["method"] != "HEAD"
    if is_cut or response_dict["status_code"] == 429:
        response_dict.update(status_code=503, body=b"")


def _status(error: Any) -> int:
    return int(error.response["ResponseMetadata"]["HTTPStatusCode"])


def _as_file(path: str, size: int, found: Any) -> InputFile:
    # Whole seconds: a listing gives fractions, and a single object does not. Not all stores put an ETag into quotes.
    return InputFile(path, size, float(int(found["LastModified"].timestamp())), found.get("ETag", "").strip('"'))
