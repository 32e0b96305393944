"""Runs with encoders that put no token before a text, or none at all, and settings that do not fit them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from architectures import write_encoder

import layerbeam

TEXT = {"Sequence": {"id": "A", "type_id": 0}}
VIEWS = {
    "tokens": {"level": "token", "layers": [2]},
    "last": {"level": "text", "layers": [1, 2], "pooling": "last"},
}


def end(segment: int = 0) -> dict[str, Any]:
    return {"SpecialToken": {"id": "</s>", "type_id": segment}}


# As Qwen3-Embedding's; pairs of an unknown form.
BEHIND = {
    "type": "TemplateProcessing",
    "single": [TEXT, end()],
    "pair": [TEXT, end(), {"Sequence": {"id": "B", "type_id": 1}}, end(0)],
    "special_tokens": {"</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}},
}


def encoder_with(folder: Path, processor: dict[str, Any] | None) -> str:
    write_encoder(folder, "roberta")
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"post_processor": processor}))
    return str(folder)


@pytest.mark.parametrize("processor", [BEHIND, None], ids=["behind", "none"])
def test_a_run(workplace, tmp_path, processor):
    encoder = {"handle": encoder_with(tmp_path / "encoder", processor), "max_seq_length": 16}
    encoder |= {"long_text": "window", "window_overlap": 4}
    workplace.prepare("a bank\n" + "river " * 40 + "\n", encoder=encoder, views=VIEWS)
    workplace.drive()
    rows = workplace.rows()
    first = [token for token, line in zip(rows["token"].to_pylist(), rows["line"].to_pylist(), strict=True) if not line]
    assert first == ["a", "Ġ", "bank", *(["</s>"] if processor else [])]
    assert "pass" in workplace.verify().out
    assert "max_seq_length" in workplace.plan().out
    overlap = 15 if processor else 16
    refused = workplace.drive("--set", f"encoder.window_overlap={overlap}", status=2).err
    assert f"it must be below max_seq_length - {16 - overlap} = {overlap}, or a window makes no progress" in refused


def test_settings_that_do_not_fit(tmp_path):
    encoder = encoder_with(tmp_path / "encoder", BEHIND)
    views = {"texts": {"level": "text", "layers": [2], "pooling": "cls"}}
    refused = (
        r"views\.texts\.pooling: is cls, the vector of the special token before a text, and .* puts none there; take"
    )
    with pytest.raises(ValueError, match=refused):
        layerbeam.encode(["a"], encoder=encoder, views=views)
    with pytest.raises(
        ValueError, match=r"encode: pairs: the tokenizer of .* says nothing about pairs of texts, or puts"
    ):
        layerbeam.encode(["a"], encoder=encoder, pairs=["b"])
    views = {"tokens": {"level": "token", "layers": [2]}}
    (alone,) = layerbeam.encode(["a"], encoder=encoder, views=views, output="arrow").values()
    assert alone["token"].to_pylist() == ["a", "</s>"]
