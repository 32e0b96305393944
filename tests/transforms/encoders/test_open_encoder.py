from __future__ import annotations

import json
import os
import shutil

import pytest
from repository import DATA
from weights import refused

from layerbeam.transforms.encoders import EncoderError, load_encoder, open_encoder


@pytest.mark.parametrize(("files", "found"), [(["a.txt", "b.bin"], "a.txt, b.bin"), ([], "nothing")])
def test_folders_that_hold_no_encoder(tmp_path, files, found):
    for file in files:
        (tmp_path / file).touch()
    message = refused(tmp_path)
    assert (
        f"holds {found}, and none of saved_model.pb, config.json, bert_config.json; an encoder is minilm, " in message
    )


def test_handles_that_are_no_folder(tmp_path):
    assert "there is no such folder (absolute: " in refused(tmp_path / "none")
    assert refused("").startswith(": the handle is empty; an encoder is minilm, ")
    assert "is a file" in refused(DATA / "input.txt")
    assert "there is no such folder" in refused("x" * 5000)


def test_layers_that_it_does_not_have():
    source = open_encoder(str(DATA / "hf_uncased"))
    with pytest.raises(EncoderError, match="there is no layer 4; it gives layers 0 to 3"):
        load_encoder(source, layers=[3, 4], pooler=False)


@pytest.mark.parametrize(
    ("files", "length"),
    [
        ({}, 128),  # its positions
        ({"tokenizer_config.json": {"model_max_length": 100}}, 100),
        ({"tokenizer_config.json": {"model_max_length": 512}}, 128),
        ({"tokenizer_config.json": {"model_max_length": int(1e30)}}, 128),  # transformers' "no limit"
        ({"tokenizer_config.json": {"model_max_length": None}}, 128),
        (
            {
                "sentence_bert_config.json": {"max_seq_length": 60, "do_lower_case": False},
                "tokenizer_config.json": {"model_max_length": 100},
            },
            60,
        ),
        (
            {
                "sentence_roberta_config.json": {"max_seq_length": None},
                "tokenizer_config.json": {"model_max_length": 100},
            },
            100,
        ),
    ],
)
def test_the_length_that_its_files_say(tmp_path, files, length):
    folder = shutil.copytree(DATA / "hf_uncased", tmp_path / "encoder")
    (folder / "tokenizer_config.json").unlink()
    for name, fields in files.items():
        (folder / name).write_text(json.dumps({"do_lower_case": True} | fields))
    assert open_encoder(str(folder)).max_seq_length == length


def test_the_length_of_minilm():
    assert open_encoder("minilm").max_seq_length == 256


def test_pipe_as_configuration_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(EncoderError, match="holds nothing, and none of"):
        open_encoder(str(tmp_path))
