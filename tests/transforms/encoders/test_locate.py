"""Encoders behind an https:// address."""

from __future__ import annotations

import errno
import gzip
import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from model_server import TFHUB, Answer, assert_not_kept, nobody, tar_of, zip_of
from repository import DATA
from weights import refused

from layerbeam.pipeline.cli.main import main
from layerbeam.transforms.encoders import EncoderError, open_encoder
from layerbeam.transforms.encoders.fetch.locate import locate

# tensorflow_hub leaves the connections open that its errors came from.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.usefixtures("cache", "collected"),
]


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


@pytest.mark.parametrize(
    ("handle", "shown"),
    [
        (
            "https://h/m.zip?X-Amz-Signature=hidden42",
            "https://h/m.zip: the address has `X-Amz-Signature`, a secret, which",
        ),
        (
            "https://h/m?sv=2024&sig=hidden42#part",
            "https://h/m: the address has `sig`, a secret, which the output would",
        ),
        ("HTTPS://me:hidden42@h/m.zip", "HTTPS://h/m.zip: the address has a password, which the output would name;"),
    ],
)
def test_an_address_with_a_secret_is_refused_without_it(handle, shown):
    with pytest.raises(EncoderError) as error:
        open_encoder(handle)
    assert str(error.value).startswith(shown)
    assert str(error.value).endswith("download the file and give its path")
    assert "hidden42" not in str(error.value)


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


def test_command_prints_json_only(server, model, capfd):
    server.answers["/model"] = Answer(model)
    handle = f"{server.address}/model"
    assert main(["encoder", handle, "--json"], version="test") == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["handle"] == handle
    assert f"Downloading {handle}" in err


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
    (folder / name.format(0, 2)).rename(folder / "variables/variables.data-00000-of-3000000000")
    server.answers["/many"] = Answer(tar_of(folder))
    assert "the download has no variables/variables.data-00001-of-3000000000" in refused(f"{server.address}/many")


def test_incomplete_tensorflow_hub_cache_is_fetched_again(server, model):
    handle = f"{server.address}/model"
    server.answers["/model"] = Answer(model)
    folder = Path(open_encoder(handle).folder)
    (folder / "variables" / "variables.data-00000-of-00001").unlink()
    assert "has no variables/variables.data-00000-of-00001" in refused(handle)
    assert open_encoder(handle).fingerprint == open_encoder(str(TFHUB)).fingerprint
    assert server.bodies() == ["/model", "/model"]


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        *(
            (name, tarfile.REGTYPE, f"Relative path {name!r} is invalid")
            for name in ("../x", "a/../../x", "../../../x")
        ),
        ("saved_model.pb", tarfile.SYMTYPE, "Unexpected object type in tar archive"),
    ],
)
def test_address_with_an_entry_that_would_lie_outside(server, tmp_path, name, kind, said):
    entry, stream = tarfile.TarInfo(name), io.BytesIO()
    entry.type, entry.linkname = kind, "/etc/passwd"
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        archive.addfile(entry, io.BytesIO())
    server.answers["/model"] = Answer(stream.getvalue())
    assert said in refused(f"{server.address}/model")
    assert_not_kept(tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.name == "x"] == []


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
