"""What rows say of unknown tokens, and rows of zeros: counted, never NaN, never near."""

from __future__ import annotations

import json
import re

import numpy as np
from weights import vectors

import layerbeam

LINES = ["the \u16a0 bank \u16a0\u16a1", "the river", "\u200b", "is in"]
VIEWS = {
    "tokens": {"level": "token", "layers": [-1]},
    "texts": {"level": "text", "layers": [-1, 0], "special_tokens": False, "normalize": True},
    "records": {"level": "record", "layers": [-1], "normalize": True},
    "lists": {"level": "text", "layers": [-1], "pooling": "none"},
}


def test_counts_and_rows(workplace):
    done = workplace.prepare("\n".join(LINES) + "\n", input={"blank": "keep"}, views=VIEWS) or workplace.drive()
    texts = workplace.rows("texts")
    tokens = workplace.rows("tokens").to_pylist()
    unknown = [sum(row["token"] == "[UNK]" for row in tokens if row["line"] == line) for line in range(4)]
    assert texts["num_unknown"].to_pylist() == workplace.rows("lists")["num_unknown"].to_pylist() == unknown
    assert unknown[0] > 0 == unknown[1]
    expected = (~vectors(texts, "layer_3").any(axis=1)).tolist()
    assert expected == [False, False, True, False]
    assert np.isfinite(vectors(texts, "layer_3")).all()
    counts = json.loads((workplace.folder / "out/manifest.json").read_text())["counts"]
    assert {name: count for name, count in counts.items() if name.startswith("vectors_zero")} == {
        "vectors_zero:texts": 1
    }
    assert counts["unknown_tokens"] == sum(unknown)
    for out in (done.out, workplace.show().out):
        assert "of the tokens are [UNK]" in out
        assert "texts: 1 text without tokens: zeros" in out
    found = layerbeam.open_run(str(workplace.folder / "out"))["texts"].nearest(np.ones(64), 9, layer=3)
    assert sorted(found["line"].to_pylist()) == [0, 1, 3]
    assert workplace.verify().out.endswith("\npass\n")


def test_a_folder_without_the_column_is_read_and_not_extended(workplace):
    workplace.prepare("the river\n", views={"texts": VIEWS["texts"]})
    workplace.drive()
    fingerprint = json.loads((workplace.folder / "out/manifest.json").read_text())["fingerprint"]
    for path in (workplace.folder / "out").rglob("*.json*"):  # as an earlier version has written it
        text = path.read_text().replace(fingerprint, "0123456789abcdef")
        path.write_text(re.sub(r',\s*"num_unknown": true|"num_unknown": true,', "", text))
    assert layerbeam.open_run(str(workplace.folder / "out"))["texts"].num_rows == 1
    workplace.write("corpus/b.txt", "the bank\n")
    assert "views.texts.num_unknown: not set -> True" in workplace.drive(status=2).err
