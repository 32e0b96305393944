from __future__ import annotations

import errno
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from repository import DATA
from safetensors.numpy import load_file, save_file
from tampering import edit
from weights import refused, same_weights

from layerbeam.transforms.encoders import load_weights, open_encoder

UNCASED = DATA / "hf_uncased"


def rewrite(folder: Path, change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> None:
    weights = folder / "model.safetensors"
    save_file(change(load_file(weights)), weights)


def test_weights_are_those_of_the_file_with_kernels_turned():
    theirs = load_file(UNCASED / "model.safetensors")
    weights = load_weights(open_encoder(str(UNCASED)))
    assert {name: values.shape for name, values in weights.items()} == open_encoder(
        str(UNCASED)
    ).architecture.weight_shapes()
    assert all(values.dtype == np.float32 for values in weights.values())
    kernel = "encoder.layer.2.intermediate.dense.weight"
    np.testing.assert_array_equal(weights["bert/encoder/layer_2/intermediate/dense/kernel"], theirs[kernel].T)
    np.testing.assert_array_equal(
        weights["bert/embeddings/word_embeddings"], theirs["embeddings.word_embeddings.weight"]
    )


def test_weights_are_read_one_at_a_time_and_not_kept():
    source = open_encoder(str(UNCASED))
    largest, total = 818 * 64 * 4, (UNCASED / "model.safetensors").stat().st_size
    tracemalloc.start()
    weights = load_weights(source)
    read = sum(values.nbytes for values in weights.values())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert largest < peak < 2 * largest < 0.9 * read < total


def test_prefix_and_heads(folder):
    rewrite(
        folder,
        lambda weights: {
            **{f"bert.{name}": values for name, values in weights.items()},
            "bert.embeddings.position_ids": np.arange(128)[None],
            "cls.predictions.bias": np.zeros(818, np.float32),
        },
    )
    assert same_weights(folder, UNCASED)


@pytest.mark.parametrize(
    "prefix", ["module.", "_orig_mod.", "module.bert.", "auto_model.", "model.", "encoder.", "module._orig_mod.bert."]
)
def test_prefixes_of_training_programs(folder, prefix):
    rewrite(folder, lambda weights: {f"{prefix}{name}": values for name, values in weights.items()})
    assert same_weights(folder, UNCASED)
    assert open_encoder(str(folder)).fingerprint == open_encoder(str(UNCASED)).fingerprint


def test_a_prefix_that_not_all_names_have(folder):
    rewrite(folder, lambda weights: {f"my.{name}": values for name, values in weights.items()})
    assert "my.embeddings.word_embeddings.weight has a training program's prefix: save" in refused(folder)


@pytest.mark.parametrize(
    "fields",
    [
        {"architectures": ["BertModel"]},
        {"model_type": None, "architectures": ["BertForMaskedLM", "BertLMHeadModel"]},
        {"model_type": "BERT"},
    ],
)
def test_model_type_from_the_architectures(folder, fields):
    config = json.loads((folder / "config.json").read_text())
    del config["model_type"]
    (folder / "config.json").write_text(json.dumps({**config, "architectures": None} | fields))
    assert same_weights(folder, UNCASED)


@pytest.mark.parametrize(
    ("fields", "found", "advice"),
    [
        ({}, "missing", "add the one of this encoder, or take another encoder"),
        ({"architectures": ["T5Model"]}, "missing", "add the one of this encoder, or take another encoder"),
        ({"architectures": ["BertModel", "AlbertModel"]}, "missing", "add the one of this encoder, or take another"),
        ({"model_type": "t5", "architectures": ["BertModel"]}, '"t5"', "): take another encoder"),
    ],
)
def test_model_type_that_is_not_known(folder, fields, found, advice):
    config = json.loads((folder / "config.json").read_text())
    del config["model_type"]
    config.pop("architectures", None)
    (folder / "config.json").write_text(json.dumps(config | fields))
    message = refused(folder)
    assert f"model_type is {found}; it must be one of bert, " in message
    assert advice in message


E1 = {"content": "[E1]", "special": True}


@pytest.mark.parametrize(
    ("file", "fields", "message"),
    [
        ("added_tokens.json", {"[E1]": 818}, 'added_tokens.json: the token "[E1]" is not in vocab.txt'),
        ("tokenizer_config.json", {"added_tokens_decoder": {"818": E1}}, '"[E1]" is not in vocab.txt'),
        ("tokenizer_config.json", {"additional_special_tokens": ["[E1]"]}, '"[E1]" is not in vocab.txt'),
        ("tokenizer_config.json", {"extra_special_tokens": {"e": "[E1]"}}, '"[E1]" is not in vocab.txt'),
        ("special_tokens_map.json", {"additional_special_tokens": [E1]}, '"[E1]" is not in vocab.txt'),
        ("special_tokens_map.json", {"bos_token": "[E1]"}, '"[E1]" is not in vocab.txt'),
        ("added_tokens.json", {"covid": 819}, 'the token "covid" is not in vocab.txt: ids would differ; make it where'),
        ("added_tokens.json", {"river": 0}, 'the token "river" has the id 0, and '),
        ("added_tokens.json", {"[SEP]": 5}, 'the token "[SEP]" has the id 5, and '),
        ("special_tokens_map.json", {"additional_special_tokens": ["river"]}, "is found in texts before they are cut"),
        ("tokenizer_config.json", {"cls_token": "[unused1]"}, "is the cls_token, and layerbeam puts [CLS]"),
        ("tokenizer_config.json", {"never_split": ["river"]}, 'never_split is ["river"]; it must be null or []'),
    ],
)
def test_tokens_next_to_vocab_txt(folder, file, fields, message):
    path = folder / file
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | fields))
    assert message in refused(folder)


def test_usual_tokens_next_to_vocab_txt(folder):
    ids = {entry: number for number, entry in enumerate((folder / "vocab.txt").read_text().split("\n"))}
    (folder / "added_tokens.json").write_text(json.dumps({"[SEP]": ids["[SEP]"]}))
    special = {"cls_token": "[CLS]", "mask_token": {"content": "[MASK]"}, "additional_special_tokens": ["[unused1]"]}
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    edit(folder / "tokenizer_config.json", never_split=None, mask_token="[MASK]", add_bos_token=False)
    assert open_encoder(str(folder)).fingerprint == open_encoder(str(UNCASED)).fingerprint


def test_old_names_of_layer_norm(folder):
    def old(name: str) -> str:
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    rewrite(folder, lambda weights: {old(name): values for name, values in weights.items()})
    assert "embeddings.LayerNorm.gamma" in load_file(folder / "model.safetensors")
    assert same_weights(folder, UNCASED)


def test_shards(folder):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    shards = {name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(weights)}
    for file in set(shards.values()):
        save_file({name: weights[name] for name in weights if shards[name] == file}, folder / file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": shards}))
    assert same_weights(folder, UNCASED)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors is missing; download it too" in refused(folder)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("gelu", "gelu"), ("gelu_new", "gelu_tanh"), ("gelu_pytorch_tanh", "gelu_tanh"), ("gelu_fast", "gelu_tanh")],
)
def test_forms_of_gelu(folder, theirs, ours):
    edit(folder / "config.json", hidden_act=theirs)
    assert open_encoder(str(folder)).architecture.hidden_act == ours


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"strip_accents": False}, "strip_accents is false; with do_lower_case true it must be null or true"),
        ({"tokenize_chinese_chars": False}, "tokenize_chinese_chars is false"),
        (
            {"word_tokenizer_type": "mecab"},
            'word_tokenizer_type is "mecab"; it must be "basic"',
        ),
    ],
)
def test_tokenizers_that_cut_otherwise(folder, fields, message):
    edit(folder / "tokenizer_config.json", **fields)
    assert f"tokenizer_config.json: {message}" in refused(folder)
    makes = "transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
    assert (makes in refused(folder)) == ("word_tokenizer_type" not in fields)


@pytest.mark.parametrize("keep", [0, 5, 100, 6000, -1])
def test_truncated_weights(folder, keep):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    assert f"{weights}: not a complete safetensors file (" in refused(folder)
    assert "download it again" in refused(folder)


def test_large_file_pointer(folder):
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert "`git lfs pull`" in refused(folder)


def test_lines_of_a_vocabulary(folder):
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "", "\u2028", "a\u0085b", " c", "[PAD]"]
    for end, tail in (("\n", ""), ("\r\n", "\r\n"), ("\n", "\n\n")):
        (folder / "vocab.txt").write_bytes((end.join(entries) + tail).encode())
        assert open_encoder(str(folder)).vocabulary == tuple(entries)
    assert open_encoder(str(folder)).special.pad == 8  # as Google's, the last of equal entries


def test_no_weights(folder):
    (folder / "model.safetensors").unlink()
    assert f"{folder / 'model.safetensors'} is missing; it holds the weights: download it too" in refused(folder)


def test_a_pickle_that_is_no_zip(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch opened'\ntR.")
    assert "pytorch_model.bin: not a complete file of PyTorch (it is no zip" in refused(folder)
    assert not Path("opened").exists()


NESTED = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_json_nested_too_deep(folder, name):
    (folder / name).write_text(f'{{"a": {NESTED}}}')
    assert f"{folder / name}: is not JSON (maximum recursion depth exceeded" in refused(folder)


def write_header(folder: Path, header: str) -> None:
    data = header.encode()
    (folder / "model.safetensors").write_bytes(len(data).to_bytes(8, "little") + data)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (f'{{"a": {NESTED}}}', "recursion limit exceeded"),
        ('{"a": {"dtype": "F32", "shape": [1e999], "data_offsets": [0, 0]}}', "number out of range"),
        ('{"a": {"dtype": "F32", "shape": [-1, 0], "data_offsets": [0, 0]}}', "invalid value: integer `-1`"),
        ('{"a": {"dtype": "F32", "shape": [true], "data_offsets": [0, 0]}}', "invalid type: boolean `true`"),
        ('{"a": {"dtype": "F32", "shape": ["1"], "data_offsets": [0, 0]}}', 'invalid type: string "1"'),
        ('{"a": {"dtype": "F32", "shape": [0], "data_offsets": [NaN, 0]}}', "expected value at"),
        ('{"a": {"dtype": [], "shape": [0], "data_offsets": [0, 0]}}', "invalid type: sequence"),
    ],
)
def test_hostile_headers(folder, header, said):
    write_header(folder, header)
    error = refused(folder)
    assert f"{folder / 'model.safetensors'}: not a complete safetensors file (invalid JSON in header: {said}" in error
    assert "download it again" in error


@pytest.mark.parametrize(
    "entries",
    [
        '"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, '
        '"b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}',
        '"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, '
        '"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}',
        '"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}',
        '"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}',
        '"a": {"dtype": "F32", "shape": [9223372036854775807, 8], "data_offsets": [0, 8]}',
    ],
    ids=["overlap", "duplicate", "hole", "shape", "overflow"],
)
def test_tensors_that_do_not_cover_the_data_once(folder, entries):
    write_header(folder, f"{{{entries}}}")
    with open(folder / "model.safetensors", "ab") as file:
        file.write(bytes(8))
    assert "not a complete safetensors file (" in refused(folder)


@pytest.mark.parametrize("header", ["{}}", "[1]", '{"a": 1}', '{"a": {"dtype": "F32", "shape": [1]}}'])
def test_header_that_is_none(folder, header):
    write_header(folder, header)
    assert "not a complete safetensors file (" in refused(folder)


@pytest.mark.parametrize("name", ["..", "", ".", "../x", "/x", 3, None])
def test_index_that_names_no_file(folder, name):
    (folder / "model.safetensors").rename(folder / "weights")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    assert "weight_map must give a file in this folder for each tensor" in refused(folder)


def test_casing_that_is_neither_true_nor_false(folder):
    edit(folder / "tokenizer_config.json", do_lower_case="true")
    assert 'tokenizer_config.json: do_lower_case is "true"; it must be true or false' in refused(folder)
    assert open_encoder(str(folder), do_lower_case=False).do_lower_case is False


def test_folder_that_may_not_be_read(folder, monkeypatch):
    def refuse(self: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    (folder / "config.json").unlink()
    monkeypatch.setattr(Path, "iterdir", refuse)
    assert refused(folder) == f"{folder}: cannot be read: Permission denied"


@pytest.mark.parametrize("name", ["config.json", "vocab.txt", "tokenizer_config.json"])
def test_small_files_of_gigabytes_are_not_read(folder, name):
    with open(folder / name, "ab") as file:
        file.truncate(4 << 30)  # without a byte on the disk
    assert f"{folder / name}: has over 256 MB, more than any encoder's; check the file" in refused(folder)


def test_header_of_more_tensors_than_any_encoder_has(folder):
    header = b"{" + b" " * (1 << 24)
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    assert f"model.safetensors: has a header of {(1 << 24) + 1:,} bytes, more than any encoder's" in refused(folder)


def test_config_that_is_a_folder(folder):
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    assert refused(folder) == f"{folder}: {folder}/config.json: cannot be read: Is a directory"


def test_folder_of_sentence_transformers_without_its_config(folder):
    (folder / "config.json").unlink()
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    assert refused(folder) == (
        f"{folder}: holds 1_Pooling, model.safetensors, tokenizer_config.json, vocab.txt, and no config.json, which "
        "belongs to model.safetensors: download it too"
    )


def test_link_that_hides_the_casing(folder):
    (folder / "tokenizer_config.json").unlink()
    cased = folder.rename(folder.parent / "bert_cased")
    folder.symlink_to(cased)
    source = open_encoder(str(folder))
    assert (source.do_lower_case, source.casing_from) == (False, "the name bert_cased")
