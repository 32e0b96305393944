"""gs://, s3:// and az:// through the stores' own clients, against servers on a loopback address."""

from __future__ import annotations

import dataclasses
import io
import json
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import random_lines
from faults import FAULTS
from object_store import created_at_once

from layerbeam.transforms import storage
from layerbeam.transforms.flow.blocks import Slice, TextBlock
from layerbeam.transforms.flow.commits import InputFile
from layerbeam.transforms.input.content import read_head
from layerbeam.transforms.read.block import read_blocks
from layerbeam.transforms.settings import BlockLimits, RecordFormat
from layerbeam.transforms.slice.slices import FileToRead, byte_ranges, number_slices, scan_range
from layerbeam.transforms.storage import stores

UNLIMITED = BlockLimits(1 << 30, 1 << 30, 1 << 30, 128)


@pytest.fixture(params=["gs", "s3", "az"])
def store(request):
    """A loopback server with a bucket `out`."""
    server = request.getfixturevalue({"gs": "google", "s3": "s3", "az": "azure"}[request.param])
    server.root = f"{request.param}://out/v"
    return server


@pytest.fixture
def no_pauses(monkeypatch) -> None:
    """Requests are repeated at once."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


def put(store, name: str, data: bytes) -> InputFile:
    with storage.write_atomically(f"{store.root}/{name}") as file:
        file.write(data)
    found = storage.stat_file(f"{store.root}/{name}")
    assert not found.problem
    store.downloaded = 0
    store.calls.clear()
    return found


def test_files_are_written_listed_and_read(store):
    for number in range(5):
        put(store, f"in/{number}.txt", b"0123456789" * number)
    with storage.write_atomically(lambda sha256: f"{store.root}/{sha256[:8]}.bin") as file:
        file.write(b"abc")
    assert storage.list_folder(f"{store.root}/in") == {f"{number}.txt": 10 * number for number in range(5)}
    assert storage.list_folder(store.root) == {"ba7816bf.bin": 3}
    assert sorted(storage.list_tree(store.root)) == ["ba7816bf.bin", *[f"in/{number}.txt" for number in range(5)]]
    found = storage.find_files([f"{store.root}/i?/[1-3]*", f"{store.root}/**.bin"])
    paths = [file.path.removeprefix(store.root) for file in found]
    assert paths == ["/ba7816bf.bin", "/in/1.txt", "/in/2.txt", "/in/3.txt"]
    assert storage.stat_file(found[1].path) == found[1]
    assert storage.read_bytes(f"{store.root}/in/2.txt") == b"0123456789" * 2
    assert storage.read_bytes(f"{store.root}/in/0.txt") == b""
    with storage.open_binary(f"{store.root}/in/2.txt") as file:
        assert (file.read(3), file.seek(-4, 2), file.read(), file.read(1)) == (b"012", 16, b"6789", b"")
    assert not storage.exists(f"{store.root}/in/9.txt")
    with pytest.raises(FileNotFoundError):
        storage.read_bytes(f"{store.root}/in/9.txt")
    with pytest.raises(FileNotFoundError):
        storage.check_bucket(store.root.replace("out", "nowhere"))


def test_a_file_rewritten_in_the_same_second_is_another(store):
    first = put(store, "a.txt", b"label 0")
    second = put(store, "a.txt", b"label 1")
    assert second.version not in ("", first.version)
    before = dataclasses.replace(second, version=first.version)  # of equal size and time
    assert storage.find_change(second) is None
    assert storage.find_change(before) == InputFile.unreadable(
        second.path, "changed while it was being read; run again"
    )
    assert storage.find_files([f"{store.root}/*"]) == [second]


def test_a_file_is_created_once(store):
    path = f"{store.root}/commit"
    assert storage.create_if_absent(path, b"first")
    assert not storage.create_if_absent(path, b"second")
    assert storage.read_bytes(path) == b"first"
    assert sorted(created_at_once(f"{path}2", [bytes([number]) for number in range(8)])) == [False] * 7 + [True]


def test_a_failed_write_uploads_and_deletes_nothing(store):
    put(store, "part", b"committed")

    def interrupted() -> None:
        with storage.write_atomically(f"{store.root}/part") as file:
            file.write(bytes(40 << 20))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert store.calls == []
    assert storage.read_bytes(f"{store.root}/part") == b"committed"


def test_many_files_are_deleted_in_few_requests(store):
    for number in range(250):
        storage.create_if_absent(f"{store.root}/t/{number}", b"x")
    put(store, "other", b"x")
    storage.delete_files(store.root, [f"t/{number}" for number in range(5, 250)])
    deletions = [call for call in store.calls if call.startswith("POST ")]
    assert len(deletions) == {"gs": 3, "s3": 1, "az": 1}[store.root[:2]]
    storage.delete_files(store.root, [f"t/{number}" for number in range(3, 8)])
    assert sorted(storage.list_folder(f"{store.root}/t")) == ["0", "1", "2"]
    storage.delete_folder(store.root, "t")
    assert storage.list_folder(f"{store.root}/t") == {}
    assert storage.list_folder(store.root) == {"other": 1}


def full_lines(count: int) -> list[str]:
    return [line for line in random_lines(2 * count) if line.strip()][:count]


def texts(items) -> list[str]:
    return [text for item in items for text in item.texts.to_pylist()]


@pytest.mark.parametrize("form", ["text", "jsonl", "csv"])
def test_reading_slices_downloads_them_once(store, form):
    lines = [line.replace(",", " ").replace('"', " ").replace("\\", " ") for line in full_lines(6000)]
    if form == "jsonl":
        lines = [json.dumps({"text": line}) for line in lines]
    data = "\n".join(["text", *lines] if form == "csv" else lines).encode()
    record_format = RecordFormat(format=form)
    file = put(store, f"a.{form}", data)
    limits = BlockLimits(100_000, 1 << 30, 1 << 30, 128)
    ranges = byte_ranges(file, 200_000, record_format)
    scans = [scan_range(FileToRead(file), start, end, limits, record_format) for start, end in ranges]
    assert len(data) <= store.downloaded <= 1.2 * len(data)
    store.downloaded, blocks = 0, []
    for slice_ in number_slices(scans, limits, record_format):
        blocks += read_blocks(slice_, limits, record_format)
    assert len(blocks) > 2
    assert all(isinstance(block, TextBlock) for block in blocks)
    assert len(texts(blocks)) == 6000
    assert len(data) <= store.downloaded <= 1.2 * len(data)


def test_reading_columns_of_parquet_downloads_these(store):
    lines = full_lines(8000)
    table = pa.table({"text": lines, "other": [line * 20 for line in lines]})
    stream = io.BytesIO()
    pq.write_table(table, stream, row_group_size=4000, compression="none", use_dictionary=False)
    file = put(store, "a.parquet", stream.getvalue())
    needed = sum(len(line.encode()) + 4 for line in lines)
    blocks = list(read_blocks(Slice(file, 0, None, 0), UNLIMITED, RecordFormat(format="parquet")))
    assert texts(blocks) == lines
    assert needed <= store.downloaded <= 1.2 * needed + (64 << 10)  # and the footer


def test_a_head_is_a_small_download(store):
    put(store, "a.txt", b"some text\n" * 1_000_000)
    assert read_head(f"{store.root}/a.txt") == (b"some text\n" * 500)[:4096]
    assert store.downloaded == 4096


def upload(path: str, megabytes: int) -> None:
    with storage.write_atomically(path) as file:
        for _ in range(megabytes):
            file.write(bytes(1 << 20))


def test_a_large_upload_to_google_that_fails_never_appears(google):
    google.root = "gs://out/v"
    put(google, "part", b"committed")
    google.refused_uploads = True
    with pytest.raises(PermissionError, match="This upload is refused"):
        upload("gs://out/v/part", 9)
    assert [call.split("?")[0] for call in google.calls] == [
        "POST /upload/storage/v1/b/out/o",
        "PUT /upload/storage/v1/b/out/o",
    ]
    google.refused_uploads = False
    assert storage.read_bytes("gs://out/v/part") == b"committed"
    upload("gs://out/v/part", 9)
    assert storage.list_folder("gs://out/v") == {"part": 9 << 20}


def test_an_upload_in_parts_to_s3_that_fails_is_aborted(s3):
    s3.root = "s3://out/v"
    put(s3, "part", b"committed")
    s3.refused_parts = True
    with pytest.raises(PermissionError, match="Access Denied"):
        upload("s3://out/v/part", 65)
    assert s3.calls[0] == "POST /out/v/part?uploads"
    assert s3.calls[-1] == "DELETE /out/v/part?uploadId=1"
    assert s3.uploads == {}
    s3.refused_parts = False
    assert storage.read_bytes("s3://out/v/part") == b"committed"
    upload("s3://out/v/part", 65)
    assert storage.list_folder("s3://out/v") == {"part": 65 << 20}


def test_a_conflict_on_s3_is_tried_again(s3):
    s3.conflicts = 2
    assert storage.create_if_absent("s3://out/a", b"x")
    assert [call for call in s3.calls if call.startswith("PUT")] == ["PUT /out/a"] * 3


def test_one_client_per_process(store):
    storage.exists(f"{store.root}/a")
    first = dict(stores._stores)
    storage.list_folder(store.root)
    assert storage.create_if_absent(f"{store.root}/b", b"x")
    assert stores._stores == first


@pytest.mark.parametrize("fault", FAULTS)
def test_a_request_whose_answer_fails_is_repeated(store, no_pauses, fault):
    root, data = store.root, bytes(range(256)) * 100
    storage.exists(f"{root}/a")  # from now on the client has its token

    def failing(*planned: object) -> None:
        assert store.faults.planned == []
        store.faults.planned = [*planned, fault]

    failing()
    assert storage.create_if_absent(f"{root}/in/a", data)
    failing()
    assert not storage.create_if_absent(f"{root}/in/a", b"others")
    for name in "bcde":
        failing()
        with storage.write_atomically(f"{root}/in/{name}") as file:
            file.write(data[:5])
    failing()
    assert storage.read_bytes(f"{root}/in/a") == data
    failing()
    with storage.open_binary(f"{root}/in/a", 1000) as file:
        file.seek(300)
        assert file.read(700) == data[300:1000]
    failing()
    assert storage.stat_file(f"{root}/in/a").size == 25_600
    store.calls.clear()
    failing(*[None] * (root[:2] != "az"))  # the second page, which Azurite begins after 5,000 names
    assert list(storage.file_names(f"{root}/in")) == ["a", "b", "c", "d", "e"]
    assert len(store.calls) <= 3
    failing()
    storage.delete_files(f"{root}/in", list("abcd"))
    assert storage.list_folder(f"{root}/in") == {"e": 5}
    assert store.faults.planned == []


@pytest.mark.parametrize("chunked", [False, True])
def test_interrupted_download_is_resumed(store, no_pauses, chunked):
    data = bytes(range(256)) * 1000
    put(store, "a", data)
    store.faults.chunked = chunked
    for start, end in ((0, None), (5, None), (0, 100_000), (77, 200_000)):
        store.faults.planned = ["cut"] * 5
        with stores.store_of(store.root) as client:
            assert client.read(f"{store.root}/a", start, end) == data[start:end]
        assert store.faults.planned == []


def test_reading_from_s3_ends_when_no_body_is_whole(s3, no_pauses):
    s3.root = "s3://out/v"
    put(s3, "a", b"abc")
    s3.faults.planned = ["cut"] * 1000
    with pytest.raises(OSError, match="response stream"):
        storage.read_bytes("s3://out/v/a")
    assert s3.calls == ["GET /out/v/a"] * 10


def test_a_range_that_comes_short_from_s3_is_read_again(s3, no_pauses):
    s3.root = "s3://out/v"
    put(s3, "a", b"0123456789")
    s3.short_ranges = 2
    with storage.open_binary("s3://out/v/a", 8) as file:
        assert file.read(8) == b"01234567"
    with storage.open_binary("s3://out/v/a", 8) as file:
        assert file.read() == b"0123456789"


def test_lost_answer_to_completed_s3_upload_is_accepted(s3, no_pauses):
    s3.root = "s3://out/v"
    s3.faults.planned = [None, None, None, "lost"]
    put(s3, "part", bytes(65 << 20))
    assert s3.faults.happened == {("lost", "POST"): 1}
    assert storage.list_folder("s3://out/v") == {"part": 65 << 20}
    assert s3.uploads == {}


def test_an_upload_in_blocks_to_azure_appears_whole(azure, no_pauses):
    with storage.write_atomically("az://out/v/part") as file:
        file.write(b"committed")
    azure.faults.planned = [403] * 100
    with pytest.raises(PermissionError):
        upload("az://out/v/part", 20)
    azure.faults.planned = []
    assert storage.read_bytes("az://out/v/part") == b"committed"
    upload("az://out/v/part", 20)
    assert storage.list_folder("az://out/v") == {"part": 20 << 20}


def test_names_of_azure_that_obstore_cannot_read(azure):
    azure.put("v//a", b"x")
    with pytest.raises(OSError, match="empty path segment"):
        storage.list_folder("az://out/v")


def test_azure_without_credentials(azure, monkeypatch):
    for name in azure.environment:
        monkeypatch.delenv(name)
    storage.set_options()
    assert storage.unsupported_reason("az://out/v") == (
        "az:// cannot be opened here: the storage account is not given; name it in the variable "
        "AZURE_STORAGE_ACCOUNT_NAME"
    )
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    # A server of managed identities that refuses.
    monkeypatch.setenv("AZURE_MSI_ENDPOINT", f"{azure.url}/identity")
    monkeypatch.setenv("AZURE_ALLOW_HTTP", "true")
    azure.faults.planned = [403]
    with pytest.raises(OSError, match="no credentials were found; give AZURE_STORAGE_ACCOUNT_KEY"):
        storage.exists("az://out/v")
    assert azure.calls == []
