"""A run with a WordPiece encoder whose texts the library tokenizers cuts: a BERT that lower-cases and keeps accents."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from architectures import write_encoder
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    folder = write_encoder(tmp_path / "encoder", "bert")
    entries = [*(folder / "vocab.txt").read_text().split("\n"), "caf\u00e9", "cafe", "\u4f60", "covid-19"]
    ids = {entry: number for number, entry in enumerate(entries)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(entries[:5])
    tokenizer.add_tokens(["covid-19"])
    (folder / "vocab.txt").unlink()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "strip_accents": False}))
    return folder


def test_run_and_verify(workplace, encoder):
    views = {"tokens": {"level": "token", "layers": [1]}, "words": {"level": "word", "layers": [1, 3]}}
    views["types"] = {"level": "word_type", "layers": [1], "keep_words": ["Caf\u00e9", "Covid-19", "\u4f60"]}
    text = "Banks, CAF\u00c9 cafe \u4f60\u4f60 a COVID-19's\n"
    done = workplace.finished(text, encoder={"handle": str(encoder)}, views=views)
    assert done.status == 0
    tokens = workplace.rows("tokens")["token"].to_pylist()
    expected = ["bank", "##s", ",", "caf\u00e9", "cafe", "\u4f60", "\u4f60", "a", "covid-19", "'", "[UNK]"]
    assert tokens == ["[CLS]", *expected, "[SEP]"]
    words = workplace.rows("words")
    written = ["Banks", ",", "CAF\u00c9", "cafe", "\u4f60", "\u4f60", "a", "COVID-19", "'", "s"]
    assert words["word"].to_pylist() == written
    assert [text[a:b] for a, b in zip(words["start"].to_pylist(), words["end"].to_pylist(), strict=True)] == written
    assert workplace.rows("types")["word"].to_pylist() == ["caf\u00e9", "covid-19", "\u4f60"]
    assert "pass" in workplace.verify().out


def test_what_the_command_says(workplace, encoder):
    because = "in tokenizer.json, normalizer.strip_accents is false, which TensorFlow Text does not do"
    assert re.search(f"^tokenizer +tokenizers: {because}$", workplace.encoder(str(encoder)).out, re.MULTILINE)
    described = json.loads(workplace.encoder("--json", str(encoder)).out)
    assert (described["tokenizer"], described["tokenizer_because"]) == ("tokenizers", because)
