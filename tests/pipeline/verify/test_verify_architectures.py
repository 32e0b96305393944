"""`layerbeam run` and `verify` with every architecture: a planted error of 1e-3 is found, and all else agrees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from architectures import CONFIGS, write_encoder
from workplace import Workplace

from layerbeam.transforms.encoders.network import Network

TEXTS = [
    "A river bank.",
    "the bank in the river's bank...",
    "k",
    "in the bank, a river",
    "\u4f60\u597d \U0001f600 bank",
]
PAIRS = ["a bank", "rivers", "in", "the bank \U0001f600", "."]


@pytest.fixture(params=CONFIGS)
def configured(request, workplace: Workplace, tmp_path: Path) -> Workplace:
    """A corpus of pairs, and views of every level."""
    folder = write_encoder(tmp_path / "encoder", request.param)
    records = zip(TEXTS, PAIRS, strict=True)
    workplace.write("corpus/a.jsonl", "".join(json.dumps({"text": t, "pair": p}) + "\n" for t, p in records))
    workplace.configure(
        input={"files": ["corpus/*.jsonl"], "format": "jsonl", "pair_field": "pair"},
        encoder={"handle": str(folder), "max_seq_length": 24, "batch_tokens": 40},
        views={
            "tokens": {"level": "token", "layers": "all"},
            "words": {"level": "word", "layers": [-1], "include_text": True},
            "texts": {"level": "text", "layers": [2]},
            "spaced": {"level": "word", "layers": [1], "words": "whitespace"},
            "banks": {"level": "word_type", "layers": [-1], "keep_words": ["bank"]},
        },
    )
    return workplace


def test_a_planted_thousandth_is_found_and_the_rest_agrees(
    configured: Workplace, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
):
    sound = Network.__call__

    def planted(self, *batch):
        layers, pooled = sound(self, *batch)
        return {layer: values + 1e-3 * (layer == 2) for layer, values in layers.items()}, pooled

    with monkeypatch.context() as patched:
        patched.setattr(Network, "__call__", planted)
        configured.drive()
    verdict = json.loads(configured.verify("--sample", "100", "--json", status=1).out)
    found = {f"{column['view']} {column['column']}": not column["failures"] for column in verdict["columns"]}
    assert found == {f"tokens layer_{k}": k != 2 for k in range(4)} | {
        "words layer_3": True,
        "texts layer_2": False,
        "spaced layer_1": True,
    }

    rows = configured.rows("words").to_pylist()
    words = [[row["word"] for row in rows if row["line"] == line] for line in (0, 1)]
    assert words[0] == ["A", "river", "bank", ".", "a", "bank"]
    # Byte-level BPE has one token for each of the last; where a token covers several words, they are one.
    byte_level = ("roberta", "modernbert", "jina", "eurobert", "qwen3", "gemma3")
    is_byte_level = request.node.callspec.params["configured"].startswith(byte_level)
    last = ["'s", "bank", "..."] if is_byte_level else ["'", "s", "bank", ".", ".", "."]
    assert words[1] == ["the", "bank", "in", "the", "river", *last, "rivers"]
    spaced = [row for row in configured.rows("spaced").to_pylist() if row["line"] == 1]
    assert [row["word"] for row in spaced] == ["the", "bank", "in", "the", "river's", "bank...", "rivers"]
    (bank,) = configured.rows("banks").to_pylist()
    assert (bank["word"], bank["count"]) == ("bank", 7)


def test_unknown_tokens_are_counted_by_the_name_that_they_have(workplace: Workplace, tmp_path: Path):
    for name, expected in (("mpnet", 2), ("bert", 2), ("roberta", 0)):
        workplace.write("corpus/a.txt", "a river \U0001f600 zzz bank\n")
        workplace.configure(
            encoder={"handle": str(write_encoder(tmp_path / "encoders" / name, name)), "max_seq_length": 32},
            views={"texts": {"level": "text", "layers": [1]}},
            output={"path": name},
        )
        workplace.drive(arithmetic=True)
        assert workplace.manifest(name)["counts"]["unknown_tokens"] == expected
