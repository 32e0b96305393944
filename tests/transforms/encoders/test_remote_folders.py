"""Encoders in folders and archives on Beam's file systems."""

from __future__ import annotations

import dataclasses
import errno
import io
import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apache_beam.io.filesystem import FileSystem
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import S3Options
from dense import encoder_with_dense
from model_server import TFHUB, tar_of
from object_store import upload
from pytorch_files import save
from repository import DATA
from safetensors.numpy import load_file
from weights import refused

from layerbeam.transforms import storage
from layerbeam.transforms.encoders import load_weights, open_dense, open_encoder, read_dense_weights
from layerbeam.transforms.storage import copy_into

# tensorflow_hub leaves the connections open that its errors came from.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.usefixtures("cache", "collected"),
]


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
    others = ["pytorch_model.bin", "notes.txt", "tf_model.h5", "onnx/model.onnx", "deep/er/config.json", "LICENSE"]
    for name in others:
        memory.stored[f"memory://bucket/e/{name}"] = (0.0, b"some bytes")
    memory.stored["memory://bucket/e2/config.json"] = (0.0, b"of another encoder")
    first = open_encoder("memory://bucket/e")
    wanted = ["LICENSE", "config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt"]
    assert sorted(memory.opened) == [f"memory://bucket/e/{name}" for name in wanted]
    assert sorted(os.listdir(first.folder)) == wanted
    memory.opened.clear()
    assert open_encoder("memory://bucket/e") == first
    assert memory.opened == []


def test_pickled_weights_are_copied_where_there_are_no_others(memory, tmp_path):
    upload(DATA / "hf_uncased", "memory://bucket/e")
    del memory.stored["memory://bucket/e/model.safetensors"]
    path = save(tmp_path / "pytorch_model.bin", load_file(DATA / "hf_uncased/model.safetensors"))
    memory.stored["memory://bucket/e/pytorch_model.bin"] = (0.0, path.read_bytes())
    memory.stored["memory://bucket/e/training_args.bin"] = (0.0, b"some bytes")
    weights = load_weights(open_encoder("memory://bucket/e"))
    expected = load_weights(open_encoder(str(DATA / "hf_uncased")))
    assert all(np.array_equal(weights[key], expected[key]) for key in expected)
    assert "memory://bucket/e/training_args.bin" not in memory.opened


def test_dense_modules_are_copied_in_either_format(memory, tmp_path):
    encoder_with_dense(tmp_path / "e")
    shutil.rmtree(tmp_path / "e" / "3_Dense")
    upload(tmp_path / "e", "memory://bucket/e")
    # PyTorch's file for the encoder, safetensors for 2_Dense, and PyTorch's again for 5_Dense.
    del memory.stored["memory://bucket/e/model.safetensors"]
    path = save(tmp_path / "pytorch_model.bin", load_file(DATA / "hf_uncased/model.safetensors"))
    memory.stored["memory://bucket/e/pytorch_model.bin"] = (0.0, path.read_bytes())
    config = {"in_features": 2, "out_features": 1, "bias": False}
    path = save(tmp_path / "dense.bin", {"linear.weight": np.ones((1, 2), np.float32)})
    memory.stored["memory://bucket/e/5_Dense/config.json"] = (0.0, json.dumps(config).encode())
    memory.stored["memory://bucket/e/5_Dense/pytorch_model.bin"] = (0.0, path.read_bytes())
    source = open_encoder("memory://bucket/e")
    assert load_weights(source)
    assert open_dense(source, "2_Dense") == open_dense(open_encoder(str(tmp_path / "e")), "2_Dense")
    assert read_dense_weights(source, open_dense(source, "5_Dense"))[0].tolist() == [[1], [1]]


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
    # The archives themselves are not kept next to what was unpacked.
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
        "az://, hdfs://"
    )


def test_file_that_comes_short(memory, cache):
    upload(DATA / "hf_uncased", "memory://bucket/e")
    memory.short.add("memory://bucket/e/model.safetensors")
    with pytest.raises(OSError, match=r"memory://bucket/e/model.safetensors: 333,616 bytes came, not 667,232"):
        copy_into("memory://bucket/e/model.safetensors", io.BytesIO())
    error = refused("memory://bucket/e")
    assert "cannot be fetched (memory://bucket/e/model.safetensors: 333,616 bytes came, not 667,232)" in error
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
    assert "cannot be fetched ([Errno 5] 403: you have no right to read this" in refused("memory://bucket/e")
    monkeypatch.setattr(memory, "match", refuse)
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
    assert "cannot be fetched ([Errno 13] Permission denied" in error
    assert "XDG_CACHE_HOME" not in error


@pytest.mark.parametrize("ending", ["", ".zip"])
def test_disk_that_fills_while_it_is_copied(memory, cache, monkeypatch, ending):
    def full(path: str, file: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    upload(DATA / "hf_uncased", "memory://bucket/e")
    memory.stored["memory://bucket/e.zip"] = (1.0, b"some bytes")
    monkeypatch.setattr("layerbeam.transforms.storage.copy_into", full)
    error = refused(f"memory://bucket/e{ending}")
    assert (
        f"cannot be fetched ([Errno 28] No space left on device); XDG_CACHE_HOME names another place than {cache}"
        in error
    )
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("handle", "said"),
    [
        (
            "gs://bucket/e",
            "gs:// needs a package that is not installed; run: pip install -c constraints.txt -e '.[gcp]",
        ),
        (
            "s3://bucket/e",
            "s3:// needs a package that is not installed; run: pip install -c constraints.txt -e '.[aws]",
        ),
        (
            "az://container/e",
            "az:// needs a package that is not installed; run: pip install -c constraints.txt -e '.[azure]",
        ),
        ("hdfs://host/e", "hdfs:// needs a package that is not installed; run: pip install 'apache-beam[hadoop]'"),
        ("file:///tmp/e", "a local path has no scheme: leave off file://"),
        ("ftp://host/e", "Beam has no file system for ftp:// here; it has local paths (without a scheme), gs://, s3"),
    ],
)
def test_file_systems_that_are_not_there(workplace, monkeypatch, handle, said):
    monkeypatch.setattr("layerbeam.transforms.storage.stores.is_installed", lambda package: False)
    assert f"{handle}: {said}" in refused(handle)
    workplace.configure(output={"path": handle})
    workplace.write("corpus/a.txt", "a")
    for done in (
        workplace.drive(status=2),
        workplace._call("show", handle, status=2),
        workplace._call("verify", handle, status=2),
        workplace.encoder(handle, status=2),
    ):
        assert done.err.startswith(f"layerbeam: {handle}: {said}")


def test_options_of_the_file_systems(workplace, memory, monkeypatch):
    """Beam itself sets them when a pipeline is made, which is too late for the encoder."""
    upload(DATA / "hf_uncased", "memory://bucket/e")
    storage.set_options()
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
    workplace.prepare("a river\n", encoder={"handle": "memory://bucket/e"}, beam={"s3_region_name": "here"})
    workplace.drive()
    assert set(seen) == {"here"}
    seen.clear()
    workplace.drive("--s3_region_name=there", "--output=out2")
    assert set(seen) == {"there"}


def test_hdfs_without_its_options(monkeypatch):
    monkeypatch.setattr("layerbeam.transforms.storage.stores.is_installed", lambda package: True)
    error = refused("hdfs://host/e")
    assert "Beam cannot open hdfs:// here (" in error
    assert error.endswith("; give Beam's options --hdfs_host, --hdfs_port and --hdfs_user")


@pytest.mark.parametrize("ending", ["", ".zip"])
def test_cache_that_cannot_be_written(memory, tmp_path, monkeypatch, ending):
    upload(DATA / "hf_uncased", "memory://bucket/e")
    memory.stored["memory://bucket/e.zip"] = (1.0, b"never read")
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    error = refused(f"memory://bucket/e{ending}")
    assert f"cannot be fetched ([Errno 20] Not a directory: '{tmp_path}/file/layerbeam" in error
    assert f"XDG_CACHE_HOME names another place than {tmp_path}/file/layerbeam/encoders" in error


def test_pipeline_with_an_encoder_on_a_file_system(memory, workplace):
    workplace.write("corpus/a.txt", (DATA / "input.txt").read_bytes())
    upload(DATA / "google_uncased", "memory://bucket/models/google_uncased")
    for output, handle in (("here", str(DATA / "google_uncased")), ("there", "memory://bucket/models/google_uncased")):
        workplace.configure(encoder={"handle": handle}, output={"path": output})
        workplace.drive()
    here, there = workplace.rows(output="here"), workplace.rows(output="there")
    assert here.num_rows > 20
    assert there.equals(here)
    assert workplace.manifest("there")["encoder"]["handle"] == "memory://bucket/models/google_uncased"
    assert len(memory.opened) == 4
