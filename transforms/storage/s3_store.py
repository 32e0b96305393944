"""s3:// through boto3, with Beam's options of S3."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

from layerbeam.transforms.commits import InputFile
from layerbeam.transforms.storage.store import Store, in_batches, split_path

_DELETED_AT_ONCE = 1000  # S3's limit for a request
_REQUESTS_AT_ONCE = 8
_CONNECTIONS = 64
_PART_BYTES = 64 << 20  # larger files are uploaded in parts of this size; 10,000 parts at most
_CONFLICTS = 10


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
        # As Beam's own client, except for the number of connections: each thread that waits for the store keeps one.
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
            config=Config(max_pool_connections=_CONNECTIONS),
        )

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
        bucket, key = split_path(path)
        asked = {} if start == 0 and end is None else {"Range": f"bytes={start}-{'' if end is None else end - 1}"}
        try:
            data: bytes = self._client.get_object(Bucket=bucket, Key=key, **asked)["Body"].read()
        except self._client.exceptions.ClientError as error:
            if _status(error) == 416:  # behind the end
                return b""
            raise
        return data

    def write(self, path: str, file: IO[bytes], size: int) -> None:
        from boto3.s3.transfer import TransferConfig

        bucket, key = split_path(path)
        config = TransferConfig(multipart_threshold=_PART_BYTES, multipart_chunksize=_PART_BYTES, use_threads=False)
        self._client.upload_fileobj(file, bucket, key, Config=config)

    def create(self, path: str, data: bytes) -> bool:
        bucket, key = split_path(path)
        for attempts_left in reversed(range(_CONFLICTS)):
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

    def delete(self, paths: Iterable[str]) -> None:
        keys: dict[str, list[str]] = {}
        for path in paths:
            bucket, key = split_path(path)
            keys.setdefault(bucket, []).append(key)
        batches = [(bucket, batch) for bucket, names in keys.items() for batch in in_batches(names, _DELETED_AT_ONCE)]
        with concurrent.futures.ThreadPoolExecutor(_REQUESTS_AT_ONCE) as threads:
            list(threads.map(self._delete, *zip(*batches, strict=True)) if batches else ())

    def _delete(self, bucket: str, keys: Sequence[str]) -> None:
        objects = [{"Key": key} for key in keys]
        answer = self._client.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
        for failed in answer.get("Errors", ()):
            raise OSError(f"s3://{bucket}/{failed['Key']}: could not be deleted ({failed['Message']})")


def _status(error: Any) -> int:
    return int(error.response["ResponseMetadata"]["HTTPStatusCode"])


def _as_file(path: str, size: int, found: Any) -> InputFile:
    # Whole seconds: a listing gives fractions, and a single object does not. Not all stores put an ETag into quotes.
    return InputFile(path, size, float(int(found["LastModified"].timestamp())), found.get("ETag", "").strip('"'))
