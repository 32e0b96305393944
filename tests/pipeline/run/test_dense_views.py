"""Views with Dense modules: a run compared with NumPy, verified, by several workers, and mistakes in the settings."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
from corpora import random_lines
from dense import dense_in_numpy, encoder_with_dense, write_dense
from safetensors.numpy import load_file, save_file
from weights import vectors

import layerbeam
from layerbeam.pipeline.config import load as configuration
from layerbeam.pipeline.config.job import resolve

DENSE = ["2_Dense", "3_Dense"]
TEXT = {"level": "text", "layers": [-1]}
TOKENS = {"level": "token", "layers": [-1, 1]}
VIEWS = {
    "texts": {**TEXT, "dense": DENSE, "normalize": True},
    "short": {**TEXT, "pooling": "cls", "dense": ["2_Dense"], "truncate_dim": 10},
    "pooled": {"level": "text", "pooling": "pooler", "dense": ["2_Dense"]},
    "tokens": {**TOKENS, "dense": ["2_Dense"], "special_tokens": False},
    "words": {
        "level": "word",
        "layers": [1, 2],
        "combine": "sum",
        "pooling": "max",
        "dense": DENSE,
        "dtype": "float16",
    },
    "both": {**TEXT, "pooling": "mean_max", "dense": ["wide"]},
    # What the modules get.
    "plain_texts": TEXT,
    "plain_cls": {**TEXT, "pooling": "cls"},
    "plain_pooled": {"level": "text", "pooling": "pooler"},
    "plain_tokens": {**TOKENS, "special_tokens": False},
    "plain_words": {"level": "word", "layers": [1, 2], "combine": "sum", "pooling": "max"},
    "plain_both": {**TEXT, "pooling": "mean_max"},
}


@pytest.fixture
def encoder(workplace):
    """The small encoder with modules, and their weights by folder."""
    folder = workplace.folder / "encoder"
    weights = dict(zip(DENSE, encoder_with_dense(folder), strict=True))
    weights["wide"] = write_dense(folder, "wide", 128, 5, activation="torch.nn.modules.activation.GELU")
    return {"handle": str(folder)}, weights


def test_run_agrees_with_numpy_and_verify(workplace, encoder):
    settings, weights = encoder
    workplace.prepare("\n".join(random_lines(40)) + "\n", encoder=settings, views=VIEWS)
    workplace.drive()
    rows = {name: workplace.rows(name) for name in VIEWS}

    def tanh(values: np.ndarray) -> np.ndarray:
        return dense_in_numpy(values, weights["2_Dense"], "Tanh")

    def both(values: np.ndarray) -> np.ndarray:
        return dense_in_numpy(tanh(values), weights["3_Dense"], "Identity")

    def compare(view: str, column: str, expected: np.ndarray, atol: float = 1e-4) -> None:
        found = vectors(rows[view], column)
        assert found.shape == expected.shape
        assert np.ptp(expected) > 0.1
        np.testing.assert_allclose(found, expected, atol=atol, rtol=0)

    texts = both(vectors(rows["plain_texts"], "layer_3"))
    compare("texts", "layer_3", texts / np.linalg.norm(texts, axis=1, keepdims=True))
    compare("short", "layer_3", tanh(vectors(rows["plain_cls"], "layer_3"))[:, :10])
    compare("pooled", "pooled_output", tanh(vectors(rows["plain_pooled"], "pooled_output")))
    for layer in ("layer_3", "layer_1"):
        compare("tokens", layer, tanh(vectors(rows["plain_tokens"], layer)))
    compare("words", "embedding", both(vectors(rows["plain_words"], "embedding")), 0.01)
    compare("both", "layer_3", dense_in_numpy(vectors(rows["plain_both"], "layer_3"), weights["wide"], "GELU"))

    found = {column["view"]: column for column in json.loads(workplace.verify("--json").out)["columns"]}
    assert all(found[name]["max_difference"] < 2e-5 for name in ("texts", "short", "pooled", "tokens", "both"))
    assert layerbeam.open_run("out").view("tokens").to_arrow().schema.field("layer_1").type.list_size == 48


def test_verify_finds_other_weights(workplace, encoder):
    settings, _ = encoder
    workplace.prepare("\n".join(random_lines(10)) + "\n", encoder=settings, views={"texts": VIEWS["texts"]})
    workplace.drive()
    file = workplace.folder / "encoder" / "3_Dense" / "model.safetensors"
    save_file({"linear.weight": load_file(file)["linear.weight"] + np.float32(0.1)}, file)
    assert "has changed" in workplace.verify(status=2).err


def test_workers_and_threads_write_equal_bytes(workplace, encoder):
    views = {name: VIEWS[name] for name in ("texts", "tokens")}
    sections = {"encoder": {**encoder[0], "batch_tokens": 100}, "output": {"target_part_bytes": 20_000}}
    workplace.prepare("\n".join(random_lines(60)) + "\n", views=views, **sections)
    workplace.drive()
    one = workplace.files()
    assert len([name for name in one if name.startswith("texts/")]) > 2
    workplace.run("--direct_num_workers=3", "--output", "three")
    assert workplace.files("three") == one


def test_weights_activation_and_order_are_part_of_the_fingerprint(workplace, encoder):
    settings, _ = encoder
    folder = workplace.folder / "encoder"
    write_dense(folder, "square", 48, 48)
    shutil.copytree(folder / "square", folder / "again")

    def fingerprint(dense: list[str]) -> str:
        workplace.configure(encoder=settings, views={"texts": {**TEXT, "dense": dense}})
        return resolve(configuration.load("c.yaml")).run_identity["fingerprint"]

    plain, first = fingerprint([]), fingerprint(DENSE)
    assert len({plain, first, fingerprint(["2_Dense"]), fingerprint(["2_Dense", "square"])}) == 4
    config = folder / "2_Dense" / "config.json"
    config.write_text(config.read_text().replace("Tanh", "ReLU"))
    assert fingerprint([]) == plain
    second = fingerprint(DENSE)
    weights = load_file(folder / "3_Dense" / "model.safetensors")
    weights["linear.weight"][0, 0] += 1
    save_file(weights, folder / "3_Dense" / "model.safetensors")
    assert len({first, second, fingerprint(DENSE)}) == 3


def test_a_view_with_modules_is_added_to_a_finished_run(workplace, encoder):
    workplace.prepare("one line\n", encoder=encoder[0], views={"plain": TEXT})
    workplace.drive()
    workplace.configure(encoder=encoder[0], views={"plain": TEXT, "texts": VIEWS["texts"]})
    workplace.drive()
    assert workplace.rows("texts").num_rows == 1


def test_program_gets_the_vectors_of_changed_weights(workplace, encoder):
    settings, weights = encoder
    given = {"encoder": settings["handle"], "views": {"a": {**TEXT, "dense": ["2_Dense"]}, "b": TEXT}}
    first = layerbeam.encode(["A bank."], **given)
    expected = dense_in_numpy(first["b"]["layer_3"], weights["2_Dense"], "Tanh")
    np.testing.assert_allclose(first["a"]["layer_3"], expected, atol=1e-4)
    file = workplace.folder / "encoder" / "2_Dense" / "model.safetensors"
    save_file({name: -values for name, values in weights["2_Dense"].items()}, file)
    np.testing.assert_allclose(layerbeam.encode(["A bank."], **given)["a"]["layer_3"], -expected, atol=1e-4)


@pytest.mark.parametrize(
    ("view", "reason"),
    [
        ({"dense": ["../2_Dense"]}, "dense.*: '../2_Dense' is not a folder within the encoder's; give its name there"),
        ({"dense": ["/2_Dense"]}, "'/2_Dense' is not a folder within"),
        ({"dense": [""]}, "'' is not a folder within"),
        ({"dense": [7]}, "dense"),
        ({"dense": ["4_Dense"]}, "views.v.dense: .*4_Dense/config.json is missing; .*there: 2_Dense, 3_Dense, wide"),
        (
            {"dense": ["3_Dense"]},
            r"views.v.dense: 3_Dense takes vectors of 48 dimensions \(in_features in its config.json\), and layers, "
            "combine and pooling give 64; set them as the model was trained, or take the module that belongs to the",
        ),
        ({"dense": ["2_Dense", "2_Dense"]}, "2_Dense takes vectors of 64 dimensions .*, and 2_Dense gives 48;"),
        ({"dense": ["2_Dense"], "truncate_dim": 49}, "views.v.truncate_dim: is 49; the vectors have 48 dimensions"),
        ({"dense": ["2_Dense"], "level": "record"}, "dense: level record has no such setting .it belongs to token, wo"),
    ],
)
def test_mistakes_in_the_settings(workplace, encoder, view, reason):
    workplace.prepare("text\n", encoder=encoder[0], views={"v": {**TEXT, **view}})
    error = " ".join(workplace.drive(status=2).err.split())
    assert re.search(reason, error), error


def test_each_vector_of_a_list_is_projected(workplace, encoder):
    """As a late interaction model has it: tokens projected, at unit length, in one row per text."""
    settings, _ = encoder
    how = {"layers": [-1], "dense": ["2_Dense"], "normalize": True}
    views = {"lists": {"level": "text", "pooling": "none", **how}, "tokens": {"level": "token", **how}}
    workplace.prepare("\n".join(random_lines(30)) + "\n", encoder=settings, views=views)
    workplace.drive()
    lists = np.concatenate(layerbeam.open_run("out")["lists"].to_numpy("layer_3"))
    np.testing.assert_array_equal(lists, vectors(workplace.rows("tokens"), "layer_3"))
    np.testing.assert_allclose(np.linalg.norm(lists, axis=1), 1, atol=1e-5)
    assert workplace.verify().out.endswith("\npass\n")
