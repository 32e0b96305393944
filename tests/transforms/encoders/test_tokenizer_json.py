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
from architectures import NORMALIZER, byte_level
from repository import DATA
from tampering import edit
from weights import refused

from layerbeam.transforms.encoders import EncoderError, load_vocabulary, open_encoder
from layerbeam.transforms.encoders.formats.tokenizer_json import load_library_tokenizer
from layerbeam.transforms.reference import ReferenceWordPiece
from layerbeam.transforms.tokenize.tokenizer import load_text_tokenizer
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


AS_IN_FILE = {"tokenizer_class": "PreTrainedTokenizerFast"}
KEEPS_ACCENTS = {"do_lower_case": True, "strip_accents": False}
FRENCH = {"do_lower_case": False, "strip_accents": True}


def replacing(old: str, new: str, times: int) -> CONTENT:
    one = {"type": "Replace", "pattern": {"String": old}, "content": new}
    return {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [one] * times}]}


def keep_accents(content: CONTENT) -> None:
    content["normalizer"].update(strip_accents=False)


def add_token_in_a_gap(content: CONTENT) -> None:
    """tokenizers gives it another id, that of an entry."""
    number = content["model"]["vocab"].pop("##a")
    content["added_tokens"].append(content["added_tokens"][4] | {"content": "e-e", "id": number})


def add_token(content: CONTENT) -> None:
    """A token that is cut out of texts, with the last id."""
    ids = content["model"]["vocab"]
    number = ids.pop(max(ids, key=ids.get))
    content["added_tokens"].append(content["added_tokens"][4] | {"content": "e-e", "id": number})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda c: c["model"].update(type="Word"), 'model.type is "Word"; it must be "WordPiece" or "BPE"'),
        (lambda c: c.update(model=7), "model is 7; it must be an object"),
        (lambda c: c["model"].update(type="BPE"), "tokenizers cannot read it (Missing vocab/merges"),
        (
            lambda c: c["model"].update(unk_token="<unk>"),
            'model.unk_token is "<unk>"; it must be an entry of model.vocab',
        ),
        (lambda c: c["normalizer"].update(clean_text=1), "tokenizers cannot read it (data did not"),
        (lambda c: c.update(normalizer=7), "tokenizers cannot read it"),
        (lambda c: c.update(normalizer=replacing("a", "a" * 10, 9)), "; it must be at most 64 times as long: "),
        (lambda c: c.update(normalizer={"type": "Prepend", "prepend": "a" * 1000}), "; it must be at most 64 times"),
        (lambda c: c.update(pre_tokenizer={"type": "Spaces"}), "tokenizers cannot read it"),
        (lambda c: c["post_processor"]["single"].pop(), "post_processor is"),
        (
            lambda c: c["added_tokens"].append({"id": 7, "content": "covid"}),
            "the id of 'covid' is 7; it must be another",
        ),
        (lambda c: c["added_tokens"].append({"id": 7, "content": "[CLS]"}), "a token of added_tokens is"),
        (
            lambda c: c["added_tokens"].append({"id": 818, "content": "covid"}),
            "the id of 'covid' is 818; it must be from",
        ),
        (add_token_in_a_gap, "with the id that tokenizers gives it"),
        (lambda c: c.update(added_tokens=["x"]), 'a token of added_tokens is "x"'),
        (lambda c: c.update(added_tokens=7), "added_tokens is 7; it must be a list"),
        (lambda c: c["model"].update(vocab=[]), "model.vocab is []; it must be an object"),
        (lambda c: c["model"]["vocab"].update(a=10**12), "the id of 'a' is 1000000000000; it must be from 0 to 817"),
        (lambda c: c["model"]["vocab"].update(a=-1), "the id of 'a' is -1"),
        (lambda c: c["model"]["vocab"].update(a=5.0), "the id of 'a' is 5.0"),
        (lambda c: c["model"]["vocab"].update(a=5), "it must be another than that of"),
        (lambda c: c["model"].update(max_input_chars_per_word=10**9), "max_input_chars_per_word is 1000000000"),
        (
            lambda c: c["model"].update(max_input_chars_per_word="100"),
            "tokenizers cannot read it (invalid type: string",
        ),
    ],
)
def test_other_tokenizers_are_refused_with_the_reason(folder, changed, message):
    change(folder, changed)
    assert message in refused(folder)
    assert len(refused(folder).replace(str(folder), "")) < 500


@pytest.mark.parametrize(
    ("changed", "config", "text", "tokens", "because"),
    [
        (keep_accents, KEEPS_ACCENTS, "THE \u00c9", ["the", "\u00e9"], "normalizer.strip_accents is false"),
        (keep_accents, AS_IN_FILE, "THE \u00c9", ["the", "\u00e9"], "normalizer.strip_accents is false"),
        (
            lambda c: c["normalizer"].update(lowercase=False, strip_accents=True),
            FRENCH,
            "A the\u0301",
            ["[UNK]", "the"],
            "normalizer.strip_accents is true",
        ),
        (
            lambda c: c["normalizer"].update(handle_chinese_chars=False),
            {"tokenize_chinese_chars": False},
            "a\u4f60 \u4f60",
            ["[UNK]", "\u4f60"],
            "normalizer.handle_chinese_chars is false",
        ),
        (
            lambda c: c["normalizer"].update(clean_text=False),
            AS_IN_FILE,
            "th\x01e the",
            ["[UNK]", "the"],
            "normalizer.clean_text is false",
        ),
        (lambda c: c.update(normalizer=None), AS_IN_FILE, "The the", ["[UNK]", "the"], "normalizer.type is null"),
        (
            lambda c: c.update(pre_tokenizer={"type": "WhitespaceSplit"}),
            AS_IN_FILE,
            "the, the",
            ["[UNK]", "the"],
            'pre_tokenizer.type is "WhitespaceSplit"',
        ),
        (
            lambda c: c["model"].update(continuing_subword_prefix="@@"),
            AS_IN_FILE,
            "theya the",
            ["[UNK]", "the"],
            'model.continuing_subword_prefix is "@@"',
        ),
        (lambda c: c["model"].update(unk_token="[PAD]"), AS_IN_FILE, "\u20ac\u20ac", ["[PAD]"], "model.unk_token is"),
        (add_token, {}, "thee-ethe [SEP]", ["the", "e-e", "the", "[SEP]"], 'added_tokens is ["e-e"]'),
        (lambda c: c.update(post_processor=None), AS_IN_FILE, "the", ["the"], "post_processor is null"),
    ],
)
def test_other_wordpiece_is_cut_by_the_library(folder, changed, config, text, tokens, because):
    change(folder, changed)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    source = open_encoder(str(folder))
    assert source.tokenizer == "tokenizers"
    assert source.tokenizer_because.startswith(f"in tokenizer.json, {because}")
    assert source.casing_from == "tokenizer.json"
    found = load_text_tokenizer(source).tokenize(pa.array([text]))
    assert [source.vocabulary[number] for number in found.ids.tolist()] == tokens
    shutil.copy(UNCASED / "vocab.txt", folder)  # which transformers does not read then
    assert open_encoder(str(folder)).fingerprint == source.fingerprint


def test_added_tokens_in_both_files_in_another_order(folder):
    def add_two(content: CONTENT) -> None:
        ids = content["model"]["vocab"]
        for name in ("e-e", "a-a"):
            number = ids.pop(max(ids, key=ids.get))
            content["added_tokens"].insert(5, content["added_tokens"][4] | {"content": name, "id": number})

    change(folder, add_two)
    decoder = {"817": {"content": "e-e"}, "816": {"content": "a-a"}}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    assert open_encoder(str(folder)).tokenizer == "tokenizers"


def test_berts_own_wordpiece_stays_with_tensorflow_text(folder):
    source = open_encoder(str(folder))
    assert (source.tokenizer, source.tokenizer_because) == ("tensorflow_text", "it does WordPiece as Google's code")
    vocabulary = source.vocabulary
    change(folder, keep_accents)
    cased = open_encoder(str(folder), do_lower_case=False)
    assert (cased.tokenizer, cased.vocabulary) == ("tensorflow_text", vocabulary)


@pytest.mark.parametrize(
    ("changed", "config", "message"),
    [
        (keep_accents, {}, "normalizer.strip_accents is false; transformers ignores it and takes true, by"),
        (keep_accents, {"tokenizer_class": "BertTokenizerFast"}, "normalizer.strip_accents is false; transformers"),
        (
            keep_accents,
            {"do_lower_case": False},
            "normalizer.lowercase is true; transformers ignores it and takes false",
        ),
        (lambda c: c.update(normalizer={"type": "NFC"}), {}, 'normalizer.type is "NFC"; transformers ignores'),
        (lambda c: c.update(post_processor=None), {}, "post_processor is null; transformers ignores it and takes"),
        (
            lambda c: c["model"].update(max_input_chars_per_word=2000),
            {},
            "is 2000; transformers ignores it and takes 100",
        ),
        (add_token, {"added_tokens_decoder": {}}, 'added_tokens is ["e-e"]; transformers ignores it and takes []'),
        (keep_accents, KEEPS_ACCENTS | {"word_tokenizer_type": "mecab"}, 'word_tokenizer_type is "mecab"; it must be'),
    ],
)
def test_what_transformers_does_not_read_is_refused(folder, changed, config, message):
    """Which file counts was tried with transformers 5.20.2."""
    change(folder, changed)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert message in refused(folder)


def test_the_setting_cannot_change_what_the_library_does(folder):
    change(folder, add_token)
    assert open_encoder(str(folder), do_lower_case=True).tokenizer == "tokenizers"
    with pytest.raises(EncoderError, match=r"decides whether texts are lower-cased: remove do_lower_case"):
        open_encoder(str(folder), do_lower_case=False)


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


def test_dropout_of_training_is_off(tmp_path):
    path, text = tmp_path / "tokenizer.json", "the unaffable river bank"
    byte_level().save(str(path))
    content = json.loads(path.read_text())
    whole = load_library_tokenizer("e", path).encode(text).ids
    content["model"]["dropout"] = 0.9
    path.write_text(json.dumps(content))
    assert {tuple(load_library_tokenizer("e", path).encode(text).ids) for _ in range(20)} == {tuple(whole)}
