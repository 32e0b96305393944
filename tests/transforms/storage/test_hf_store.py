"""hf://datasets/... through huggingface_hub, against a stand-in for the Hub on a loopback address."""

from __future__ import annotations

import hashlib
import re
import time

import hub as hub_module
import pytest

from layerbeam.transforms import storage

FILES = {
    "README.md": b"# Data\n",
    "data/a.jsonl": b"0123456789" * 3,
    "data/b.parquet": b"PAR1 bytes PAR1",
    "data/c d%.jsonl": b"blank",
    "data/more/e.parquet": b"deep",
    "empty.txt": b"",
}


@pytest.fixture
def no_pauses(monkeypatch) -> None:
    """Requests are repeated at once."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


@pytest.fixture
def commit(hub) -> str:
    return hub.dataset("org/data").commit(FILES)


def test_files_are_listed_and_read_at_a_commit(hub, commit):
    root = f"hf://datasets/org/data@{commit}"
    assert storage.pin("hf://datasets/org/data/data/*.parquet") == f"{root}/data/*.parquet"
    assert storage.pin("hf://datasets/org/data@main/a@b.txt") == f"{root}/a@b.txt"
    assert storage.pin(f"{root}/x") == f"{root}/x"
    found = storage.find_files([f"{root}/data/*.parquet", f"{root}/**.txt", f"{root}/none/*"])
    assert [(file.path.removeprefix(root), file.size) for file in found] == [("/data/b.parquet", 15), ("/empty.txt", 0)]
    assert [file.version for file in found] == [
        hashlib.sha256(FILES["data/b.parquet"]).hexdigest(),
        "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391",
    ]
    assert [storage.stat_file(file.path) for file in found] == found
    assert storage.list_folder(f"{root}/data") == {"a.jsonl": 30, "b.parquet": 15, "c d%.jsonl": 5}
    assert {name: storage.read_bytes(f"{root}/{name}") for name in FILES} == FILES
    hub.downloaded = 0
    with storage.open_binary(f"{root}/data/b.parquet", end=4) as file:
        assert (file.read(4), file.seek(-4, 2), file.read(), file.read(1)) == (b"PAR1", 11, b"PAR1", b"")
    assert hub.downloaded == 8
    assert storage.stat_file(f"{root}/none").problem == "No such file"
    with pytest.raises(FileNotFoundError):
        storage.read_bytes(f"{root}/none")


def test_a_branch_a_tag_and_a_pull_request(hub, commit):
    other = hub.dataset("org/data").commit({"a.txt": b"other"}, branch="refs/convert/parquet")
    for name in ("refs/convert/parquet", "refs%2Fconvert%2Fparquet"):
        path = f"hf://datasets/org/data@{name}/a.txt"
        assert storage.read_bytes(path) == b"other"
        assert storage.pin(path) == f"hf://datasets/org/data@{other}/a.txt"


def test_a_branch_whose_name_begins_like_a_commit(hub, commit):
    other = hub.dataset("org/data").commit({"a.txt": b"other"}, branch=f"{commit}-fixed")
    path = f"hf://datasets/org/data@{commit}-fixed/a.txt"
    assert storage.pin(path) == f"hf://datasets/org/data@{other}/a.txt"


def test_a_server_that_gives_whole_files(hub, commit, monkeypatch):
    """A proxy, for example, that does not know ranges."""
    monkeypatch.setattr("hub._ranged", lambda hub, data, headers: (200, {}, data))
    for name, expected in (("a.jsonl", b"45678901234"), ("b.parquet", b" bytes PAR1")):
        with storage.open_binary(f"hf://datasets/org/data@{commit}/data/{name}", end=15) as file:
            file.seek(4)
            assert file.read(11) == expected


@pytest.mark.parametrize("fault", ["cut", "lost", "reset", 429, 503])
def test_a_request_that_fails_is_repeated(hub, commit, no_pauses, fault):
    path = f"hf://datasets/org/data@{commit}/data/b.parquet"
    for ask in (storage.stat_file, storage.read_bytes, lambda path: storage.find_files([path.replace("/b", "/?")])):
        expected = ask(path)
        hub.faults.planned = [fault, None, fault]
        assert ask(path) == expected
    assert sum(hub.faults.happened.values()) >= 3


def test_the_hub_goes_on_failing(hub, commit, no_pauses):
    path = f"hf://datasets/org/data@{commit}/data/b.parquet"
    hub.faults.planned = [429] * 20
    assert storage.stat_file(path).problem == (
        f"{hub.url} answers 429: planned; wait some minutes, or give a token in HF_TOKEN, which may ask more often"
    )
    hub.faults.planned = ["reset"] * 20
    with pytest.raises(OSError, match="cannot be reached"):
        storage.read_bytes(path)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"size": 1 << 60}, "the Hub says that its size is 1152921504606846976"),
        ({"size": "x"}, "the Hub says that its size is 'x'"),
        ({"size": -1}, "the Hub says that its size is -1"),
        ({"oid": None, "type": None}, "No such file"),
    ],
)
def test_what_no_hub_says(hub, commit, monkeypatch, changed, reason):
    entry = hub_module._entry
    monkeypatch.setattr(hub_module, "_entry", lambda *given: entry(*given) | changed)
    path = f"hf://datasets/org/data@{commit}/data/b.parquet"
    assert storage.stat_file(path).problem == reason


def test_a_branch_without_a_commit(hub, commit, monkeypatch):
    answer = hub.answer
    for body, reason in (("{}", "KeyError: 'sha'"), ("[]", "TypeError"), ('{"sha": "x"}', "the commit is 'x'")):
        monkeypatch.setattr(
            hub,
            "answer",
            lambda *given, body=body: (200, {}, body.encode()) if "/revision/" in given[1] else answer(*given),
        )
        with pytest.raises(OSError, match=re.escape(reason)):
            storage.pin("hf://datasets/org/data/a.jsonl")


def test_what_is_not_there_or_not_allowed(hub, commit, monkeypatch):
    hub.dataset("org/gated").commit(FILES)
    hub.dataset("org/secret").private = True
    hub.dataset("org/secret").commit(FILES)
    page = f"{hub.url}/datasets/org"
    missing = "there is no {} for this token; check the name, and give a token that may read it in HF_TOKEN"
    missing += "; the form is hf://datasets/org/name@revision/path, with an owner, such as rajpurkar/squad for squad"
    for path, reason in {
        "org/none/a": missing.format(f"{page}/none"),
        "org/secret/a": missing.format(f"{page}/secret"),
        "org/data@v9/a": f"{page}/data has no branch, tag or commit v9",
        "org/gated/a": f"access is restricted: ask for it at {page}/gated, and give your token in HF_TOKEN",
    }.items():
        for ask in (storage.pin, storage.read_bytes, lambda path: storage.find_files([f"{path}*"])):
            with pytest.raises(OSError, match=r".") as raised:
                ask(f"hf://datasets/{path}")
            assert reason in storage.reason_of(raised.value)
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert storage.read_bytes("hf://datasets/org/secret/data/a.jsonl") == FILES["data/a.jsonl"]
    monkeypatch.setenv("HF_TOKEN", "hf_bad")
    with pytest.raises(PermissionError, match="answers 401: Invalid credentials in Authorization header; check the t"):
        storage.pin("hf://datasets/org/data/a")


@pytest.mark.parametrize(
    "path", ["hf://org/name/a", "hf://datasets/org", "hf://datasets/org/name", "hf://datasets/a@b/"]
)
def test_other_paths_are_refused(path):
    pytest.importorskip("huggingface_hub")
    assert storage.unsupported_reason(path) == "is not of the form hf://datasets/org/name@revision/path"
    with pytest.raises(OSError, match="is not of the form hf://datasets/org/name@revision/path"):
        storage.pin(path)


def test_the_branch_of_converted_files(hub):
    converted = hub.dataset("org/data").commit(FILES, "refs/convert/parquet")
    assert storage.pin("hf://datasets/org/data@~parquet/data/*") == f"hf://datasets/org/data@{converted}/data/*"


@pytest.mark.parametrize(
    ("page", "path"),
    [
        ("https://huggingface.co/datasets/org/name/resolve/main/data/a.csv", "org/name@main/data/a.csv"),
        (
            "https://hf.co/datasets/org/name/blob/refs/convert/parquet/a/0.parquet?download=true",
            "org/name@refs/convert/parquet/a/0.parquet",
        ),
        ("https://huggingface.co/datasets/org/name/", "org/name/*.parquet"),
        ("http://www.huggingface.co/datasets/org/name/tree/v1", "org/name@v1/*.parquet"),
    ],
)
def test_pages_of_the_hub_are_named_as_paths(page, path):
    assert storage.unsupported_reason(page) == f"is a page of the Hub; did you mean hf://datasets/{path}?"


def test_a_name_that_no_dataset_has(hub):
    with pytest.raises(OSError, match=r"Cannot have -- or \.\. in repo_id"):
        storage.find_files(["hf://datasets/org/a--b/*"])


def test_nothing_is_written(hub):
    folder, refusal = (
        "hf://datasets/org/data",
        "the Hub is not written to by a run; give a folder, and then run: layerb",
    )
    with pytest.raises(OSError, match=refusal):
        storage.create_if_absent(f"{folder}/a.txt", b"a")
    with pytest.raises(OSError, match=refusal):
        storage.delete_files(folder, ["a.txt"])
    with pytest.raises(OSError, match=refusal), storage.write_atomically(f"{folder}/a.txt") as file:
        file.write(b"a")
