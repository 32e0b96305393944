"""`layerbeam check`: each mistake of another engine is named, and what is equal is not accused."""

from __future__ import annotations

import base64
import json
import re
import shutil
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from dense import dense_in_numpy, encoder_with_dense
from embedding_server import Engine, serve
from model_server import nobody
from repository import DATA
from safetensors.numpy import load_file, save_file
from saved_models import save_bert

import layerbeam

HANDLE = str(DATA / "hf_uncased")
ENCODER = {"handle": HANDLE, "prompt": "passage: ", "query_prompt": "query: ", "max_seq_length": 100}
VIEW = {"level": "text", "layers": [-1], "pooling": "mean", "normalize": True}
RIGHT = Engine(HANDLE, prompt="passage: ")
RANDOM = np.random.default_rng(0)
ROTATION = np.linalg.qr(RANDOM.normal(size=(64, 64)))[0]


def bfloat16(vectors: np.ndarray) -> np.ndarray:
    return vectors.astype(ml_dtypes.bfloat16).astype(np.float64)


def noisy(distance: float) -> Any:
    noise = np.random.default_rng(1).normal(size=(5, 64))
    noise *= distance / np.linalg.norm(noise, axis=1, keepdims=True)
    return lambda vectors: vectors + noise


def codes(vectors: np.ndarray) -> np.ndarray:
    return np.rint(vectors / np.abs(vectors).max(axis=1, keepdims=True) * 127)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture
def check(workplace):
    """What `layerbeam check out --json` prints for an engine behind a server."""

    def run(engine: Any, *arguments: str, status: int, path: str = "") -> dict[str, Any]:
        with serve(engine) as url:
            printed = workplace._call("check", "out", "--json", "--url", url + path, *arguments, status=status)
        found = json.loads(printed.out)
        assert found["equal"] is (status == 0)
        return found

    return run


def finish(workplace: Any, view: dict[str, Any] = VIEW, encoder: dict[str, Any] = ENCODER) -> None:
    workplace.finished("the bank\n", encoder=encoder, views={"texts": view})


def differences(found: dict[str, Any]) -> list[tuple[str, str]]:
    (column,) = found["columns"]
    return [(one["kind"], one["text"]) for one in column["differences"]]


@pytest.mark.parametrize("path", ["", "/v1/embeddings", "/embed"])
def test_the_right_engine_is_equal(workplace, check, path):
    finish(workplace)
    found = check(RIGHT, status=0, path=path)
    (column,) = found["columns"]
    assert (column["view"], column["column"], column["differences"]) == ("texts", "layer_3", [])
    assert 0 < column["largest"] <= 3e-6
    assert found["notes"] == []


MISTAKES = {
    "the queries' prompt": (
        replace(RIGHT, prompt="query: "),
        [("query prompt", "prompt 'query: ', that of queries, instead of 'passage: '")],
    ),
    "no prompt": (replace(RIGHT, prompt=""), [("prompt", "no prompt instead of 'passage: '")]),
    "cls": (replace(RIGHT, pooling="cls"), [("pooling", "pooling cls instead of mean")]),
    "last": (replace(RIGHT, pooling="last"), [("pooling", "pooling last instead of mean")]),
    "max": (replace(RIGHT, pooling="max"), [("pooling", "pooling max instead of mean")]),
    "pooler": (replace(RIGHT, pooling="pooler"), [("pooling", "the pooled output instead of pooling mean")]),
    "no special tokens": (
        replace(RIGHT, special_tokens=False),
        [("special tokens", "pooling without special tokens, and the run's is with them")],
    ),
    "another layer": (replace(RIGHT, layer=2), [("layer", "layer 2 instead of 3")]),
    "no cut": (replace(RIGHT, max_seq_length=128), [("length", "texts cut off after 128 tokens instead of 100")]),
    "case": (replace(RIGHT, lower=False), [("case", "texts not lower-cased, and the run's are")]),
    "a prefix": (
        replace(RIGHT, after=lambda vectors: vectors[:, :16]),
        [("truncated", "the first 16 values only, of 64")],
    ),
    "a prefix at unit length": (
        replace(RIGHT, after=lambda vectors: unit(vectors[:, :16])),
        [("truncated", "the first 16 values only, of 64, scaled to unit length again")],
    ),
    "bfloat16": (replace(RIGHT, after=bfloat16), [("noise", "values rounded to bfloat16, off by 0.00")]),
    "codes": (
        replace(RIGHT, after=codes),
        [("scale", "not scaled to unit length"), ("noise", "values rounded to int8, off by 0.0")],
    ),
    "products of bfloat16": (
        replace(RIGHT, after=noisy(0.01)),
        [("noise", "noise as of products in bfloat16, off by 0.01 of")],
    ),
    "products of int8": (
        replace(RIGHT, after=noisy(0.15)),
        [("noise", "noise as of products in int8, or another revision of the model, off by 0.")],
    ),
    "another model": (
        replace(RIGHT, after=lambda vectors: vectors @ ROTATION),
        [
            (
                "model",
                "another model, or a prompt unknown here: the vectors are near those of no prompt, pooling or layer of",
            )
        ],
    ),
    "another width": (
        replace(RIGHT, after=lambda vectors: vectors[:, 16:48]),
        [("model", "another model: the vectors have 32 values, and the run's 64")],
    ),
    "another order": (
        replace(RIGHT, after=lambda vectors: vectors[::-1]),
        [("order", "the vectors come in another order than the texts")],
    ),
    "two mistakes": (
        replace(RIGHT, pooling="cls", prompt="", normalize=False),
        [
            ("prompt", "no prompt instead of 'passage: '"),
            ("pooling", "pooling cls instead of mean"),
            ("scale", "not scaled to unit length, and the run's are (normalize)"),
        ],
    ),
    "a mistake and noise": (
        replace(RIGHT, special_tokens=False, after=bfloat16),
        [
            ("special tokens", "pooling without special tokens, and the run's is with them"),
            ("noise", "values rounded to bfloat16"),
        ],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_named(workplace, check, mistake):
    finish(workplace)
    engine, expected = MISTAKES[mistake]
    found = differences(check(engine, status=1))
    assert [kind for kind, _ in found] == [kind for kind, _ in expected]
    for (_, text), (_, start) in zip(found, expected, strict=True):
        assert text.startswith(start)


@pytest.mark.parametrize("normalize", [True, False])
def test_vectors_of_another_length_are_equal_up_to_scale(workplace, check, normalize):
    finish(workplace, VIEW | {"normalize": normalize})
    found = check(replace(RIGHT, normalize=not normalize), status=0)
    scaled = "not scaled to unit length, and the run's are (normalize)"
    expected = scaled if normalize else "scaled to unit length, and the run's are not (normalize)"
    assert differences(found) == [("scale", expected)]
    found = check(replace(RIGHT, normalize=normalize, after=lambda vectors: 3 * vectors), status=0)
    assert differences(found) == [("scale", scaled if normalize else "3 times as long")]


def test_an_engine_of_queries_has_their_prompt(workplace, check):
    finish(workplace)
    queries = replace(RIGHT, prompt="query: ")
    assert differences(check(queries, "--as-query", status=0)) == []
    found = check(RIGHT, "--as-query", status=1)
    assert differences(found) == [("prompt", "the prompt of documents instead of that of queries")]
    found = check(replace(queries, pooling="cls"), "--as-query", status=1)
    assert differences(found) == [("pooling", "pooling cls instead of mean")]


def test_a_truncated_view_and_an_engine_that_gives_all_values(workplace, check):
    finish(workplace, VIEW | {"truncate_dim": 16})
    right = replace(RIGHT, normalize=False, after=lambda vectors: unit(vectors[:, :16]))
    assert differences(check(right, status=0)) == []
    found = differences(check(RIGHT, status=1))
    assert found == [("not truncated", "64 values, and the run's 16, the first of these: not cut off (truncate_dim)")]


def test_an_engine_without_the_dense_module(workplace, check):
    weights = encoder_with_dense(workplace.folder / "model")
    encoder = {"handle": "model", "max_seq_length": 40}
    finish(workplace, VIEW | {"dense": ["2_Dense"]}, encoder)
    plain = Engine(str(workplace.folder / "model"), max_seq_length=40, normalize=False)

    def with_dense(texts: Any) -> Any:
        return unit(dense_in_numpy(np.array(plain(texts)), weights[0], "Tanh")).tolist()

    assert differences(check(with_dense, status=0)) == []
    assert ("dense", "without the dense modules 2_Dense") in differences(check(plain, status=1))


def test_pairs_chunks_and_fields_of_the_input_do_not_matter(workplace, check):
    """Canary texts are texts alone, whatever the input is."""
    record = {"key": "a", "text": "The bank of the river. Money.", "more": "the end", "year": 1}
    given = {"format": "jsonl", "id_field": "key", "keep_fields": {"year": "int64"}}
    for settings in ({"pair_field": "more"}, {"unit": "chunk", "chunk": {"tokens": 24, "overlap": 4}}):
        workplace.prepare(
            {"a.jsonl": json.dumps(record)}, input=given | settings, encoder=ENCODER, views={"texts": VIEW}
        )
        workplace.drive("--output", "_".join(settings))
        shutil.rmtree("out", ignore_errors=True)
        shutil.move("_".join(settings), "out")
        assert differences(check(RIGHT, status=0)) == []


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_number_types_of_files_do_not_matter(workplace, check, dtype):
    finish(workplace, VIEW | {"dtype": dtype, "format": "jsonl" if dtype == "int8" else "parquet"})
    assert differences(check(RIGHT, status=0)) == []


def test_the_encoder_here_and_a_changed_one(workplace):
    shutil.copytree(HANDLE, workplace.folder / "model")
    views = {"texts": VIEW, "all": {"level": "text", "layers": "all"}, "tokens": {"level": "token", "layers": [1]}}
    workplace.finished("the bank\n", encoder=ENCODER | {"handle": "model"}, views=views)
    printed = workplace._call("check", "out", status=0).out
    assert re.fullmatch(
        r"out: all layer_0, all layer_1, all layer_2, all layer_3 and 1 more: equal \(5 texts by model, here: largest "
        r"difference 0\.0e\+00 of a vector's length, smallest cosine 1\.000000\)\n",
        printed,
    )
    assert workplace._call("check", "out", "--quiet", "--view", "all", "--layer", "2", status=0).out == ""
    weights = load_file("model/model.safetensors")
    rolled = {name: np.roll(values, 7, axis=0) for name, values in weights.items() if values.ndim == 2}
    save_file(weights | rolled, "model/model.safetensors")
    printed = workplace._call("check", "out", "--view", "texts", status=1).out.splitlines()
    assert printed[0].startswith("out: texts layer_3: DIFFERS: another model, or a prompt")
    assert printed[1].startswith("note      the encoder's files or the versions have changed since the run")


def test_a_function_of_python(workplace, monkeypatch):
    finish(workplace)
    workplace.write(
        "mine.py",
        "from embedding_server import Engine\n"
        f"right = Engine({HANDLE!r}, prompt='passage: ')\n"
        "def one(texts): return [[1.0]]\n"
        "def fails(texts): raise RuntimeError('no model')\n",
    )
    assert ": equal (5 texts by mine:right: " in workplace._call("check", "out", "--python", "mine:right", status=0).out
    for name, message in (
        ("mine:one", "--python mine:one: gave an array [1, 1]; it must give 5 vectors of equal width"),
        ("mine:fails", "--python mine:fails: RuntimeError: no model; give module:function"),
        ("mine:other", "AttributeError"),
        ("mine", "--python mine: "),
        ("nothing:x", "ModuleNotFoundError"),
    ):
        assert message in workplace._call("check", "out", "--python", name, status=2).err


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([], "gave"),
        ([["a"]] * 5, "gave"),
        ([[float("nan")] * 64] * 5, "of finite numbers"),
        ([[1.0], [1.0, 2.0], [1.0], [1.0], [1.0]], "vectors of equal width"),
    ],
)
def test_answers_that_are_no_vectors_are_refused(workplace, answer, message):
    finish(workplace)
    with serve(lambda texts: answer) as url:
        assert message in workplace._call("check", "out", "--url", f"{url}/embed", status=2).err


def test_servers_that_do_not_answer(workplace):
    finish(workplace)
    with serve(RIGHT, status=413) as url:
        error = workplace._call("check", "out", "--url", url, status=2).err
    assert f"--url {url}/v1/embeddings: status 413: " in error
    assert "input 4 is too long" in error
    assert "refused" in workplace._call("check", "out", "--url", nobody(), status=2).err
    for url in ("file:///etc/passwd", "localhost:80", "ftp://a/b"):
        assert "give http://HOST:PORT/v1/embeddings" in workplace._call("check", "out", "--url", url, status=2).err


def test_without_the_encoder_only_the_manifest_is_compared(workplace, check):
    shutil.copytree(HANDLE, workplace.folder / "model")
    finish(workplace, encoder=ENCODER | {"handle": "model"})
    shutil.rmtree(workplace.folder / "model")
    assert differences(check(RIGHT, status=0)) == []
    found = check(replace(RIGHT, pooling="cls"), status=1)
    assert [kind for kind, _ in differences(found)] == ["model"]
    (note,) = found["notes"]
    assert note.startswith("compared with the manifest only; to say more this needs the encoder of the run: ")


def test_a_saved_model(workplace, check):
    save_bert(workplace.folder / "saved")
    encoder = {"handle": "saved", "max_seq_length": 32, "engine": "savedmodel"}
    workplace.prepare("the bank\n", encoder=encoder, views={"texts": VIEW})
    workplace.drive()
    vectors = layerbeam.open_run("out").encode(["x"], trust=True)
    assert vectors.shape == (1, layerbeam.open_run("out")["texts"].width)
    assert "--trust" in workplace._call("check", "out", status=2).err
    assert ": equal (" in workplace._call("check", "out", "--trust", status=0).out


def test_runs_without_canaries(workplace):
    finish(workplace)
    path = workplace.folder / "out/manifest.json"
    manifest = json.loads(path.read_text())
    assert len(manifest["canaries"]["texts"]) == 5
    damaged = json.loads(json.dumps(manifest))
    damaged["canaries"]["vectors"]["texts"]["layer_3"] = base64.b64encode(b"12345").decode()
    path.write_text(json.dumps(damaged))
    assert "the canaries in manifest.json are damaged" in workplace._call("check", "out", status=2).err
    del manifest["canaries"]
    path.write_text(json.dumps(manifest))
    assert "the next run into the folder that encodes something adds them" in (
        workplace._call("check", "out", status=2).err
    )
    workplace.write("corpus/b.txt", "money\n")
    workplace.drive()
    workplace._call("check", "out", status=0)


def test_views_without_one_vector_per_text(workplace):
    views = {"tokens": {"level": "token", "layers": [1]}, "lists": VIEW | {"pooling": "none"}}
    workplace.finished("the bank\n", views=views)
    assert "canaries" not in workplace.manifest()
    assert "views have no vector for each text" in workplace._call("check", "out", status=2).err


def test_names_that_the_run_does_not_have(workplace):
    workplace.finished("the bank\n", views={"one": VIEW, "two": VIEW | {"layers": [1, 2]}})
    for arguments, message in (
        (("--view", "three"), "--view three: has no canary texts; views that have them: one, two"),
        (("--view", "two", "--layer", "3"), "--layer: layer_3: view two has no such vectors"),
        (("--url", "http://127.0.0.1:1"), "--view is missing: out has several views of texts: one, two"),
        (("--url", "http://127.0.0.1:1", "--view", "two"), "--layer: layer is missing"),
    ):
        assert message in workplace._call("check", "out", *arguments, status=2).err
