"""`layerbeam publish`, against a stand-in for the Hub on a loopback address."""

from __future__ import annotations

import fnmatch
import re

import pytest
import yaml

import layerbeam
from layerbeam.pipeline.dataset.view import View
from layerbeam.pipeline.publish import card

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # of huggingface_hub's uploads

VIEWS = {
    "tokens": {"level": "token", "layers": [-1]},
    "texts": {"level": "text", "layers": [1, 2], "dtype": "int8"},
    "lines": {"level": "text", "layers": [2], "format": "jsonl", "compress": False},
    "none": {"level": "word", "layers": [2], "keep_words": ["absent"]},
    "records": {"level": "text", "layers": [2], "format": "tfrecord"},
}
CORPUS = {"a.txt": "A letter.\nAnother one.\n", "b.txt": "The third.\n"}


@pytest.fixture
def finished(workplace, hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", hub.token)
    workplace.finished(CORPUS, views=VIEWS)
    (workplace.folder / "out" / "report.html").write_bytes(b"not published")
    return workplace


def published(hub) -> dict[str, bytes]:
    return {name: data for name, data in hub.datasets["org/out"].files.items() if name != ".gitattributes"}


def front_of(card: bytes | str) -> dict[str, object]:
    text = card if isinstance(card, str) else card.decode()
    (front,) = re.findall(r"\A---\n(.*?)\n---\n", text, re.DOTALL)
    return yaml.safe_load(front)


def test_a_run_is_published_and_opens_from_the_hub(finished, hub, tmp_path):
    done = finished._call("publish", "out", "org/out", status=0)
    out = finished.folder / "out"
    here = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    expected = {
        name: data
        for name, data in here.items()
        if name.split("/")[0] in VIEWS or name in ("manifest.json", "parts.jsonl", "_SUCCESS", "README.md")
    }
    assert len(expected) == 13
    assert published(hub) == expected
    assert hub.datasets["org/out"].private
    assert done.out == f"card: out/README.md\npublished: {hub.url}/datasets/org/out (13 files, 13 of them now)\n"

    configs = front_of(expected["README.md"])["configs"]
    found = {one["config_name"]: fnmatch.filter(expected, one["data_files"]) for one in configs}
    assert {name: [path.split("/")[0] for path in paths] for name, paths in found.items()} == {
        "tokens": ["tokens"] * 2,
        "texts": ["texts"] * 2,
    }
    text = expected["README.md"].decode()
    for words in (
        "| `token_index` | `int32` | index of the token in the text; 0 is [CLS] |",
        "| `layer_1_scale` | `float` | number by which the codes of the vector are multiplied |",
        "hf_uncased`, 3 layers of 64, computed by layerbeam",
        "| input | `corpus/*` |",
        "its licence: unknown; look at its page",
        finished.manifest()["fingerprint"],
        'load_dataset("org/out", "texts", split="train")',
        "@misc{org_out,",
    ):
        assert words in text

    copy = tmp_path / "copy"
    for name, data in published(hub).items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(data)
    for place in (str(copy), "hf://datasets/org/out"):
        run = layerbeam.open_run(place)
        assert {name: len(run[name]) for name in run} == {"tokens": 17, "texts": 3, "lines": 3, "none": 0, "records": 3}
        assert run["tokens"].to_arrow() == layerbeam.open_run(str(out))["tokens"].to_arrow()


def test_what_a_later_run_changed_is_published(finished, hub):
    finished._call("publish", "out", "org/out", "--public", status=0)
    assert not hub.datasets["org/out"].private
    before = published(hub)
    hub.datasets["org/out"].commit({**hub.datasets["org/out"].files, "images/logo.png": b"of the owner"})
    finished.write("corpus/b.txt", "Changed.\n")
    finished.run()
    hub.calls.clear()
    done = finished._call("publish", "out", "org/out", "--public", "--json", status=0)
    after = published(hub)
    assert after.pop("images/logo.png") == b"of the owner"
    assert set(after) != set(before)
    assert {name for name in after if "/" in name} == {
        part.path for name in VIEWS for part in layerbeam.open_run("out").view(name).parts
    } | {"none/empty.parquet"}
    assert '"deleted": 4' in done.out
    assert sum(call.startswith("PUT") for call in hub.calls) == 2
    assert "b.txt" in layerbeam.open_run("hf://datasets/org/out")["tokens"].to_arrow()["file"][-1].as_py()


@pytest.mark.parametrize(
    ("formats", "configs"),
    [
        ({"a": "jsonl", "b": "tfrecord"}, [{"config_name": "a", "data_files": "a/*.jsonl.gz"}]),
        ({"a": "jsonl", "b": "parquet"}, [{"config_name": "b", "data_files": "b/*.parquet"}]),
        ({"a": "tfrecord"}, []),
    ],
)
def test_the_card_has_configurations_of_one_format(workplace, formats, configs):
    views = {name: {"level": "text", "layers": [2], "format": format_} for name, format_ in formats.items()}
    workplace.finished(CORPUS, views=views)
    workplace._call("publish", "out", status=0)
    text = (workplace.folder / "out" / "README.md").read_text()
    assert front_of(text)["configs"] == configs
    assert ("load_dataset(" in text) == bool(configs)


@pytest.mark.parametrize("fault", ["reset", 503, 429])
def test_a_publication_that_broke_off_is_resumed(finished, hub, fault, monkeypatch):
    monkeypatch.setattr("layerbeam.pipeline.publish.publish._FILES_AT_ONCE", 1)
    hub.faults.planned_at = {"/commit/main": [None, None, fault]}  # the first commits are of the normalizer and a part
    done = finished._call("publish", "out", "org/out", status=1)
    assert "org/out: " in done.err
    assert "; run the same command again to resume" in done.err
    uploaded = len(hub.large)
    assert uploaded
    assert not {"manifest.json", "_SUCCESS"} & set(published(hub))
    hub.calls.clear()
    finished._call("publish", "out", "org/out", status=0)
    assert sum(call.startswith("PUT") for call in hub.calls) == len(hub.large) - uploaded
    assert len(layerbeam.open_run("hf://datasets/org/out")["tokens"]) == 17


def test_readers_find_rows_until_the_last_commit(finished, hub, monkeypatch):
    """Old parts are deleted with the commit that has the new index."""
    monkeypatch.setattr("layerbeam.pipeline.publish.publish._FILES_AT_ONCE", 1)
    finished._call("publish", "out", "org/out", status=0)
    old = published(hub)
    finished.write("corpus/b.txt", "Changed.\n")
    finished.drive()
    before = len(hub.datasets["org/out"].commits)
    finished._call("publish", "out", "org/out", status=0)
    *between, last = list(hub.datasets["org/out"].commits.values())[before:]
    assert len(between) > 2
    assert all(old.keys() <= files.keys() for files in between)
    assert not old.keys() <= last.keys()


def test_a_bad_token_and_a_name_that_is_not_ones_own(finished, hub, monkeypatch):
    done = finished._call("publish", "out", "other/out", status=2)
    assert "other/out: " in done.err
    assert "answers 403: You don't have the rights to create a dataset under the namespace other/out" in done.err
    for token, reason in (
        ("hf_bad", "Invalid credentials in Authorization header"),
        ("", "Invalid username or password."),
    ):
        monkeypatch.setenv("HF_TOKEN", token)
        done = finished._call("publish", "out", "org/out", status=2)
        assert f"answers 401: {reason}; check the token in HF_TOKEN" in done.err
    assert not hub.datasets
    assert "org out: is not of the form org/name" in finished._call("publish", "out", "org out", status=2).err


def test_a_run_that_is_not_finished_is_refused(finished, hub):
    (finished.folder / "out" / "_SUCCESS").unlink()
    done = finished._call("publish", "out", "org/out", status=2)
    assert "out: the run is not finished (no _SUCCESS in it" in done.err
    assert "holds no layerbeam run" in finished._call("publish", "corpus", "org/out", status=2).err
    assert not hub.datasets
    assert not (finished.folder / "out" / "README.md").exists()


def test_a_damaged_run_is_refused(finished, hub):
    next((finished.folder / "out" / "tokens").iterdir()).write_bytes(b"short")
    done = finished._call("publish", "out", "org/out", status=2)
    assert re.search(r"out: tokens/.*; run its configuration again, which repairs it", done.err)
    assert not hub.datasets


def test_other_bytes_than_those_listed_are_not_sent(finished, hub):
    part = next((finished.folder / "out" / "tokens").iterdir())
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    done = finished._call("publish", "out", "org/out", status=2)
    assert f"out: tokens/{part.name} has other bytes than the index lists" in done.err
    assert f"tokens/{part.name}" not in published(hub)


def test_a_dataset_that_is_public_already(finished, hub):
    finished._call("publish", "out", "org/out", "--public", status=0)
    assert not hub.datasets["org/out"].private
    before = published(hub)
    assert "org/out: is public already; give --public" in finished._call("publish", "out", "org/out", status=2).err
    assert published(hub) == before


def test_the_card_alone_and_a_card_of_ones_own(finished):
    out = finished.folder / "out"
    before = finished.files()
    assert finished._call("publish", "out", status=0).out == "card: out/README.md\n"
    card = (out / "README.md").read_text()
    assert {name for name, sha256 in finished.files().items() if before.get(name) != sha256} == {"README.md"}
    assert "nothing to do" in finished.run().err
    assert finished._call("publish", "out", status=0).status == 0
    assert (out / "README.md").read_text() == card
    (out / "README.md").write_text("my own")
    done = finished._call("publish", "out", status=0)
    assert "out/README.md: is kept: it is not a card that layerbeam wrote" in done.err
    assert (out / "README.md").read_text() == "my own"


def test_the_licence_in_the_folder_of_the_encoder(tmp_path):
    from layerbeam.pipeline.publish.card import _licence

    assert _licence("minilm") == "Apache-2.0"
    unknown = "unknown; look at its page"
    fronts = {
        "license: mit\n": "mit",
        "license: cc-by-nc-4.0\n": "cc-by-nc-4.0",
        "a: [\n": unknown,
        "license: [mit]\n": unknown,
        'license: "mit |\\n\\n<img src=x>\\n[click](javascript:x)"\n': unknown,
        "license: " + "[" * 30_000 + "\n": unknown,
    }
    for front, licence in fronts.items():
        (tmp_path / "README.md").write_text(f"---\n{front}---\n# Encoder\n")
        assert _licence(str(tmp_path)) == licence


def test_a_view_of_very_many_files_has_folders(workplace, hub, monkeypatch, tmp_path):
    """The Hub takes 10,000 files in a folder; which one a file is in depends on its bytes alone."""
    monkeypatch.setenv("HF_TOKEN", hub.token)
    monkeypatch.setattr(card, "MOST_FILES", 5)
    lines = [f"the river number {number} and the bank" for number in range(40)]
    views = {"tokens": VIEWS["tokens"], "texts": VIEWS["texts"], "types": {"level": "word_type", "layers": [1]}}
    workplace.prepare("\n".join(lines), views=views, input={"slice_bytes": 200})
    workplace.drive(arithmetic=True)
    whole = layerbeam.open_run("out")
    assert len(whole["tokens"].parts) > 5 * 1 > len(whole["types"].parts)
    workplace._call("publish", "out", "org/out", status=0)
    there = published(hub)
    parts = whole["tokens"].parts
    expected = {f"tokens/sha256.{part.sha256[0]}/{part.path.split('/')[1]}" for part in parts}
    assert {name for name in there if name.startswith("tokens/")} == expected
    assert {name for name in there if name.startswith("types/")} == {part.path for part in whole["types"].parts}
    configs = {one["config_name"]: one["data_files"] for one in front_of(there["README.md"])["configs"]}
    assert configs == {"tokens": "tokens/*/*.parquet", "texts": "texts/*/*.parquet", "types": "types/*.parquet"}
    assert set(fnmatch.filter(there, configs["tokens"])) == expected

    for name, data in there.items():
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / name).write_bytes(data)
    for place in (str(tmp_path / "copy"), "hf://datasets/org/out"):
        run = layerbeam.open_run(place)
        assert [run.check_part(part) for part in run["tokens"].parts] == [None] * len(parts)
        for name in views:
            assert run[name].to_arrow() == whole[name].to_arrow()
        assert run.block_of(run["tokens"].parts[3]).name == whole.block_of(parts[3]).name
    both = layerbeam.open_run([str(tmp_path / "copy"), "out"])
    assert both["tokens"].to_arrow(["folder"])["folder"].unique().to_pylist() == [str(tmp_path / "copy"), "out"]

    workplace.write("corpus/a.txt", "\n".join([*lines[:-1], "an edited line"]))
    workplace.drive(arithmetic=True)
    hub.calls.clear()
    done = workplace._call("publish", "out", "org/out", "--json", status=0)
    assert 0 < sum(call.startswith("PUT") for call in hub.calls) < 8
    assert '"deleted": 0' not in done.out
    assert (
        layerbeam.open_run("hf://datasets/org/out")["texts"].to_arrow() == layerbeam.open_run("out")["texts"].to_arrow()
    )


@pytest.mark.parametrize(("files", "digits"), [(0, 0), (5000, 0), (5001, 1), (80_000, 1), (80_001, 2), (1_280_001, 3)])
def test_folders_have_at_most_five_thousand_files(files, digits):
    view = View("out", "texts", {}, range(files))
    assert card.digits_of_folders(view) == digits
