"""The configurations in configs/, each compared with its formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from float_bounds import OF_TWO
from repository import DATA, ROOT
from weights import vectors
from workplace import Workplace, workplace_in

from layerbeam.pipeline.config import load

RECIPES = sorted(path.stem for path in (ROOT / "configs" / "recipes").glob("*.yaml"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Every layer of every token of the demo's corpus."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "configs").symlink_to(ROOT / "configs")
    with workplace_in(folder) as place:
        place.configure(
            input={"files": ["configs/demo/*.txt"]},
            encoder={"max_seq_length": 100},
            views={"tokens": {"level": "token", "layers": "all"}, "pooled": {"level": "text", "pooling": "pooler"}},
        )
        place.drive()
        tokens = place.rows("tokens")
        columns = {name: tokens[name].to_numpy() for name in ("file", "line", "token_index", "word_index")}
        pooled = {"pooled": vectors(place.rows("pooled"), "pooled_output")}
    return columns | {f"layer_{k}": vectors(tokens, f"layer_{k}") for k in range(4)} | pooled


def run(workplace: Workplace, name: str) -> None:
    """Run the recipe with the small encoder."""
    (workplace.folder / "configs").symlink_to(ROOT / "configs")
    settings = ("--set", f"encoder.handle={DATA / 'hf_uncased'}", "--set", "encoder.max_seq_length=100")
    workplace.driven("run", f"configs/{name}.yaml", *settings, "--output", "out")


def texts(plain: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The token positions of each text."""
    begins = np.flatnonzero(plain["token_index"] == 0)
    return np.split(np.arange(len(plain["line"])), begins[1:])


def words(plain: dict[str, np.ndarray]) -> list[np.ndarray]:
    found = []
    for tokens in texts(plain):
        index = plain["word_index"][tokens]
        found += [tokens[index == word] for word in range(index.max() + 1)]
    return found


def close(got: np.ndarray, expected) -> None:
    expected = np.asarray(expected)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=0, atol=OF_TWO)


# {recipe: (view, column, what is in it)}
FORMULAS: dict[str, tuple[str, str, Callable[[dict[str, np.ndarray]], Any]]] = {
    "last_four_concatenated": (
        "tokens",
        "embedding",
        lambda plain: np.concatenate([plain[f"layer_{layer}"] for layer in (3, 2, 1, 0)], axis=1),
    ),
    "last_four_summed": ("tokens", "embedding", lambda plain: sum(plain[f"layer_{layer}"] for layer in range(4))),
    "second_to_last_mean": (
        "texts",
        "layer_2",
        lambda plain: [plain["layer_2"][tokens].mean(axis=0) for tokens in texts(plain)],
    ),
    "first_50_dimensions": ("tokens", "layer_3", lambda plain: plain["layer_3"][:, :50]),
    "cls_pooler": ("texts", "pooled_output", lambda plain: plain["pooled"]),
}


def test_every_recipe_is_tested():
    assert sorted([*FORMULAS, "unknown_words"]) == RECIPES


@pytest.mark.parametrize("name", FORMULAS)
def test_recipe(workplace, plain, name):
    view, column, formula = FORMULAS[name]
    run(workplace, f"recipes/{name}")
    close(vectors(workplace.rows(view), column), formula(plain))


def test_unknown_words_recipe(workplace, plain):
    run(workplace, "recipes/unknown_words")
    pieces = [plain["layer_3"][tokens] for tokens in words(plain)]
    assert max(map(len, pieces)) > 1
    close(vectors(workplace.rows("mean"), "layer_3"), [values.mean(axis=0) for values in pieces])
    close(vectors(workplace.rows("sum"), "layer_3"), [values.sum(axis=0) for values in pieces])
    close(vectors(workplace.rows("last"), "layer_3"), [values[-1] for values in pieces])


def test_sentences(workplace, plain):
    run(workplace, "sentences")
    means = np.stack([plain["layer_3"][tokens].mean(axis=0) for tokens in texts(plain)])
    got = vectors(workplace.rows("sentences"), "layer_3")
    close(got, means / np.linalg.norm(means, axis=1, keepdims=True))
    assert load.load(str(ROOT / "configs" / "sentences.yaml")).encoder.max_seq_length == 256


def test_word_senses(workplace):
    run(workplace, "word_senses")
    bank = workplace.rows("bank")
    assert {word.lower() for word in bank["word"].to_pylist()} == {"bank"}
    assert bank.num_rows == 26
    for text, start, end in zip(*(bank[name].to_pylist() for name in ("text", "start", "end")), strict=True):
        assert text[start:end].lower() == "bank"
    forms = workplace.rows("forms").to_pylist()
    assert (forms[0]["word"], forms[0]["count"]) == ("bank", 26)


@pytest.mark.parametrize(
    "path",
    sorted(
        p
        for p in (ROOT / "configs").rglob("*.yaml")
        if p.stem != "cloudbuild" and p.parent.stem not in ("beam_yaml", "kubernetes")
    ),
    ids=lambda path: path.stem,
)
def test_every_configuration_holds(path):
    load.load(str(path))
