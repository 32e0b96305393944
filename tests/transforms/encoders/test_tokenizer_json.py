"""Folders saved by transformers 5: `tokenizer.json` without `vocab.txt`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from architectures import NORMALIZER
from repository import DATA
from tampering import edit
from weights import refused

from layerbeam.transforms.encoders import load_vocabulary, open_encoder
from layerbeam.transforms.reference import ReferenceWordPiece
from layerbeam.transforms.tokenize.wordpiece import WordPiece

UNCASED = DATA / "hf_uncased"
CONTENT = dict[str, Any]


def saved_by_transformers(vocabulary: list[str]) -> CONTENT:
    """What `save_pretrained` of transformers 5.20.2 writes for a BERT with this vocabulary."""
    ids = {entry: index for index, entry in enumerate(vocabulary)}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}

    def piece(name: str, segment: int) -> CONTENT:
        return {"SpecialToken": {"id": name, "type_id": segment}}

    single = [piece("[CLS]", 0), {"Sequence": {"id": "A", "type_id": 0}}, piece("[SEP]", 0)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": ids[token], "content": token} | special for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
        ],
        "normalizer": dict(NORMALIZER),
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}, piece("[SEP]", 1)],
            "special_tokens": {
                token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in ("[CLS]", "[SEP]")
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": ids,
        },
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The small encoder as transformers 5 saves it."""
    folder = Path(shutil.copytree(UNCASED, tmp_path / "encoder"))
    vocabulary = (folder / "vocab.txt").read_text().splitlines()
    (folder / "vocab.txt").unlink()
    (folder / "tokenizer.json").write_text(json.dumps(saved_by_transformers(vocabulary)))
    return folder


def change(folder: Path, changed: Callable[[CONTENT], Any]) -> None:
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    changed(content)
    file.write_text(json.dumps(content))


def ids(handle: Path, text: str) -> list[int]:
    source = open_encoder(str(handle))
    vocabulary = load_vocabulary(source)
    wordpiece = WordPiece(vocabulary.entries, source.do_lower_case, vocabulary.max_chars_per_word)
    found: list[int] = wordpiece.tokenize(pa.array([text])).ids.tolist()
    reference = ReferenceWordPiece(vocabulary.entries, source.do_lower_case, vocabulary.max_chars_per_word)
    assert found == reference.tokenize(text)
    return found


def test_a_folder_saved_by_transformers_5(folder):
    old, new = open_encoder(str(UNCASED)), open_encoder(str(folder))
    assert new.vocabulary == old.vocabulary
    assert (new.do_lower_case, new.casing_from) == (True, "tokenizer_config.json")
    assert load_vocabulary(new).max_chars_per_word == 100
    (folder / "tokenizer_config.json").unlink()
    assert open_encoder(str(folder)).casing_from == "tokenizer.json"


def test_its_tokens_are_those_of_transformers(folder):
    # The ids that transformers 5.23 wrote for this encoder, without [CLS] and [SEP].
    expected = np.load(DATA / "transformers_uncased.npz")
    lines = (DATA / "input.txt").read_text(encoding="utf-8").split("\n")
    compared = 0
    for name in expected.files:
        if name.startswith("ids_") and "|||" not in lines[int(name[4:])]:
            theirs = expected[name].ravel().tolist()
            assert ids(folder, lines[int(name[4:])])[: len(theirs) - 2] == theirs[1:-1]
            compared += 1
    assert compared >= 3


def test_word_over_100_characters_is_unknown(folder):
    assert ids(folder, "a" * 101) == [1]
    assert len(ids(folder, "a" * 100)) > 1
    assert len(ids(UNCASED, "a" * 101)) > 1  # vocab.txt does not say so; Google's limit is 200


def test_a_cased_tokenizer(folder):
    change(folder, lambda content: content["normalizer"].update(lowercase=False))
    assert "tokenizer_config.json says do_lower_case true, tokenizer.json lowercase false" in refused(folder)
    (folder / "tokenizer_config.json").unlink()
    source = open_encoder(str(folder))
    assert (source.do_lower_case, source.casing_from) == (False, "tokenizer.json")
    assert open_encoder(str(folder), do_lower_case=True).casing_from == "the setting"


def test_fingerprint_is_of_what_decides_tokens(folder):
    first = open_encoder(str(folder)).fingerprint
    change(folder, lambda content: content.update(padding={"strategy": {"Fixed": 128}}))
    assert open_encoder(str(folder)).fingerprint == first
    change(folder, lambda content: content["model"].update(max_input_chars_per_word=99))
    assert open_encoder(str(folder)).fingerprint != first


def test_gaps_between_ids_stay(folder):
    """Of equal entries in a vocab.txt transformers keeps the last id."""
    change(folder, lambda content: content["model"]["vocab"].pop("##a"))
    source, old = open_encoder(str(folder)), open_encoder(str(UNCASED))
    place = old.vocabulary.index("##a")
    assert source.vocabulary[place] == ""
    assert source.vocabulary[place + 1 :] == old.vocabulary[place + 1 :]


def test_vocab_txt_counts_and_tokenizer_json_must_agree(folder):
    shutil.copy(UNCASED / "vocab.txt", folder)
    both, one = open_encoder(str(folder)), open_encoder(str(UNCASED))
    assert (both.fingerprint, load_vocabulary(both).max_chars_per_word) == (one.fingerprint, 200)
    entries = (folder / "vocab.txt").read_text().splitlines()
    entries[10], entries[11] = entries[11], entries[10]
    (folder / "vocab.txt").write_text("\n".join(entries))
    message = 'vocab.txt and tokenizer.json differ in 2 entries, such as "\'": id 10 and 11; remove the one'
    assert message in refused(folder)


def test_neither_file(folder):
    (folder / "tokenizer.json").unlink()
    assert "vocab.txt is missing" in refused(folder)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda c: c["model"].update(type="Word"), 'model.type is "Word"; it must be "WordPiece" or "BPE"'),
        (lambda c: c["model"].update(type="BPE"), "tokenizers cannot read it (Missing vocab/merges"),
        (lambda c: c["model"].update(unk_token="<unk>"), 'model.unk_token is "<unk>"; it must be "[UNK]"'),
        (lambda c: c["model"].update(continuing_subword_prefix="@@"), "model.continuing_subword_prefix is"),
        (lambda c: c.update(normalizer={"type": "NFC"}), 'normalizer.type is "NFC"; it must be "BertNormalizer"'),
        (lambda c: c.update(normalizer=None), "normalizer is null; it must be an object"),
        (lambda c: c["normalizer"].update(handle_chinese_chars=False), "normalizer.handle_chinese_chars is false"),
        (lambda c: c["normalizer"].update(clean_text=1), "normalizer.clean_text is 1; it must be true"),
        (lambda c: c["normalizer"].update(strip_accents=False), "tokenizer.json: strip_accents is false; with"),
        (lambda c: c.update(pre_tokenizer={"type": "Whitespace"}), 'pre_tokenizer.type is "Whitespace"; it must be'),
        (lambda c: c.update(post_processor=None), "post_processor is null; it must be [CLS] A [SEP]"),
        (lambda c: c["post_processor"]["single"].pop(), "post_processor is"),
        (lambda c: c["added_tokens"].append({"id": 7, "content": "covid"}), "a token of added_tokens is"),
        (lambda c: c["added_tokens"].append({"id": 7, "content": "[CLS]"}), "a token of added_tokens is"),
        (lambda c: c.update(added_tokens=["x"]), 'a token of added_tokens is "x"'),
        (lambda c: c.update(added_tokens=7), "added_tokens is 7; it must be a list"),
        (lambda c: c["model"].update(vocab=[]), "model.vocab is []; it must be an object"),
        (lambda c: c["model"]["vocab"].update(a=10**12), "the id of 'a' is 1000000000000; it must be from 0 to 817"),
        (lambda c: c["model"]["vocab"].update(a=-1), "the id of 'a' is -1"),
        (lambda c: c["model"]["vocab"].update(a=5.0), "the id of 'a' is 5.0"),
        (lambda c: c["model"]["vocab"].update(a=5), "it must be another than that of"),
        (lambda c: c["model"].update(max_input_chars_per_word=10**9), "max_input_chars_per_word is 1000000000"),
        (lambda c: c["model"].update(max_input_chars_per_word="100"), 'max_input_chars_per_word is "100"'),
    ],
)
def test_other_tokenizers_are_refused_with_the_reason(folder, changed, message):
    change(folder, changed)
    assert message in refused(folder)
    assert len(refused(folder).replace(str(folder), "")) < 500


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"[" * 100_000, b'{"model": {}, "normalizer": 7}', b"\xff"])
def test_hostile_json(folder, content):
    (folder / "tokenizer.json").write_bytes(content)
    assert "tokenizer.json: " in refused(folder)


def test_entries_that_are_no_text(folder):
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace('"##a": ', '"##\\ud800": '))
    assert "tokenizer.json: " in refused(folder)


def test_bert_processing(folder):
    """The post-processor of older files."""
    processor = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    edit(folder / "tokenizer.json", post_processor=processor)
    assert open_encoder(str(folder)).vocabulary[2] == "[CLS]"
    edit(folder / "tokenizer.json", post_processor=processor | {"sep": ["[SEP]", 4]})
    assert "post_processor is" in refused(folder)
