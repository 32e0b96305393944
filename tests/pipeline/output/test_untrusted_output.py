"""An untrusted output folder: nothing outside it is read as rows, written or deleted."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from architectures import write_encoder
from corpora import random_lines
from repository import DATA

import layerbeam


@pytest.fixture
def workplace(workplace):
    views = {"t": {"level": "text", "layers": [1]}, "w": {"level": "word_type", "layers": [0]}}
    workplace.finished({"a.txt": "\n".join(random_lines(20))}, views=views)
    workplace.write("precious.parquet", next((workplace.folder / "out/t").iterdir()).read_bytes())
    return workplace


def precious(workplace) -> bytes:
    return (workplace.folder / "precious.parquet").read_bytes()


@pytest.mark.parametrize("view", ["t", "w"])
@pytest.mark.parametrize("path", ["../precious.parquet", "t/../../precious.parquet"])
def test_a_part_elsewhere_is_not_read_and_its_block_is_done_again(workplace, path, view):
    files, before = workplace.files(), precious(workplace)
    parts = workplace.folder / "out/parts.jsonl"
    records = [json.loads(line) for line in parts.read_text().splitlines()]
    next(record for record in records if view in record["parts"])["parts"][view]["path"] = path
    parts.write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(ValueError, match=r"parts\.jsonl: cannot be read"):
        layerbeam.open_run("out")
    assert "parts.jsonl: cannot be read" in workplace.verify(status=2).err
    assert "parts.jsonl: cannot be read" in workplace.verify("--checksums", status=2).err
    workplace.show()
    workplace.drive()
    assert workplace.files() == files
    assert precious(workplace) == before


def damage(workplace, name: str, place: str, value: object) -> None:
    """Set an entry of a JSON file of the output folder, or remove it."""
    content = json.loads((workplace.folder / "out" / name).read_text())
    *above, last = place.split("/")
    entries = content
    for entry in above:
        entries = entries[entry]
    if value is None:
        del entries[last]
    else:
        entries[last] = value
    workplace.write(f"out/{name}", json.dumps(content))


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("views/t/columns/line", "jsonl", "no views.t of the right type"),
        ("views/t/vectors", ["layer_7"], "no views.t of the right type"),
        ("views/t/dtype", "float128", "no views.t.dtype of the right type"),
        ("views/t/width", 1 << 70, "no views.t.width of the right type"),
        ("encoder/handle", None, "no encoder.handle of the right type"),
        ("views/t/columns/line", "\ud800", "no views.t of the right type"),
    ],
)
def test_a_damaged_manifest_is_named_by_its_entry(workplace, place, value, message):
    damage(workplace, "manifest.json", place, value)
    with pytest.raises(ValueError, match=message):
        layerbeam.open_run("out")


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("views/t/level", None, "no views.t.level of the right type"),
        ("views/t/columns/line", "jsonl", "no views.t of the right type"),
        ("identity/views/t/keep_words", None, "no identity.views.t.keep_words of the right type"),
        ("identity/input/pair_field", ["x"], "no identity.input.pair_field of the right type"),
        ("encoder/do_lower_case", None, "no encoder.do_lower_case of the right type"),
        ("inputs/bytes", "1", "no inputs.bytes of the right type"),
        ("seconds", "fast", "no seconds of the right type"),
        ("counts", 0, "no counts of the right type"),
        ("stage_shares", {"read": []}, "no stage_shares.read of the right type"),
    ],
)
def test_a_damaged_record_is_named_by_its_entry(workplace, place, value, message):
    damage(workplace, "_runs/1.json", place, value)
    for error in (workplace.show(status=2).err, workplace.show("--json", status=2).err):
        assert "out: _runs/1.json is damaged: it has" in error
        assert message in error
    (workplace.folder / "out/_runs/1.json").unlink()
    workplace.show()


def test_a_column_that_no_part_has_is_an_error_of_the_part(workplace):
    damage(workplace, "manifest.json", "views/t/columns/other", "string")
    view = layerbeam.open_run("out").view("t")
    for read in (view.to_arrow, lambda: list(view.iter_batches()), lambda: view.to_arrow(["other"])):
        with pytest.raises(ValueError, match=r"out/t/.*\.parquet: cannot be read"):
            read()


@pytest.mark.parametrize("name", ["manifest.json", "_runs/1.json", "parts.jsonl"])
def test_a_file_nested_too_deep_is_damaged(workplace, name):
    files = workplace.files()
    workplace.write(f"out/{name}", '{"a":' * 100_000)
    workplace.show()
    workplace.drive()
    assert workplace.files() == files


def test_a_manifest_that_points_elsewhere_is_not_trusted(workplace):
    files, manifest = workplace.files(), workplace.manifest()
    manifest["views"]["../out/t"] = manifest["views"].pop("t")
    workplace.write("out/manifest.json", json.dumps(manifest))
    with pytest.raises(ValueError, match="names files that do not lie in the folder; do not trust it"):
        layerbeam.open_run("out")
    assert "names files that do not lie in the folder" in workplace.verify(status=2).err
    assert "names files that do not lie in the folder" in workplace.verify("--checksums", status=2).err
    workplace.drive()
    assert workplace.files() == files


@pytest.mark.parametrize(
    ("section", "change", "why"),
    [
        ("input", {"unit": "sentence", "sentences": "planted:split"}, "import and call the function planted:split"),
        ("encoder", {"handle": "hf://org/name"}, "fetch the encoder from hf://org/name"),
        ("encoder", {"handle": "HTTPS://localhost:9/m.tar.gz"}, "fetch the encoder from HTTPS://localhost:9"),
        ("encoder", {"handle": str(DATA / "tfhub_uncased")}, "a program that can read and write your files"),
    ],
)
def test_what_a_folder_names_is_opened_only_with_trust(workplace, monkeypatch, section, change, why):
    workplace.write("planted.py", "import os\nos.mkdir('ran')\nsplit = len\n")
    monkeypatch.syspath_prepend(str(workplace.folder))
    edit_settings(workplace, lambda settings: settings[section].update(change))
    opening = (["verify", "out"], ["report", "out", "--text", "a bank"], ["search", "out", "--text", "a bank"])
    for command in opening:
        error = workplace._call(*command, status=2).err
        assert why in error
        assert "or you trust who wrote it, add --trust" in error
    workplace.show()
    workplace._call("report", "out", status=0)
    workplace.verify("--checksums")
    layerbeam.open_run("out")
    assert not os.path.exists("ran")
    if "://" not in str(change):
        for command in opening:
            assert "what it was made with has changed" in workplace._call(*command, "--trust", status=2).err
        assert os.path.exists("ran") == (section == "input")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"type": "NFX"}, "is no normalizer: "),
        ([], "is no normalizer, or makes texts more than 64 times as long"),
        ({"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 99}, "is no normalizer, or makes texts"),
    ],
)
def test_a_normalizer_of_others_is_checked(workplace, content, why):
    write_encoder(workplace.folder / "model", "albert")
    words = {"w": {"level": "word", "layers": [1]}}
    workplace.prepare("a bank\n", encoder={"handle": str(workplace.folder / "model")}, views=words)
    workplace.drive("--output", "words")
    file = workplace.folder / "words/_normalizer.json"
    good = file.read_bytes()
    file.write_text(json.dumps(content))
    assert f"words/_normalizer.json: {why}" in workplace._call("report", "words", "--word", "bank", status=2).err
    workplace.drive("--output", "words")
    assert file.read_bytes() == good


def test_no_file_that_a_folder_names_is_read_for_keep_words(workplace):
    edit_settings(workplace, lambda settings: settings["views"]["t"].update(keep_words="/dev/stdin"))
    assert workplace.verify().out.endswith("pass\n")


def edit_settings(workplace, change) -> None:
    """Change the settings that the manifest and the record name."""
    for name in ("manifest.json", "_runs/1.json"):
        content = json.loads((workplace.folder / "out" / name).read_text())
        change(content["settings"])
        workplace.write(f"out/{name}", json.dumps(content))


def test_a_pipe_is_not_waited_for(workplace):
    part = next((workplace.folder / "out/t").iterdir())
    part.unlink()
    os.mkfifo(part)
    os.remove("corpus/a.txt")
    os.mkfifo("corpus/a.txt")
    assert (
        f"FAIL      t/{part.name} cannot be read: is not a regular file"
        in workplace.verify("--checksums", status=1).out
    )
    assert f"t/{part.name} is missing" in workplace.verify(status=1).out
    os.remove("out/manifest.json")
    os.mkfifo("out/manifest.json")
    workplace.show()
    assert "is not a regular file" in workplace.verify(status=1).err


def test_a_link_in_the_place_of_success_is_replaced_not_followed(workplace):
    before = precious(workplace)
    os.unlink("out/_SUCCESS")
    os.symlink("../precious.parquet", "out/_SUCCESS")
    os.unlink("out/manifest.json")
    workplace.drive()
    assert not os.path.islink("out/_SUCCESS")
    assert precious(workplace) == before


@pytest.mark.parametrize("name", ["../precious.parquet", "{folder}/precious.parquet", "..", "own/x"])
def test_documents_elsewhere_are_not_deleted(workplace, name):
    arguments = ["extract-features", "corpus", "docs", "-1", str(DATA / "hf_uncased"), "16", "8"]
    workplace._call(*arguments, status=0)
    path = workplace.folder / "docs/.layerbeam/documents.json"
    documents = json.loads(path.read_text())
    documents[name.format(folder=workplace.folder)] = {"file": "missing.txt", "bytes": 1}
    path.write_text(json.dumps(documents))
    before = precious(workplace)
    workplace._call(*arguments, "--prune-missing", status=0)
    assert precious(workplace) == before
    assert os.listdir("docs").count("a.jsonl") == 1


def test_names_and_texts_do_not_steer_the_terminal(workplace):
    workplace.write("corpus/\x1b[2Jred.txt", "a \x1b[31m line\n")
    os.mkfifo("corpus/\x1b]0;pipe")
    workplace.drive("--output", "steered", status=3)
    shown = workplace._call("show", "steered", status=0)
    assert "\x1b" not in shown.out
    assert r"problem   corpus/\x1b]0;pipe: is not a regular file" in shown.out


@pytest.mark.parametrize("name", ["_commits", "_runs", "rejects", "_word_types"])
def test_a_link_in_the_place_of_a_folder_of_the_run_is_refused(workplace, name):
    (workplace.folder / "victim").mkdir()
    thesis = workplace.write("victim/thesis.txt", "data")
    os.unlink("out/_SUCCESS")
    shutil.rmtree(f"out/{name}", ignore_errors=True)
    os.symlink("../victim", f"out/{name}")
    assert f"output.path: out/{name} is a link" in workplace.drive(status=2).err
    assert os.listdir("victim") == [thesis.name]


@pytest.mark.parametrize("path", ["\n/../../../precious", "../precious", "t/../../precious"])
def test_a_list_of_damaged_files_that_leads_elsewhere_deletes_nothing(workplace, path):
    kept = workplace.write("precious.json", "{}")
    os.makedirs("out/_commits/\n")
    workplace.write("out/_damaged.json", json.dumps([path]))
    workplace.drive()
    assert kept.exists()
