"""`skip_tokens`: entries of the vocabulary without vectors, compared with a view that keeps them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from repository import DATA

import layerbeam

ENCODER = {"handle": str(DATA / "hf_uncased")}
HOW = {"layers": [-1], "normalize": True}
LISTS = {"level": "text", "pooling": "none", **HOW}
VIEWS = {
    "all": {"level": "token", **HOW},
    "tokens": {"level": "token", "skip_tokens": [".", ",", "##s"], **HOW},
    "lists": {**LISTS, "skip_tokens": [".", ",", "##s"]},
    "inner": {**LISTS, "skip_tokens": [","], "special_tokens": False},
    "empty": {**LISTS, "skip_tokens": ["[CLS]", "[SEP]", ".", ","]},
}
LINES = ["The bank, by the river.", "Banks.", ". , .", "a bank"]
KEPT = [
    ["[CLS]", "the", "bank", "by", "the", "river", "[SEP]"],
    ["[CLS]", "bank", "[SEP]"],
    ["[CLS]", "[SEP]"],
    ["[CLS]", "a", "bank", "[SEP]"],
]
# A text, one longer than a window, or a sentence in its record.
UNITS = {
    "records": {"encoder": ENCODER},
    "windows": {"encoder": {**ENCODER, "max_seq_length": 6, "long_text": "window", "window_overlap": 1}},
    "context": {"encoder": {**ENCODER, "context": "record"}, "input": {"unit": "sentence"}},
}


@pytest.mark.parametrize("unit", UNITS)
def test_the_other_tokens_keep_their_vectors(workplace, unit):
    workplace.finished({"a.txt": "\n".join(LINES)}, views=VIEWS, **UNITS[unit])
    run = layerbeam.open_run("out")
    every = run["all"].to_arrow(["line", "token"])
    is_kept = ~np.isin(every["token"].to_numpy(zero_copy_only=False), VIEWS["tokens"]["skip_tokens"])
    expected = run["all"].to_numpy("layer_3")[is_kept]
    assert run["tokens"].to_arrow(["line", "token"]).equals(every.filter(is_kept))
    np.testing.assert_array_equal(run["tokens"].to_numpy("layer_3"), expected)
    np.testing.assert_array_equal(np.concatenate(list(run["lists"].to_numpy("layer_3"))), expected)
    assert "pass" in workplace.verify("--sample", "100").out
    if unit != "context":  # there sentences have no [CLS] and [SEP]
        tokens = run["tokens"].to_arrow(["line", "token"]).to_pandas()
        assert [rows.tolist() for _, rows in tokens.groupby("line")["token"]] == KEPT
        assert [len(vectors) for vectors in run["lists"].to_numpy("layer_3")] == [7, 3, 2, 4]
        assert [len(vectors) for vectors in run["inner"].to_numpy("layer_3")] == [6, 3, 2, 2]
        assert [len(vectors) for vectors in run["empty"].to_numpy("layer_3")] == [5, 2, 0, 2]
        assert run["lists"].to_numpy("num_tokens").tolist() == [7, 3, 3, 2]


def test_plan_counts_the_vectors(workplace):
    workplace.prepare("\n".join(LINES), encoder=ENCODER, views=VIEWS)
    views = json.loads(workplace.plan("--json").out)["views"]
    vectors = {name: view["vector_bytes"] // (64 * 4) for name, view in views.items()}
    assert vectors == {"all": 23, "tokens": 16, "lists": 16, "inner": 13, "empty": 9}
    assert (views["tokens"]["rows"], views["lists"]["rows"]) == (16, 4)


def test_encode_skips_them():
    given = {"encoder": ENCODER["handle"], "views": {name: VIEWS[name] for name in ("all", "lists", "empty")}}
    found = layerbeam.encode(LINES, **given)
    assert [len(vectors) for vectors in found["lists"]["layer_3"]] == [7, 3, 2, 4]
    assert [len(vectors) for vectors in found["empty"]["layer_3"]] == [5, 2, 0, 2]


@pytest.mark.parametrize(
    ("view", "reason"),
    [
        (
            {**LISTS, "skip_tokens": [".", "river bank", "##?"]},
            "views.v.skip_tokens: 'river bank', '##[?]': no such entry in the vocabulary of .*hf_uncased; give whole "
            "entries as a view of tokens shows them in its column `token`, such as '.' or '##s', or remove them",
        ),
        ({**LISTS, "skip_tokens": "."}, "views.v.skip_tokens: .*list"),
        (
            {**LISTS, "pooling": "mean", "skip_tokens": ["."]},
            "views.v.skip_tokens: is for pooling none, and pooling is mean; set pooling: none, or remove it",
        ),
        (
            {"level": "token", "layers": [1], "keep_words": ["bank"], "skip_tokens": ["."]},
            "views.v.skip_tokens: keep_words already says which words have rows; remove one of the two",
        ),
        (
            {"level": "word", "layers": [1], "skip_tokens": ["."]},
            "views.v.skip_tokens: level word has no such setting .it belongs to token and text.",
        ),
    ],
)
def test_mistakes_in_the_settings(view, reason):
    with pytest.raises(ValueError, match=reason):
        layerbeam.encode(["a"], encoder=ENCODER["handle"], views={"v": view})
